"""`wakehub bench` as a user runs it: its forms, its progress, and arguments that cannot be used."""

import json
import subprocess
import sys

import pytest

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
