"""The command line as a whole: help, versions, errors in one form, and nothing imported that is not needed."""

import itertools
import os
import re
import signal
import subprocess
import sys

import pytest
from daemon_process import started

from wakehub import __version__, cli
from wakehub.cli import parser, record
from wakehub.errors import Exit, WakehubError

COMMANDS = sorted(next(a for a in cli.build_parser()._actions if a.dest == "command").choices)
ERROR = re.compile(r"wakehub: [^\n]+\n  next: [^\n]+\n")


def test_the_version(wakehub):
    found = wakehub("--version")
    assert (found.status, found.out, found.err) == (0, f"wakehub {__version__}\n", "")


def test_every_command_of_this_stage_is_there():
    wanted = (
        "init enroll revoke close agents guide delegate publish serve up send listen relay claim inbox ack metrics "
        "audit demo why status top"
    )
    assert set(wanted.split()) <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_itself_with_an_example(wakehub, command):
    found = wakehub(command, "--help")
    assert (found.status, found.err) == (0, "")
    assert re.search(rf"^example:\n  .*wakehub {command}\b", found.out, re.MULTILINE)
    for flag in ("--socket", "--hub-id", "--state-dir"):
        assert flag in found.out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_details_of_a_help_are_broken_only_where_a_line_is_full_or_ends(wakehub, command):
    told = wakehub(command, "--help").out.split("\n\n", 1)[1].split("\noptions:")[0].split("\npositional")[0]
    lines = told.rstrip().splitlines()
    for line, following in itertools.pairwise(lines):
        is_full = following and len(line) + 1 + len(following.split()[0]) > 100
        assert is_full or not line or not following or line.endswith((".", ":")), line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_is_a_command_line_that_parses(wakehub, command):
    tail = wakehub(command, "--help").out.split("example:\n")[1]
    lines = [line for line in tail.split("\n\n")[0].splitlines() if "wakehub" in line]
    for line in lines:
        words = line.split("wakehub ", 1)[1].split(" | ")[0]
        argv = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True).stdout
        cli.build_parser().parse_args(argv.decode().split("\0")[:-1])


def test_help_of_the_whole(wakehub):
    found = wakehub("--help")
    assert found.status == 0
    assert "example:" in found.out
    assert all(re.search(rf"^    {command}\b", found.out, re.MULTILINE) for command in COMMANDS)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["agnts"],
        ["send"],
        ["send", "--to", "alice"],
        ["send", "--to", "alice", "--stdin", "text"],
        ["send", "--to", "alice", "--ttl", "8d", "text"],
        ["send", "--to", "alice", "--ttl", "0", "text"],
        ["send", "--to", "alice", "--ttl", "1e3", "text"],
        ["send", "--to", "alice", "--class", "urgent", "text"],
        ["listen", "--poll", "61"],
        ["listen", "--wait", "5"],
        ["listen", "--once", "--wait", "soon"],
        ["listen", "--nam", "x"],
        ["inbox", "--limit", "0"],
        ["delegate", "alice", "--ttl", "13h"],
        ["audit", "erase"],
        ["guide", "nonsense"],
        ["serve", "--max-connections", "many"],
        ["--json", "agents"],
        ["--require-admits"],
        ["--posture", "--health"],
        ["--posture", "agents"],
        ["--socket", "", "--health"],
    ],
)
def test_what_cannot_be_used_is_a_usage_error(wakehub, argv):
    found = wakehub(*argv)
    assert (found.status, found.out) == (Exit.USAGE, "")
    assert ERROR.fullmatch(found.err), found.err


def test_a_mistyped_command_is_answered_with_the_near_one(wakehub):
    assert "did you mean agents?" in wakehub("agnts").err


def test_a_few_choices_are_listed(wakehub):
    assert "normal, fyi" in wakehub("send", "--to", "a", "--class", "urgent", "x").err


@pytest.mark.parametrize("flag", [["--socket", "/x/hub.sock"], ["--hub-id", "other"], ["--state-dir", "/x"]])
def test_the_flags_of_the_instance_may_stand_on_either_side(flag):
    before = cli.build_parser().parse_args([*flag, "agents"])
    behind = cli.build_parser().parse_args(["agents", *flag])
    assert vars(before) == vars(behind)


@pytest.mark.parametrize("bad", ["\x00", "a\x00b", "\udcff", "x\udc80y"])
def test_words_that_no_file_or_name_can_hold_are_refused(wakehub, bad):
    found = wakehub("send", "--to", "alice", bad)
    assert found.status == Exit.USAGE
    assert ERROR.fullmatch(found.err)
    assert "--stdin" in found.err


