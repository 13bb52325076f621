"""The stage: what starts on it, what it says when something does not, and that nothing of it stays."""

import os
import sys

import pytest

from wakehub.bench.stage import Stage, await_true, environment, last_words
from wakehub.errors import Unavailable
from wakehub.processes import start_time


def sleeper(stage, log):
    return stage.start([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"], log=log)


def test_processes_and_directory_end_with_it():
    with Stage() as stage:
        log = stage.path / "log"
        processes = [sleeper(stage, log) for _ in range(3)]
        for process in processes:
            await_true("a sleeper", lambda: log.read_text().count("up") == 3, process=process, log=log)
        places = [stage.directory("x"), stage.directory("x")]
        assert places[0] != places[1]
        assert all(place.stat().st_mode & 0o777 == 0o700 for place in places)
    assert all(process.poll() is not None for process in processes)
    assert all(start_time(process.pid) is None for process in processes)
    assert not stage.path.exists()


def test_it_clears_up_behind_an_error_too():
    started = []

    def interrupted():
        with Stage() as stage:
            started.append((stage, sleeper(stage, stage.path / "log")))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    ((stage, process),) = started
    assert process.poll() is not None
    assert not stage.path.exists()


def test_one_process_can_be_ended_alone(stage):
    one, other = sleeper(stage, stage.path / "a"), sleeper(stage, stage.path / "b")
    stage.end(one)
    assert one.returncode is not None
    assert other.poll() is None


def test_who_does_not_exist_is_named(stage):
    with pytest.raises(Unavailable, match="no-such-program cannot be started"):
        stage.start(["/nowhere/no-such-program"], log=stage.path / "log")


def test_who_ends_instead_of_answering_is_quoted(stage):
    log = stage.path / "log"
    process = stage.start([sys.executable, "-c", "raise SystemExit('the disk\\x1b is full')"], log=log)
    with pytest.raises(Unavailable, match=r"thing ended with 1.*the disk.*is full") as found:
        await_true("thing", lambda: False, process=process, log=log)
    assert "\x1b" not in str(found.value)


def test_an_error_of_the_system_means_not_yet(stage):
    log = stage.path / "log"
    process = sleeper(stage, log)
    answers = iter([OSError("not yet"), False, True])

    def holds():
        found = next(answers)
        if isinstance(found, OSError):
            raise found
        return found

    await_true("thing", holds, process=process, log=log)
    assert next(answers, None) is None


def test_no_other_instance_is_handed_down(monkeypatch):
    monkeypatch.setenv("WAKEHUB_HOME", "/elsewhere")
    monkeypatch.setenv("NOTIFY_SOCKET", "/elsewhere")
    found = environment()
    assert not {"WAKEHUB_HOME", "NOTIFY_SOCKET"} & set(found)
    assert found["PATH"] == os.environ["PATH"]


def test_there_are_no_last_words_without_a_log(tmp_path):
    assert last_words(tmp_path / "none") == ""
