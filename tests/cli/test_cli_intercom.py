"""`wakehub intercom` as words: flags on either side, help that says what there is, refusals that say what to do."""

import re
import subprocess

import pytest

from wakehub import cli
from wakehub.cli.intercom import DEFAULT_CHANNEL
from wakehub.errors import Exit

PARSER = next(a for a in cli.build_parser()._actions if a.dest == "command").choices["intercom"]
COMMANDS = sorted(next(a for a in PARSER._actions if a.dest == "intercom_command").choices)
ERROR = re.compile(r"wakehub: [^\n]+\n  next: [^\n]+\n")


def test_the_commands_are_those_of_the_specification():
    assert sorted(["init", "send", "poll", "listen", "peers", "cleanup", "daemon", "bridge"]) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_each_shows_itself_with_examples_that_parse(wakehub, command):
    found = wakehub("intercom", command, "--help")
    assert (found.status, found.err) == (0, "")
    for flag in ("--dir", "--channel", "--project-dir"):
        assert flag in found.out
    examples = found.out.split("example:\n")[1].split("\n\n")[0].splitlines()
    lines = [line for line in examples if f"wakehub intercom {command}" in line]
    assert lines
    for line in lines:
        words = line.split("wakehub ", 1)[1]
        argv = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True).stdout
        cli.build_parser().parse_args(argv.decode().split("\0")[:-1])


@pytest.mark.parametrize("flag", [["--dir", "/x"], ["--channel", "dev"], ["--project-dir", "/x"]])
def test_the_common_flags_may_stand_on_either_side(flag):
    parse = cli.build_parser().parse_args
    before = parse(["intercom", *flag, "send", "--to", "nova", "--text", "x"])
    behind = parse(["intercom", "send", "--to", "nova", *flag, "--text", "x"])
    assert vars(before) == vars(behind)
    assert flag[1] in map(str, vars(before).values())


def test_the_later_one_counts():
    args = cli.build_parser().parse_args(["intercom", "--channel", "a", "poll", "--channel", "b"])
    assert args.channel == "b"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["pol"],
        ["send"],
        ["send", "--to", "nova"],
        ["send", "--text", "x"],
        ["send", "--to", "nova", "--text", "x", "--stdin"],
        ["send", "--to", "nova", "--json-payload", "{"],
        ["send", "--to", "nova", "--json-payload", "[]"],
        ["send", "--to", "nova", "--json-payload", '{"a": NaN}'],
        ["send", "--to", "nova", "--json-payload", '{"a": 1, "a": 2}'],
        ["send", "--to", "nova", "--json-payload", '{"text": "a"}', "--text", "b"],
        ["send", "--to", "nova", "--text", "x", "--reply-to", "bad id"],
        ["send", "--to", "nova", "--text", "x", "--reply-to", ""],
        ["send", "--to", "nova", "--text", "x", "--reply-to", "nova"],
        ["send", "--to", "nova", "--text", "x", "--reply-to", "msg_0123456789AB\x1b"],
        ["poll", "--wait", "soon"],
        ["listen", "--format", "agent"],
        ["bridge", "--session", "rowan"],
        ["bridge", "--as", "alice"],
        ["--dir", "", "poll"],
    ],
)
def test_what_cannot_be_used_is_a_usage_error(wakehub, argv):
    found = wakehub("intercom", *argv)
    assert (found.status, found.out) == (Exit.USAGE, "")
    assert ERROR.fullmatch(found.err), found.err


@pytest.fixture
def mesh(home, monkeypatch):
    """A base directory for channels."""
    base = home.parent / "mesh"
    base.mkdir(mode=0o700)
    monkeypatch.setenv("AGY_IPC_DIR", str(base))
    return base


@pytest.mark.parametrize("to", ["../x", "None", "hub", "a b", "x" * 65, "x" * 300, "-x", "é", "\x1b[2K", "*"])
def test_who_can_be_no_session_is_refused_before_any_file(wakehub, mesh, to):
    """F43, F88."""
    send = ("send", "--session=nova", f"--to={to}", "--text", "x")
    for argv in (("send", "--to", "nova", "--text", "x", f"--session={to}"), ("poll", f"--session={to}"), send):
        if to == "*" and argv is send:
            continue
        found = wakehub("intercom", *argv)
        assert (found.status, found.out) == (Exit.DATA, "")
        assert ERROR.fullmatch(found.err), found.err
        assert "\x1b" not in found.err
    assert [path.name for path in mesh.rglob("*")] in ([], ["default"])


@pytest.mark.parametrize("channel", ["Dev", "../x", "a b", "x" * 65, "dév", "\x1b[2K"])
def test_a_channel_that_would_become_another_is_refused(wakehub, mesh, channel):
    found = wakehub("intercom", f"--channel={channel}", "poll")
    assert (found.status, found.out) == (Exit.DATA, "")
    assert ERROR.fullmatch(found.err), found.err
    assert ("'dev'" in found.err) == (channel == "Dev")
    assert list(mesh.iterdir()) == []


@pytest.mark.parametrize("how", ["mode", "link", "file"])
@pytest.mark.parametrize("command", [["poll"], ["send", "--to", "a", "--text", "x"], ["listen"], ["init"], ["daemon"]])
def test_a_directory_that_is_not_safe_is_refused_and_not_mended(wakehub, mesh, how, command):
    """F53."""
    if how == "mode":
        mesh.chmod(0o777)
    else:
        mesh.rmdir()
        target = mesh.with_name("target")
        target.mkdir(mode=0o700)
        mesh.symlink_to(target) if how == "link" else mesh.touch()
    before = mesh.lstat().st_mode
    found = wakehub("intercom", *command)
    assert (found.status, found.out) == (Exit.PERMISSION, "")
    assert "AGY_IPC_DIR" in found.err
    assert mesh.lstat().st_mode == before


def test_the_default_channel_is_told(wakehub):
    assert f"default: {DEFAULT_CHANNEL}" in wakehub("intercom", "poll", "--help").out


def test_the_guide_shows_every_command_and_flag(wakehub):
    """Both command lines side by side; what the guide names exists, and what exists is named."""
    guide = wakehub("guide", "intercom").out
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in guide.splitlines() if row.startswith("| `")]
    ours = [re.match(r"`([^`]+)`", cells[1])[1] for cells in rows if cells[1].startswith("`")]
    assert {words.split()[0] for words in ours} >= set(COMMANDS) - {"bridge"}
    for words in ours:
        cli.build_parser().parse_args(["intercom", *words.split()])
    for flag in set(re.findall(r"--[a-z][a-z-]+", guide)) - {"--as", "--to", "--re", "--stdin"}:
        assert any(flag in wakehub("intercom", command, "--help").out for command in COMMANDS), flag


def test_the_guide_names_every_exit_code_of_the_commands(wakehub):
    guide = wakehub("guide", "intercom").out.split("**Exit codes")[1].split("\n\n")[0]
    shown = wakehub("intercom", "poll", "--help").out.split("Exit:")[1].split("\n\n")[0]
    codes = [set(map(int, re.findall(r"(?:Exit:|[:;]|\*\*)\s+(\d+)", f"Exit:{text}"))) for text in (guide, shown)]
    assert codes[0] == codes[1] == {0, 3, 4, 65, 73, 75, 77}