def test_bytes_that_are_not_utf8_come_from_a_real_command_line(process):
    found = process("send", "--to", "alice", b"\xff\xfe")
    assert found.status == Exit.USAGE
    assert ERROR.fullmatch(found.err)


@pytest.mark.parametrize(
    "name",
    ["a]b", "a\nb", "[wakehub x from root]", "buiІder", "e\u0301", "a\u202eb", "é" * 128, "a" * 129, "../x", "a//b",
     "/a", "a/", " ", "owner", "Wakehub-x", "wakehub"],
)  # fmt: skip
def test_hostile_names_are_refused_and_shown_safely(wakehub, name):
    """Faults F41, F42, F43, F88."""
    assert wakehub("init").status == 0
    found = wakehub("enroll", name)
    assert found.status == Exit.DATA
    assert ERROR.fullmatch(found.err), repr(found.err)
    assert "\u202e" not in found.err


def test_error_texts_of_others_cannot_move_the_cursor(wakehub, monkeypatch):
    def fail(args: object) -> int:
        raise WakehubError("a\x1b]52;c;eA==\x07b", why="c\u202ed\x00", remedy="e\nf\x9b", exit=Exit.DATA)

    monkeypatch.setattr(record, "run_agents", fail)
    found = wakehub("agents")
    assert found.err == "wakehub: a\\x1b]52;c;eA==\\x07b: c\\u202ed\\x00\n  next: e\\nf\\x9b\n"
    assert found.status == Exit.DATA


def test_an_interrupt_is_quiet(wakehub, monkeypatch):
    def interrupt(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "run_agents", interrupt)
    found = wakehub("agents")
    assert (found.status, found.out, found.err) == (130, "", "")


def test_an_interrupt_of_a_real_command_is_quiet(home):
    os.mkfifo(home.parent / "text")
    words = [sys.executable, "-P", "-m", "wakehub", "send", "--to", "alice", "--file", "text"]
    with (
        started(words, cwd=home.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting,
        open(home.parent / "text", "wb"),  # returns once the command has opened the other end and is about to read
    ):
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate()
    assert (waiting.returncode, out, err) == (130, b"", b"")


def test_a_bug_is_a_traceback(wakehub, monkeypatch):
    def fail(args: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(record, "run_agents", fail)
    with pytest.raises(ZeroDivisionError):
        wakehub("agents")


def test_files_are_private_from_the_start(wakehub):
    wakehub("--version")
    assert os.umask(0o022) == 0o077


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["send", "--help"], ["guide"]])
def test_looking_something_up_imports_neither_loop_nor_record(argv):
    script = (
        "import sys; from wakehub.cli import run; status = run(sys.argv[1:]);"
        "print(status, [name for name in ('trio', 'sqlite3', 'nacl', 'structlog') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_json_and_help_agree_on_what_has_json():
    for name, command in next(a for a in cli.build_parser()._actions if a.dest == "command").choices.items():
        has_flag = any("--json" in action.option_strings for action in command._actions)
        assert has_flag == ("--json prints:" in command.epilog), name


def test_a_partly_given_word_is_no_flag():
    with pytest.raises(parser.Usage):
        cli.build_parser().parse_args(["send", "--t", "alice", "x"])


def test_json_errors_stay_on_stderr(wakehub):
    found = wakehub("agents", "--json")
    assert found.out == ""
    assert found.status == Exit.PERMISSION
    assert ERROR.fullmatch(found.err)


@pytest.mark.parametrize(("group", "names"), cli._GROUPS.items())
def test_a_group_adds_the_commands_that_are_looked_for_in_it(group, names):
    for name in names:
        assert set(next(a for a in cli.build_parser(name)._actions if a.dest == "command").choices) == set(names)


def test_every_command_has_its_group():
    assert sorted(name for names in cli._GROUPS.values() for name in names) == COMMANDS


def test_a_command_loads_no_other_groups_words():
    script = "import sys; from wakehub.cli import build_parser; build_parser('serve'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in loaded if name.startswith("wakehub.cli.")} <= {
        "wakehub.cli.checks", "wakehub.cli.daemons", "wakehub.cli.instance", "wakehub.cli.output",
        "wakehub.cli.parser", "wakehub.cli.words",
    }  # fmt: skip
