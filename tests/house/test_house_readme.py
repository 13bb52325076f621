"""What the README says is what the program does: its commands, its limits, its exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from wakehub import limits
from wakehub.cli import build_parser
from wakehub.errors import Exit
from wakehub.ops import health

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
GUIDES = {path.stem: path.read_text("utf-8") for path in (ROOT / "wakehub" / "guide").glob("*.md")}


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(title: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def commands() -> list[str]:
    """The two commands that the README begins with, as `.ci/run` takes them."""
    return re.findall(r"^```sh\n(.*)\n```$", README, re.MULTILINE)


def test_the_limits_are_the_programs():
    rows = table("Limits")
    assert len(rows) >= 10
    for what, value, name in rows:
        assert int(re.match(r"\d+", value)[0]) == getattr(limits, name.strip("`")), what


def test_the_exit_codes_are_the_programs():
    listed = {(int(code), name.strip("`")) for code, name, _ in table("Exit codes")}
    assert listed == {(int(status), status.name) for status in Exit}


def test_the_guide_has_every_exit_code_and_no_other():
    listed = {int(code) for code in re.findall(r"^    (\d+) ", GUIDES["exits"], re.MULTILINE)}
    assert listed == {int(status) for status in Exit} | {130}


def test_there_are_two_commands_and_they_do_the_whole_set_up():
    first, second = commands()
    assert first.startswith("python3 -m venv .venv && ")
    assert first.endswith(".venv/bin/wakehub demo")
    assert "'.[test]'" in second
    assert ".venv/bin/pytest" in second
    for command in (first, second):
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0


def test_the_checks_run_those_very_commands():
    """`.ci/run` takes them out of the README; here its extraction is run, so that both see the same lines."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "pip install" not in script
    program = re.search(r"awk '([^']+)' README\.md", script)
    assert program
    found = subprocess.run(["awk", program[1], "README.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == commands()


def test_the_checks_are_a_script_that_can_be_run():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports"):
        assert tool in script.read_text("utf-8")


def test_every_command_the_readme_shows_exists():
    known = next(action for action in build_parser()._actions if action.dest == "command").choices
    shown = set(re.findall(r"\bwakehub ([a-z]+)(?![a-z_:-])", README)) - {"is"}
    assert shown <= set(known), shown - set(known)
    assert {"up", "send", "listen", "demo", "guide"} <= shown


def test_every_state_of_health_is_in_the_guide():
    states = set(re.findall(r"^\| (\w+) \|", health.__doc__ or "", re.MULTILINE)) - {"state"}
    assert "timeout" in states
    for state in states - {"answers"}:
        assert re.search(rf"\b{state}\b", GUIDES["operate"]), state


def test_no_machine_and_no_registry_is_named():
    for path in [ROOT / "README.md", ROOT / ".ci" / "run", *(ROOT / "wakehub" / "guide").glob("*.md")]:
        text = path.read_text("utf-8")
        assert not re.search(r"https?://|/home/|/root/|/Users/|pypi|--index-url", text, re.IGNORECASE), path


def test_nothing_is_promised_that_is_called_delivery():
    """The word is used only to say that it is not."""
    for text in (README, *GUIDES.values()):
        for sentence in re.findall(r"[^.:]*\bdeliver\w*[^.:]*", text, re.IGNORECASE):
            assert re.search(r"\b(no|nothing|never|not)\b", sentence, re.IGNORECASE), sentence


@pytest.mark.parametrize("name", sorted(GUIDES))
def test_the_guides_are_part_of_the_package(name):
    found = subprocess.run(
        [sys.executable, "-P", "-m", "wakehub", "guide", name], capture_output=True, text=True, check=True
    )
    assert found.stdout == GUIDES[name]
