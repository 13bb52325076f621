"""The house rules that a reader of the tree can count on (design.md, Top level; style.md, 6 and 8)."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from wakehub import errors
from wakehub.errors import WakehubError

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "wakehub").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

USER_ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, WakehubError)}

ELSEWHERE = {
    "cli/mesh": "tests/intercom/test_intercom_cli_mail.py",  # its commands are run as processes, beside real hubs
    "client/lent_session": "tests/client/test_client_own_sessions.py",  # with the senders that use it
    "client/receipts": "tests/client/test_client_send.py",  # what a send is asked for and told
    "inbox/leases": "tests/inbox/test_inbox_sqlite_leases.py",  # what a store makes of them
    "intercom/connection": "tests/intercom/test_intercom_server.py",  # seen from the other end of its socket
    "intercom/spooler": "tests/intercom/test_intercom_server.py",  # seen in the inboxes of a hub
}
"""Modules whose tests bear another name, and where they are."""


def name_of(module: Path) -> str:
    return module.relative_to(ROOT / "wakehub").with_suffix("").as_posix()


def candidates(module: Path) -> list[Path]:
    """Where the tests of a module may be: by its own name, or by that of the package it is a part of."""
    *packages, name = name_of(module).split("/")
    area = packages[0] if packages else "ground"
    names = [f"test_{area}_{name.strip('_')}.py", *(f"test_{area}_{package}.py" for package in packages[1:])]
    return [ROOT / "tests" / area / found for found in names]


@pytest.mark.parametrize("module", [path for path in MODULES if path.name != "__init__.py"], ids=name_of)
def test_every_module_has_its_tests(module):
    elsewhere = ELSEWHERE.get(name_of(module))
    places = [ROOT / elsewhere] if elsewhere else candidates(module)
    assert any(place.exists() for place in places), f"no tests: {' or '.join(str(place) for place in places)}"


def test_nothing_is_listed_as_tested_elsewhere_in_vain():
    for name in ELSEWHERE:
        assert (ROOT / "wakehub" / f"{name}.py").exists(), name


def test_test_files_have_different_names():
    """pytest imports them by their bare name."""
    names = [path.name for path in TESTS if path.name != "conftest.py"]
    assert len(names) == len(set(names))


def test_nothing_else_lies_at_the_top():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    top = {line.split("/")[0] for line in tracked.splitlines()} or {path.name for path in ROOT.iterdir()}
    allowed = {"wakehub", "tests", "vectors", "systemd", "launchd", "pyproject.toml", "README.md"}
    assert {name for name in top if not name.startswith(".")} <= allowed


def test_no_module_is_called_by_what_it_is_not():
    for path in MODULES:
        assert not {"utils", "util", "common", "core", "manager", "base", "helpers", "misc"} & set(
            path.relative_to(ROOT).with_suffix("").parts
        ), path


@pytest.mark.parametrize("module", [path for path in MODULES if path.read_text("utf-8").strip()], ids=name_of)
def test_every_module_begins_with_what_it_is(module):
    assert ast.get_docstring(ast.parse(module.read_text("utf-8"))), f"{module} has no head"


def test_nothing_is_left_unfinished():
    mark = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error", "no " + "cover"]))
    for path in [*MODULES, *TESTS]:
        assert not mark.search(path.read_text("utf-8")), path


def test_no_test_is_passed_over():
    """But for `skipif` with its reason, where a platform has no such thing."""
    mark = re.compile(r"mark\.(skip|xfail)\b|pytest\.(skip|xfail|importorskip)\(")
    for path in TESTS:
        if path != Path(__file__):
            assert not mark.search(path.read_text("utf-8")), path


def test_numbers_of_the_specification_are_written_once():
    """1304, 390, 43200 and the like stand in limits.py; elsewhere they have names.

    The conformance cases judge any hub, ours among them, and so say for themselves what the specification demands.
    """
    numbers = re.compile(r"(?<![\w.])(1304|390|1009|43_?200|33_?554_?432)(?![\w.])")
    for path in MODULES:
        if path.name == "limits.py" or "conformance" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, int):
                assert not numbers.fullmatch(str(node.value)), f"{path}:{node.lineno}: {node.value}"


WITHOUT_REMEDY = {"publisher/spool"}
"""Modules whose errors become the receipt of a sender who is not there, which has no next step."""


@pytest.mark.parametrize("module", [path for path in MODULES if name_of(path) not in WITHOUT_REMEDY], ids=name_of)
def test_every_error_that_a_user_sees_says_what_to_do_next(module):
    """`wakehub: what: why`, then `next: remedy` (README). A class of a module's own has its remedy in itself."""
    for call in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in USER_ERRORS:
            given = {keyword.arg for keyword in call.keywords}
            assert "remedy" in given, f"{module}:{call.lineno}"
