"""The command's frame: what is reported in which form, and what happens without enough descriptors."""

import resource

import pytest

from wakehub.bench import run
from wakehub.bench.report import Column, Table
from wakehub.errors import Unavailable


def findings():
    table = Table("t", "A table", (Column("system", "system"),))
    table.add(system="wakehub")
    machine = {"wakehub": "1", "python": "3", "system": "x", "kernel": "y", "architecture": "z", "cpus": 2, "load": 0.1}
    return run.Findings(machine, {"nats": "v2"}, 3, 1.26, {"latency": [table]}, {"redis": "not installed"})


def test_what_was_left_out_is_said_in_every_form():
    found = findings()
    assert "left out: redis: not installed" in found.text()
    assert "- left out: redis: not installed" in found.markdown()
    assert found.to_json()["left_out"] == {"redis": "not installed"}


def test_json_has_the_tables_by_scenario_and_name():
    found = findings().to_json()
    assert set(found) == {"machine", "peers", "rounds", "seconds", "left_out", "scenarios"}
    assert found["scenarios"]["latency"]["t"]["rows"] == [{"system": "wakehub"}]
    assert found["seconds"] == 1.3


def test_too_few_descriptors_are_reported_before_anything_starts(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))

    def refuse(_which, limits):
        raise ValueError(limits)

    monkeypatch.setattr(resource, "setrlimit", refuse)
    with pytest.raises(Unavailable, match=r"only 256 files.*ulimit -n 1200"):
        run.raise_descriptors()


def test_the_soft_limit_is_raised_where_the_hard_one_allows_it(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 8192))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    run.raise_descriptors()
    assert asked == [(1200, 8192)]


def test_a_directory_that_cannot_be_had_is_said(monkeypatch):
    import tempfile

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(Unavailable, match=r"cannot go on: .*No space left.*TMPDIR"):
        run.run(["memory"], rounds=1, quick=True, with_peers=False, tell=lambda _: None)
