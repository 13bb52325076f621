"""The whole conformance run, as a person starts it, against the real hub's process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from wakehub.ops.conformance.report import CASE_KEYS, JSON_KEYS

AGENTS = ("check/a", "check/b", "check/c")


def conformance(hub: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wakehub", "conformance", *arguments],
        env=hub.home.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def bundles(hub: Any) -> list[str]:
    """``--bundle FILE`` for each agent; the bundles are made by the independent client."""
    words = []
    for number, name in enumerate(AGENTS):
        path = Path(hub.home.keys, f"{number}.json")
        hub.home.bundle(name).write(path)
        words += ["--bundle", str(path)]
    return words


def test_our_hub_passes_every_case_and_is_left_as_it_was(hub: Any) -> None:
    hub.home.enroll(*AGENTS, "watcher")
    hub.start()
    watcher = hub.connect("watcher")
    ended = conformance(hub, *bundles(hub), "--ours", "--json")
    report = json.loads(ended.stdout)
    assert [case for case in report["cases"] if case["result"] != "passed"] == []
    assert (ended.returncode, ended.stderr) == (0, "")
    assert tuple(report) == JSON_KEYS
    assert all(tuple(case) == CASE_KEYS for case in report["cases"])
    assert report["passed"] == len(report["cases"]) >= 80
    assert all(case["ms"] < 15_000 for case in report["cases"])

    assert watcher.ping() == []
    assert watcher.welcome is not None
    hub.until(lambda: hub.stats()["connections"] == 1, "only the watcher is connected")
    for name in AGENTS:  # they departed
        watcher.wake(name, "m_1")
        assert [code for code, _ in watcher.ping()] == [404]
    assert hub.logs("internal error on a frame") == []
    assert hub.stop() == 0


def test_without_bundles_it_tries_what_needs_no_agent(hub: Any) -> None:
    hub.start()
    ended = conformance(hub, "--only", "1", "--only", "3", "--only", "5.8")
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert "✓ prefix-over-ceiling §1: 413 from the four bytes alone, and the end" in lines
    assert any(
        line.startswith("– hello-for-another-hub §3: ") and line.endswith("needs 1 bundle, 0 given") for line in lines
    )
    assert " failed" in lines[-2]
    assert lines[-1].startswith("  next: give --bundle three times")


def test_no_hub_is_exit_2(hub: Any) -> None:
    ended = conformance(hub)
    assert ended.returncode == 2
    assert "missing" in ended.stderr
    assert "next: " in ended.stderr
    ended = conformance(hub, "--json")
    assert ended.returncode == 2
    report = json.loads(ended.stdout)
    assert tuple(report) == JSON_KEYS
    assert (report["reachable"], report["passed"], report["cases"]) == (False, 0, [])
    assert report["why"].startswith("missing")
