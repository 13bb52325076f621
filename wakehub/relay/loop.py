"""`wakehub listen`: settles names, identity and output, and sets the listener to work (receive.md §2, §3)."""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from wakehub.client import background
from wakehub.client import names as own_names
from wakehub.client.credentials import Credentials, check_environment, obtain
from wakehub.client.home import enrolled, ensure_home
from wakehub.config import Config, check_poll
from wakehub.errors import Exit, Held
from wakehub.identity.addresses import check_namespace
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import HeldBy, Lease
from wakehub.inbox.refusals import NotStored, RecordBusy, RecordReplaced
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.inbox.tenure import is_namespace
from wakehub.processes import ProcessId
from wakehub.relay.backends import Backend, OutputGone
from wakehub.relay.backends.choice import make
from wakehub.relay.backends.stdout import Output
from wakehub.relay.endings import Endings, endings
from wakehub.relay.keyring import Keyring
from wakehub.relay.listener import Assignment, Listener
from wakehub.relay.notices import clock, tell, wrong_box
from wakehub.relay.options import ListenOptions
from wakehub.relay.peek import Peek
from wakehub.visible import visible

_STDOUT: Final = 1
_RUNNING: Final = "running"


@dataclass(frozen=True, slots=True)
class Names:
    """The names to listen under, and in words where they come from; `agent_id` is the one of the hub session."""

    held: tuple[str, ...]
    source: str

    @property
    def agent_id(self) -> str:
        """The first address; for namespaces alone, ``relay`` under the first (formats.md, Leases)."""
        addresses = self.addresses
        return addresses[0] if addresses else f"{self.held[0]}relay"

    @property
    def addresses(self) -> list[str]:
        return [name for name in self.held if not is_namespace(name)]

    def __str__(self) -> str:
        return f"{', '.join(self.held)} ({self.source})"


def run(config: Config, options: ListenOptions, *, environ: Mapping[str, str] = os.environ, fd: int = _STDOUT) -> Exit:
    """Listen as `options` say, messages to descriptor `fd` or a backend; the exit status, 0 or 3 (nothing was there).

    Blocks until it is over and runs its own Trio loop; SIGTERM, SIGINT and SIGHUP end it with 0. Raises `Held` (75: a
    name is held, or was taken), `OutputGone` (74), and what home, record and identity raise.
    """
    parent = os.getppid()  # at once: who it was tells later whether it is still there
    config = config.changed(poll_s=None if options.poll_s is None else check_poll(options.poll_s))
    names = choose_names(options, environ)
    for line in ensure_home(config):
        tell(line)
    with SqliteInbox.open(config.paths.record) as inbox:
        if options.to is not None:
            backend = make(options.to, names.held, config.paths, inbox, environ)
            return trio.run(_work, config, options, names, inbox, backend, environ, parent)
        output = _output(fd, options)
        if options.acknowledge:
            return trio.run(_work, config, options, names, inbox, output, environ, parent)
        return trio.run(_peek, config, options, names, inbox, output, parent)


def _output(fd: int, options: ListenOptions) -> Output:
    if fd == _STDOUT and sys.stdout is None:  # whatever was opened since could be descriptor 1 by now
        raise OutputGone("standard output is closed")
    form = options.format or ("line" if os.isatty(fd) else "agent")
    return Output(fd, form, patient=not options.once)


async def _peek(
    config: Config, options: ListenOptions, names: Names, inbox: Inbox, output: Output, parent: int
) -> Exit:
    with endings(parent) as ends:
        return await Peek(options, names.held, inbox, output, Keyring(config.paths, tell)).run(ends)


async def _work(
    config: Config,
    options: ListenOptions,
    names: Names,
    inbox: Inbox,
    backend: Backend,
    environ: Mapping[str, str],
    parent: int,
) -> Exit:
    with endings(parent) as ends:  # before a name is taken, so that no signal leaves one behind
        return await work(config, options, names, inbox, backend, environ, ends)


