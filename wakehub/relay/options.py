"""What a listener was asked to do (receive.md §3): the parsed flags of `listen`, checked where they contradict."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wakehub.errors import Exit, WakehubError
from wakehub.invocation import SHORT
from wakehub.limits import SESSION_EXIT_AFTER_SECONDS
from wakehub.relay.message import after_workspace, workspace

Format = Literal["agent", "line", "json"]


@dataclass(frozen=True, slots=True)
class ToHook:
    """`--exec`: each message to a program, given with its arguments."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToFile:
    """`--backend file`: each message at the end of `path` (absolute)."""

    path: Path
    format: Format = "agent"


@dataclass(frozen=True, slots=True)
class ToClaude:
    """`--backend claude`: each message into a running Claude Code session.

    `session` names the one that every message goes to. `agents` restricts a namespace to these addresses, given after
    the workspace. The listener ends when no session has been there for `exit_after_s` seconds; 0: never.
    """

    session: str | None = None
    agents: frozenset[str] | None = None
    exit_after_s: int = SESSION_EXIT_AFTER_SECONDS


To = ToHook | ToFile | ToClaude


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The flags of `wakehub listen`.

    `names` are the `--as` (none: chosen by `client.names`), `namespaces` the `--namespace` with their trailing slash.
    `format` None means `line` on a terminal and `agent` otherwise. `once` hands off what is unread and ends; with
    `wait_s` it waits up to that many seconds for the first row. `acknowledge` False peeks: no lease, no session, no
    row changes. `sender` takes only rows from that address. `poll_s` (1..60) overrides the configured backstop.
    `to` is where messages go, None for standard output. `session` is the logical session whose names are taken back
    without asking; None: `$WAKEHUB_SESSION`. `status` has everybody who looks told that the agent is running.
    `call` is how messages name wakehub in their reply hints (`invocation.call`).
    """

    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    format: Format | None = None
    once: bool = False
    wait_s: float | None = None
    acknowledge: bool = True
    sender: str | None = None
    take_over: bool = False
    poll_s: int | None = None
    to: To | None = None
    session: str | None = None
    status: bool = False
    call: str = SHORT

    def __post_init__(self) -> None:
        """Raises `WakehubError` (exit 2) for flags that contradict each other."""
        if self.wait_s is not None and not self.once:
            raise WakehubError("--wait needs --once", remedy="listen --once --wait S", exit=Exit.USAGE)
        if self.wait_s is not None and not 0 <= self.wait_s < float("inf"):
            raise WakehubError(f"cannot wait {self.wait_s} s", remedy="give a number of seconds", exit=Exit.USAGE)
        if self.status and not self.acknowledge:
            raise WakehubError("--no-ack holds no name", remedy="leave out that, or --status", exit=Exit.USAGE)
        if self.take_over and not self.acknowledge:
            raise WakehubError("--no-ack takes no name over", remedy="leave one of the two out", exit=Exit.USAGE)
        for namespace in self.namespaces:
            if not namespace.endswith("/"):
                raise WakehubError(f"{namespace!r} is no namespace", remedy=f"write {namespace}/", exit=Exit.USAGE)
        if self.to is not None:
            self._check_backend()

    def _check_backend(self) -> None:
        if not self.acknowledge:
            raise WakehubError("--no-ack only looks", remedy="leave it out, or the backend", exit=Exit.USAGE)
        if self.format is not None:
            raise WakehubError(
                "--format is for standard output",
                why="a hook gets JSON, a session blocks for agents",
                remedy="leave it out; for a file: --opt format=…",
                exit=Exit.USAGE,
            )
        if not isinstance(self.to, ToClaude):
            return
        if self.to.session is not None and self.namespaces:
            raise WakehubError(
                "--opt session= is one session, a namespace has many",
                remedy="leave it out, or give a name with --as",
                exit=Exit.USAGE,
            )
        if self.to.agents is not None and not self.namespaces:
            raise WakehubError("--opt agents= restricts a namespace", remedy="leave it out", exit=Exit.USAGE)
        for agent in sorted(self.to.agents or ()):
            self._check_agent(agent)

    def _check_agent(self, agent: str) -> None:
        """An agent is given after the workspace: `a` may be in ``acme/``, in ``acme/eng/`` it is `eng/a`."""
        for namespace in self.namespaces:
            if f"{workspace(namespace)}/{agent}".startswith(namespace) and not agent.startswith(namespace):
                return
        if agent in map(after_workspace, self.names):
            return
        meant = self.namespaces[0].partition("/")[2] + agent.removeprefix(self.namespaces[0])
        raise WakehubError(
            f"--opt agents={agent} is nobody in {' or '.join(self.namespaces)}",
            why="agents are given after the workspace",
            remedy=f"leave it out, or perhaps --opt agents={meant}",
            exit=Exit.USAGE,
        )
