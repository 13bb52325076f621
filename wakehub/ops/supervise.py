"""`wakehub up`: hub and publisher as two child processes in one supervised tree (design.md, Processes; receive.md §6).

Rules. One `up` per state directory (`up.lock`). A child that ends is started again, after a delay that doubles from
250 ms to 10 s and starts anew once a child has lived for 30 s; 75, 77 and 78 are final, since another holder, an unsafe
path or a wrong setting does not go away by itself: the rest is stopped and `up` ends with that status. SIGTERM or
SIGINT stops the tree: the children get SIGTERM and as long as a drain may take; a second signal kills them.

Started in the background by a command that found nothing running (`client.background`), it ends 15 min after the last
lease did, and when its directories are taken away: nobody watches it, so it must not stay for nothing.

Each child has a session of its own, so that Ctrl-C in a terminal reaches `up` alone and a child sees one signal,
not two (its second one would cut its drain short). Children never outlive `up`, not even its kill -9: each holds a
tether, described at `processes.hold_tether`.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio

from wakehub import sockets
from wakehub.client.background import is_background
from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.errors import Exit, WakehubError
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import NoRecord
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import (
    BACKGROUND_CHECK_SECONDS,
    BACKGROUND_IDLE_SECONDS,
    POKE_DEADLINE_MS,
    READY_POLL_MS,
    RESTART_CAP_MS,
    RESTART_FIRST_MS,
    RESTART_RESET_AFTER_SECONDS,
    STOP_GRACE_MS,
)
from wakehub.locks import Lock, live_holder
from wakehub.processes import TETHER
from wakehub.visible import visible

Say = Callable[[str], None]
_FINAL: Final = frozenset({Exit.HELD, Exit.PERMISSION, Exit.CONFIG})


def run_up(config: Config, *, commands: Mapping[str, Sequence[str]] | None = None) -> int:
    """Run the tree until a signal (0) or a child's final status (75, 77, 78); makes the instance if there is none.

    `commands` are the children by name, `child_commands` if not given. Raises `Held` (75) when another `up` runs here,
    `Misconfigured`, `Unsafe`, `CannotCreate` as `ensure_home` does.
    """
    os.umask(0o077)
    for directory in (config.paths.run, config.hub_socket.parent):
        sockets.check_directory(directory)
    for line in ensure_home(config):
        say(line)
    with Lock.acquire(config.paths.lock("up"), what="wakehub up") as lock, hand_down_tether() as tether:
        tree = Tree(commands or child_commands(config), tether)
        until = partial(until_needless, config, lock) if is_background(config.paths) else None
        return trio.run(tree.run, config, until)


async def until_needless(config: Config, lock: Lock) -> str:
    """Return, with the reason, once a tree that nobody watches is of no use any more; `lock` is its own."""
    needed = trio.current_time()
    while trio.current_time() - needed < BACKGROUND_IDLE_SECONDS:
        if not lock.is_in_place():
            return "its state directory was removed or replaced"
        if is_anyone_listening(config):
            needed = trio.current_time()
        await trio.sleep(BACKGROUND_CHECK_SECONDS)
    return f"nobody has listened for {BACKGROUND_IDLE_SECONDS // 60} min"


def is_anyone_listening(config: Config) -> bool:
    """Whether any process holds a name; what cannot be told counts as yes."""
    try:
        with SqliteInbox.open(config.paths.record, create=False) as inbox:
            return bool(inbox.leases.live(Now.read()))
    except NoRecord:
        return False
    except WakehubError:
        return True


def child_commands(config: Config) -> dict[str, list[str]]:
    """The command lines of hub and publisher: this interpreter, this instance, spelt out."""
    wakehub = [sys.executable, "-P", "-m", "wakehub"]
    where = ["--state-dir", str(config.paths.state), "--hub-id", config.hub_id, "--socket", str(config.hub_socket)]
    hub = ["--stats-socket", config.stats_socket, "--allowlist", config.allowlist, "--owner-pub", config.owner_pub]
    return {
        "hub": [*wakehub, "serve", *where, *map(str, hub)],
        "publisher": [*wakehub, "publish", *where],
    }


def say(line: str) -> None:
    """One line for whoever watches; that nobody does any more is no reason to end."""
    try:
        print(visible(line), flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else what is still buffered would fail again at exit
        os.close(nowhere)


@contextlib.contextmanager
def hand_down_tether() -> Iterator[int]:
    """The end of a tether for children to inherit, while the other one stays here and is inherited by nobody."""
    handed_down, kept = os.pipe()
    try:
        yield handed_down
    finally:
        os.close(handed_down)
        os.close(kept)


class Tree:
    """Keeps one child per entry of `commands` alive; each inherits `tether`. `say` gets one line per state change."""

    def __init__(self, commands: Mapping[str, Sequence[str]], tether: int, say: Say = say) -> None:
        self._commands = commands
        self._tether = tether
        self._say = say
        self._running: set[trio.Process] = set()
        self._stop = trio.CancelScope()
        self._status: int = Exit.DONE

    async def run(self, config: Config, until: Callable[[], Awaitable[str]] | None = None) -> int:
        """Run the children of the instance `config` until a signal or a final status; returns the exit status.

        When `until` returns, the tree ends for the reason it gave.
        """
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as around:
                around.start_soon(self._heed, signals)
                if until is not None:
                    around.start_soon(self._end_after, until)
                with self._stop:
                    async with trio.open_nursery() as children:
                        for name, command in self._commands.items():
                            children.start_soon(self._keep, name, command)
                        children.start_soon(self._tell_when_ready, config)
                around.cancel_scope.cancel()
        self._say("up: stopped")
        return self._status

    async def _heed(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if self._stop.cancel_called:
                for process in self._running:
                    process.kill()
            else:
                self._say(f"up: {signal.Signals(number).name}, stopping")
                self._stop.cancel()

    async def _end_after(self, until: Callable[[], Awaitable[str]]) -> None:
        self._say(f"up: {await until()}, stopping")
        self._stop.cancel()

    async def _keep(self, name: str, command: Sequence[str]) -> None:
        delay_ms = RESTART_FIRST_MS
        while True:
            began = trio.current_time()
            status = await self._run_once(name, command)
            if status in _FINAL:
                self._say(f"{name}: ended with {status}, which is final; its own last line says why")
                self._status = status
                self._stop.cancel()
                return
            if trio.current_time() - began >= RESTART_RESET_AFTER_SECONDS:
                delay_ms = RESTART_FIRST_MS
            self._say(f"{name}: ended ({_how(status)}); starting it again in {delay_ms / 1000:g} s")
            await trio.sleep(delay_ms / 1000)
            delay_ms = min(delay_ms * 2, RESTART_CAP_MS)

    async def _run_once(self, name: str, command: Sequence[str]) -> int:
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.DEVNULL,
            pass_fds=(self._tether,),
            env={**os.environ, TETHER: str(self._tether)},
            start_new_session=True,
        )
        self._running.add(process)
        try:
            self._say(f"{name}: running as pid {process.pid}")
            status: int = await process.wait()
            return status
        finally:
            await _end(process)
            self._running.discard(process)

    async def _tell_when_ready(self, config: Config) -> None:
        for name, socket, question in (
            ("hub", config.hub_socket, b""),
            ("publish", config.paths.publish_socket, b'{"v":1,"ids":[]}\n'),
        ):
            while not (self._holds(config.paths.lock(name)) and await _answers(socket, question)):  # noqa: ASYNC110 - another process, nothing to wait on
                await trio.sleep(READY_POLL_MS / 1000)
        self._say(f"ready: the hub answers at {config.hub_socket}")
        self._say("next, in other terminals:")
        self._say("  wakehub listen --as alice")
        self._say("  echo 'hello alice' | wakehub send --as bob --to alice --stdin")
        self._say("  (a new name is enrolled when it is first used; `wakehub enroll NAME` does only that)")

    def _holds(self, lock: Path) -> bool:
        """Whether one of ours has `lock`: beside a foreign hub, it is that which answers at the socket."""
        holder = live_holder(lock)
        return holder is not None and any(process.pid == holder.pid for process in self._running)


async def _end(process: trio.Process) -> None:
    """Let `process` drain, and kill it when it takes longer than it may; returns when it is gone."""
    with trio.CancelScope(shield=True):
        if process.poll() is None:
            process.terminate()
            with trio.move_on_after(STOP_GRACE_MS / 1000):
                await process.wait()
        if process.poll() is None:
            process.kill()
            await process.wait()


def _how(status: int) -> str:
    return f"signal {-status}, {signal.strsignal(-status)}" if status < 0 else f"status {status}"


async def _answers(path: Path, question: bytes) -> bool:
    """Whether something at the socket `path` answers: the hub's challenge unasked, the publisher's close when asked.

    A connection alone proves nothing: the kernel makes it for a stopped process as well.
    """
    with trio.move_on_after(POKE_DEADLINE_MS / 1000):
        try:
            async with await trio.open_unix_socket(str(path)) as stream:
                await stream.send_all(question)
                answer = await stream.receive_some()
                return not answer if question else bool(answer)
        except (OSError, trio.BrokenResourceError):
            return False
    return False
