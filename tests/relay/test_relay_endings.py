"""Signals and the end of the parent, in a process of its own."""

import os
import signal
import subprocess
import sys

import pytest
import trio

from wakehub.relay.endings import catching_signals, parent_gone


async def test_the_first_signal_is_heard_and_none_kills() -> None:
    with catching_signals() as signalled:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await signalled()


async def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catching_signals() as signalled:
            os.kill(os.getpid(), signal.SIGHUP)
            with trio.move_on_after(0.05) as waited:
                await signalled()
            assert waited.cancelled_caught
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_when_all_are_ignored_nothing_is_caught() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        with catching_signals() as signalled, trio.move_on_after(0.01) as waited:
            await signalled()
        assert waited.cancelled_caught
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


async def test_a_parent_that_lives_is_waited_for() -> None:
    with trio.move_on_after(0.05) as waited:
        await parent_gone()
    assert waited.cancelled_caught


CHILD = """
import os, sys, trio
from wakehub.relay import endings
if sys.argv[1] == "asking":
    del os.pidfd_open
print("waiting", flush=True)
trio.run(endings.parent_gone)
print("gone", flush=True)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


@pytest.mark.parametrize("how", ["by descriptor", "asking"])
def test_a_parent_that_is_killed_is_noticed(how: str) -> None:
    if how == "asking" and not hasattr(os, "pidfd_open"):
        how = "by descriptor"  # which is asking, here
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD, how], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"waiting\n"
        parent.kill()
        assert parent.stdout.read() == b"gone\n"
