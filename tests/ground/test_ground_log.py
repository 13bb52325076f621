"""What daemons tell an operator: form, escapes, and a reader that has gone."""

import json
import os
import pty
import signal
import subprocess
import sys

from wakehub import log
from wakehub.limits import LOG_REPEAT_SECONDS

_PROGRAM = """
from wakehub import log
logger = log.configure("hub")
logger.info("agent connected", agent=b"ev\\xc2\\x85il\\x1b[2K\\n{", session=7)
try:
    {}["secret"]
except KeyError:
    logger.exception("it failed", pid=None)
logger.warning("long", text="x" * 1000)
"""


def _run(**options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-W", "error", "-c", _PROGRAM], check=True, timeout=20, **options)


def test_each_entry_is_one_line_of_json_with_time_level_and_event_first():
    first, second, third = _run(stderr=subprocess.PIPE).stderr.decode().splitlines()
    assert list(json.loads(first))[:3] == ["timestamp", "level", "event"]
    connected = json.loads(first)
    assert (connected["level"], connected["program"], connected["session"]) == ("info", "hub", 7)
    assert connected["agent"] == "ev\\x85il\\x1b[2K\\n{"
    failed = json.loads(second)
    assert (failed["level"], failed["event"], failed["pid"]) == ("error", "it failed", None)
    assert failed["exception"].startswith("Traceback")
    assert len(json.loads(third)["text"]) == 400


def test_on_a_terminal_it_is_written_for_people_and_still_escaped():
    ours, theirs = pty.openpty()
    try:
        _run(stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # how Linux says that the other end was closed
            pass
    finally:
        os.close(ours)
    assert b"agent connected" in shown
    assert b"ev\\x85il\\x1b[2K\\n{" in shown
    assert b"\x1b[2K" not in shown
    assert b"KeyError: 'secret'" in shown
    assert b"Remove" not in shown  # the renderer's own complaint about tracebacks that are text already


def test_when_the_reader_has_gone_the_program_goes_on_and_ends_well():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert _run(stderr=writer).returncode == 0
    finally:
        os.close(writer)


def test_when_the_disk_is_full_the_program_goes_on_and_ends_well(tmp_path):
    import resource

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit fails with EFBIG
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))

    with open(tmp_path / "log", "wb") as file:
        assert _run(stderr=file, preexec_fn=no_room).returncode == 0


def test_closed_standard_error_is_no_reason_to_fail():
    assert _run(preexec_fn=lambda: os.close(2)).returncode == 0


def test_a_cause_is_due_at_first_and_then_at_most_every_ten_seconds_with_a_count():
    repeats = log.Repeats()
    assert repeats.due(("a",), 0.0) == 1
    assert repeats.due(("b",), 0.0) == 1
    assert [repeats.due(("a",), 0.1 * number) for number in range(1, 50)] == [None] * 49
    assert repeats.due(("a",), LOG_REPEAT_SECONDS) == 50
    assert repeats.due(("a",), LOG_REPEAT_SECONDS + 1) is None
    assert repeats.due(("b",), 1000.0) == 1


def test_causes_that_never_repeat_do_not_pile_up():
    repeats = log.Repeats()
    assert all(repeats.due((str(number),), 0.0) == 1 for number in range(5000))
    assert len(repeats._causes) <= 512
