"""Each message to a program: JSON on its standard input, exit status 0 as the proof (receive.md §4; F1, F11, F17, F89).

The program is started anew for each message, from an argument list that never changes: no shell, nothing of a message
among the arguments. What it needs at once is in the environment as well, short and escaped; the exact text is on stdin
only. Whether it reads that is its own affair: one that exits with 0 has taken the message.

| exit | means |
|---|---|
| 0 | handed off |
| 75 | busy: later, and no failure |
| 65 | never: this message ends as failed |
| any other, a signal, 30 s gone by | a failed attempt; tried again |

It runs in a session of its own, so that Ctrl-C at the listener reaches the listener only, which then lets the program
end or kills it; killed is always the whole process group. What it left running behind a normal exit is left alone.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio

from wakehub.errors import Exit, WakehubError
from wakehub.inbox.refusals import RecordBusy
from wakehub.limits import BACKEND_DEADLINE_SECONDS, MAX_HOOK_VARIABLE_BYTES
from wakehub.relay.backends import Backend, HandedOff, Never, NotNow, Outcome
from wakehub.relay.message import Message, document
from wakehub.visible import visible

_DROPPED: Final = ("CLAUDE_CODE_MESSAGING_", "CLAUDE_CODE_SESSION_ID")
"""A program that the hook starts must not pose as the session that the listener runs in (receive.md §4, 7)."""


class Hook(Backend):
    """Runs `command` for each message; `unread` tells how many rows wait for an address, the one in hand included."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], unread: Callable[[str], int]) -> None:
        """Raises `WakehubError` (exit 2) when there is no such program."""
        self._command = list(command)
        self._environ = {name: value for name, value in environ.items() if not name.startswith(_DROPPED)}
        self._unread = unread
        self.mode = f"each message to {visible(shlex.join(command))}, acknowledged once that exits with 0"
        if shutil.which(self._command[0], path=self._environ.get("PATH")) is None:
            raise WakehubError(
                f"cannot run {visible(self._command[0])}",
                why="there is no such program, or it is not executable",
                remedy="give the program and its arguments behind --exec; a shell line needs sh -c",
                exit=Exit.USAGE,
            )

    def check(self) -> None:
        """It is started anew each time, so there is nothing that could be gone."""

    async def deliver(self, message: Message) -> Outcome:
        try:
            environ = self._environ | variables(message, self._unread(message.row.recipient))
        except RecordBusy as error:
            return NotNow(str(error), busy=True)
        try:
            process = await trio.lowlevel.open_process(
                self._command, stdin=subprocess.PIPE, env=environ, start_new_session=True
            )
        except OSError as error:
            return NotNow(f"cannot start {visible(self._command[0])}: {error.strerror}")
        data = json.dumps(document(message), separators=(",", ":")).encode() + b"\n"
        with trio.move_on_after(BACKEND_DEADLINE_SECONDS):
            try:
                return _outcome(await _run(process, data))
            finally:
                await _end(process)
        return NotNow(f"the hook was killed: it ran for over {BACKEND_DEADLINE_SECONDS} s", in_doubt=True)


def variables(message: Message, unread: int) -> dict[str, str]:
    """What a hook finds in its environment (receive.md §4): printable, and at most 1 KiB each."""
    row = message.row
    values = {
        "ID": row.id,
        "FROM": row.sender,
        "TO": row.recipient,
        "RE": row.re or "",
        "REASON": message.reason,
        "DIGEST": row.digest.hex(),
        "AGE_S": str(message.age_s),
        "REDELIVERY": str(row.redelivery),
        "UNREAD": str(unread),
    }
    return {f"WAKEHUB_{name}": _bounded(visible(value)) for name, value in values.items()}


def _bounded(text: str) -> str:
    return text.encode()[:MAX_HOOK_VARIABLE_BYTES].decode(errors="ignore")


async def _run(process: trio.Process, data: bytes) -> int:
    """Its exit status; it is fed meanwhile, as far as it reads."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_feed, process, data)
        status = await process.wait()
        nursery.cancel_scope.cancel()  # a child that it left behind may hold the pipe open and never read
    return status


async def _feed(process: trio.Process, data: bytes) -> None:
    assert process.stdin is not None
    async with process.stdin:
        with suppress(trio.BrokenResourceError):
            await process.stdin.send_all(data)


async def _end(process: trio.Process) -> None:
    """See that it does not outlive the attempt. While it was not waited for, its group cannot be another's."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError for a group of zombies
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()


def _outcome(status: int) -> Outcome:
    match status:
        case 0:
            return HandedOff("exit 0")
        case Exit.HELD:
            return NotNow(f"the hook is busy (exit {status})", busy=True)
        case Exit.DATA:
            return Never(Exit.DATA, f"the hook refused it for good (exit {status})")
    if status < 0:
        return NotNow(f"the hook was ended by {_signal_name(-status)}", in_doubt=True)
    return NotNow(f"the hook failed (exit {status})")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