async def work(
    config: Config,
    options: ListenOptions,
    names: Names,
    inbox: Inbox,
    backend: Backend,
    environ: Mapping[str, str],
    ends: Endings,
    *,
    is_held: Callable[[], None] = lambda: None,
) -> Exit:
    """Take the names, call `is_held`, and hand rows to `backend` until it is over; then the names are free again.

    The exit status is the one of `run`; raises as that does.
    """
    credentials, is_new = enrol(config, names, inbox, environ)
    lease = _acquire(inbox, names, options, environ)
    try:
        is_held()
        _say_mode(names, options, backend)
        if not options.once and (hint := wrong_box(inbox, names.held, Now.read())):
            tell(hint)
        if not options.once or options.wait_s:  # a look that does not wait needs nobody to wake it
            await _see_to_daemons(config, ends, environ)
        assignment = Assignment(options, names.held, config, credentials, is_new)
        return await Listener(assignment, inbox, lease, backend, Keyring(config.paths, tell)).run(ends)
    finally:
        with suppress(RecordBusy, NotStored, RecordReplaced):  # then it ends with this process
            inbox.leases.release(lease.token, Now.read())


async def _see_to_daemons(config: Config, ends: Endings, environ: Mapping[str, str]) -> None:
    """Start hub and publisher if nothing runs and it is for us to do; a signal is heeded meanwhile."""
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await ends.signalled()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        await trio.to_thread.run_sync(background.start, config, tell, environ, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


def choose_names(options: ListenOptions, environ: Mapping[str, str]) -> Names:
    """The names that were given, checked, each once; else the own name. Raises as `client.names.choose` does."""
    given = [*map(own_names.check_given, options.names), *map(check_namespace, options.namespaces)]
    if given:
        return Names(tuple(dict.fromkeys(given)), "as given")
    own = own_names.choose(None, environ)
    return Names((own.name,), f"from {own.source}")


def enrol(config: Config, names: Names, inbox: Inbox, environ: Mapping[str, str]) -> tuple[Credentials, bool]:
    """See that every address is enrolled and its box that enrolment's; the credentials of the hub session, and whether
    its name was enrolled just now."""
    check_environment(config, names.agent_id, environ)  # before a name is enrolled that it is not for
    credentials, agent = obtain(config, names.agent_id, environ)
    is_new = agent is not None and agent.newly_enrolled
    agents = [agent, *(obtain(config, name, environ)[1] for name in names.addresses if name != names.agent_id)]
    for each in filter(None, agents):
        inbox.open_box(each.agent_id, each.generation, Now.read())
        if each.newly_enrolled:
            tell(enrolled(config, each.agent_id))
    return credentials, is_new


def _acquire(inbox: Inbox, names: Names, options: ListenOptions, environ: Mapping[str, str]) -> Lease:
    answer = inbox.leases.acquire(
        names.held,
        ProcessId.own(),
        names.agent_id,
        Now.read(),
        session=options.session or environ.get("WAKEHUB_SESSION") or None,
        host=socket.gethostname(),
        take_over=options.take_over,
        status=_RUNNING if options.status else "",
    )
    if isinstance(answer, Lease):
        return answer
    raise _held(answer)


def _held(answer: HeldBy) -> Held:
    lease = answer.lease
    host = f" on {visible(lease.host)}" if lease.host not in ("", socket.gethostname()) else ""
    other = f"listen as {answer.alternative}, or " if answer.alternative else ""
    return Held(
        f"{answer.name} is held by another listener",
        why=f"pid {lease.process.pid}{host}, since {clock(lease.since_ms)}",
        remedy=f"{other}take the name over: --take-over, in Python take_over=True",
    )


def _say_mode(names: Names, options: ListenOptions, backend: Backend) -> None:
    if not options.once:
        tell(f"listening as {names} until stopped; {backend.mode}")
    elif names.source != "as given":
        tell(f"listening as {names}")
