"""Where reports and errors go, and what happens when that place is gone (faults F7, F88)."""

import os
import sys

import pytest

from wakehub.cli import output
from wakehub.errors import Exit, WakehubError


def test_a_closed_standard_output_is_an_error(shell):
    found = shell("wakehub --version >&-")
    assert found.status == Exit.OUTPUT_GONE
    assert "standard output is closed" in found.err


@pytest.mark.parametrize(
    "line", ["wakehub --version", "wakehub --help", "wakehub guide exits", "wakehub --posture --json"]
)
def test_a_reader_that_has_gone_is_met_in_silence(shell, line):
    found = shell(f"set -o pipefail; {{ {line}; echo $? >&2; }} | :")
    assert found.err.strip() in {"74", "0"}, found.err  # 0: all of it was in the pipe before the reader left


def test_a_reader_that_never_was(process):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        found = process("--help", stdout=gone)
    assert (found.status, found.err) == (Exit.OUTPUT_GONE, "")


def test_an_output_that_takes_no_more_is_told(shell):
    """A full disk, by the means that every platform has: a file that may not grow."""
    found = shell("ulimit -f 0; wakehub --version > out")
    assert found.status == Exit.OUTPUT_GONE
    assert "cannot be written: File too large" in found.err


def test_everything_closed(shell):
    assert shell("wakehub --version <&- >&- 2>&-").status == Exit.OUTPUT_GONE


def test_a_closed_standard_error_costs_only_the_words(shell):
    found = shell("wakehub nonsense 2>&-")
    assert (found.status, found.out, found.err) == (Exit.USAGE, "", "")


def test_no_file_takes_the_place_of_a_closed_descriptor(shell):
    """A record or a socket at descriptor 1 would be written over by the next report."""
    script = (
        "import os; from wakehub.cli import output; output.guard(); print(os.open('/', os.O_RDONLY), file=open(3, 'w'))"
    )
    found = shell(f'"{sys.executable}" -c "{script}" 3>&1 <&- >&- 2>&-')
    assert int(found.out) > 3


def test_an_ascii_terminal_gets_escapes_and_no_traceback(process):
    found = process("guide", "receive", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert found.status == 0
    assert "\\u2026" in found.out


def test_an_error_has_two_lines(capsys):
    assert output.complain(WakehubError("it failed", why="so", remedy="do that", exit=Exit.HELD)) == 75
    assert capsys.readouterr().err == "wakehub: it failed: so\n  next: do that\n"


def test_an_error_without_more_to_say_has_one(capsys):
    assert output.complain(WakehubError("it failed")) == 1
    assert capsys.readouterr().err == "wakehub: it failed\n"


def test_json_is_one_ascii_line(capsys):
    output.say_json({"text": "é\n\u202e"})
    assert capsys.readouterr().out == '{"text": "\\u00e9\\n\\u202e"}\n'
