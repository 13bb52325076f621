"""What a listener was asked to do (receive.md §3): the parsed flags of `listen`, checked where they contradict."""

from dataclasses import dataclass
from typing import Literal

from wakehub.errors import Exit, WakehubError

Format = Literal["agent", "line", "json"]


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The flags of `wakehub listen`.

    `names` are the `--as` (none: chosen by `client.names`), `namespaces` the `--namespace` with their trailing slash.
    `format` None means `line` on a terminal and `agent` otherwise. `once` hands off what is unread and ends; with
    `wait_s` it waits up to that many seconds for the first row. `acknowledge` False peeks: no lease, no session, no
    row changes. `sender` takes only rows from that address. `poll_s` (1..60) overrides the configured backstop.
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

    def __post_init__(self) -> None:
        """Raises `WakehubError` (exit 2) for flags that contradict each other."""
        if self.wait_s is not None and not self.once:
            raise WakehubError("--wait needs --once", remedy="listen --once --wait S", exit=Exit.USAGE)
        if self.wait_s is not None and not 0 <= self.wait_s < float("inf"):
            raise WakehubError(f"cannot wait {self.wait_s} s", remedy="give a number of seconds", exit=Exit.USAGE)
        if self.take_over and not self.acknowledge:
            raise WakehubError("--no-ack takes no name over", remedy="leave one of the two out", exit=Exit.USAGE)
        for namespace in self.namespaces:
            if not namespace.endswith("/"):
                raise WakehubError(
                    f"{namespace!r} is no namespace", remedy=f"write --namespace {namespace}/", exit=Exit.USAGE
                )
