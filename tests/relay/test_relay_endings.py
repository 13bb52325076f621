"""Signals and the end of the parent, in a process of its own."""

import os
import signal
import subprocess
import sys

import pytest
import trio
from daemon_process import PATIENCE_S

from wakehub.relay.endings import endings, parent_gone


async def test_the_first_signal_is_heard_and_none_kills() -> None:
    with endings(os.getppid()) as ends:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await ends.signalled()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_says_whether_it_was_an_interrupt(first: signal.Signals) -> None:
    with endings(os.getppid()) as ends:
        assert not ends.is_interrupt()
        os.kill(os.getpid(), first)
        await ends.signalled()
        os.kill(os.getpid(), signal.SIGINT)
        await trio.lowlevel.checkpoint()
        assert ends.is_interrupt() == (first is signal.SIGINT)


async def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with endings(os.getppid()) as ends:
            os.kill(os.getpid(), signal.SIGHUP)
            with trio.move_on_after(0.05) as waited:
                await ends.signalled()
            assert waited.cancelled_caught
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_when_all_are_ignored_nothing_is_caught() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        with endings(os.getppid()) as ends, trio.move_on_after(0.01) as waited:
            await ends.signalled()
        assert waited.cancelled_caught
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


async def test_a_parent_that_lives_is_waited_for() -> None:
    with trio.move_on_after(0.05) as waited:
        await parent_gone(os.getppid())
    assert waited.cancelled_caught


CHILD = """
import os, sys, trio
from wakehub.relay import endings
if sys.argv[1] == "asking":
    del os.pidfd_open
parent = os.getppid()
print("waiting", flush=True)
trio.run(endings.parent_gone, parent)
print("gone", flush=True)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def test_a_parent_that_ended_before_is_noticed_as_well() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as another:
        another.wait()
        trio.run(parent_gone, another.pid)


async def test_a_parent_whose_pid_is_another_s_by_now_is_not_waited_for() -> None:
    with trio.fail_after(PATIENCE_S):
        await parent_gone(os.getpid())  # it lives, and is nobody's parent here


@pytest.mark.parametrize("how", ["by descriptor", "asking"])
def test_a_parent_that_is_killed_is_noticed(how: str) -> None:
    if how == "asking" and not hasattr(os, "pidfd_open"):
        how = "by descriptor"  # which is asking, here
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD, how], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"waiting\n"
        parent.kill()
        assert parent.stdout.read() == b"gone\n"
