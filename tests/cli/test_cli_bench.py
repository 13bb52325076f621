"""`wakehub bench` as a user runs it: its forms, its progress, and arguments that cannot be used."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from wakehub.bench.run import SCENARIOS

PATIENCE_S = 300


def bench(*words):
    return subprocess.run(
        [sys.executable, "-P", "-m", "wakehub", "bench", *words],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def empty(value, at=""):
    """Where in a report a key has nothing behind it."""
    if isinstance(value, dict):
        return [path for key, item in value.items() for path in empty(item, f"{at}.{key}")]
    return [at] if value is None or value == "" else []


def test_a_quick_run_gives_valid_json_with_every_key():
    done = bench("--quick", "--only", "memory", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"machine", "peers", "rounds", "seconds", "left_out", "scenarios"}
    assert not empty(found["machine"])
    assert list(found["scenarios"]) == ["memory"]
    for row in found["scenarios"]["memory"]["memory"]["rows"]:
        assert set(row) == {"state", "rss_mib", "private_mib", "kib_per_agent"}
    assert "memory: " in done.stderr


def test_a_table_goes_to_stdout_and_progress_to_stderr():
    done = bench("--quick", "--only", "fanout")
    assert done.returncode == 0, done.stderr
    assert "Fan-out 1 → 255" in done.stdout
    assert "round 1 of 1" in done.stderr
    assert "round 1" not in done.stdout.split("\n", 1)[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "latencies"], "there is no scenario 'latencies'"),
        (["--only", "latency,"], "there is no scenario ''"),
        (["--rounds", "0"], "must be a whole number of at least 1"),
        (["--json", "--markdown"], "exclude each other"),
        (["now"], "unrecognized arguments"),
    ],
)
def test_arguments_that_cannot_be_used(words, told):
    done = bench(*words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "next: " in done.stderr
    assert done.stdout == ""


def is_gone(place):
    """Whether nothing of a benchmark is left: no file in its temporary place, and no process that works there."""
    if any(place.iterdir()):
        return False
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "cwd").startswith(str(place)):
                return False
    return True


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_nothing_stays_however_it_is_ended(number, status):
    with tempfile.TemporaryDirectory(prefix="wb", dir="/tmp") as place:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "wakehub", "bench", "--only", "memory"],
            env={**os.environ, "TMPDIR": place}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            assert any("memory after" in line for line in process.stderr)
            assert not is_gone(Path(place))
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == status
        deadline = time.monotonic() + PATIENCE_S
        while not is_gone(Path(place)):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_every_scenario_and_every_column_is_explained():
    guide = (Path(__file__).resolve().parents[2] / "wakehub" / "guide" / "performance.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)) == set(SCENARIOS)
    assert guide.count("<!-- table: begin -->") == guide.count("<!-- table: end -->") == 1
