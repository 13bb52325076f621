"""What the daemons tell an operator: one line per state change, on stderr.

JSON when stderr is no terminal, for people otherwise. Every text value is escaped. A cause that repeats is counted
and told again only now and then. No message body, key, signature or token is ever handed to a log call. A line that
cannot be written (the reader has gone, the disk is full) is lost; the program goes on.
"""

import contextlib
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any, cast

from wakehub import files
from wakehub.limits import LOG_REPEAT_SECONDS
from wakehub.visible import visible


@contextlib.contextmanager
def _as_if_absent(*packages: str) -> Iterator[None]:
    """Imports inside do not find these optional packages, unless they are loaded already."""
    hidden = [package for package in packages if package not in sys.modules]
    modules = cast(dict[str, Any], sys.modules)
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for package in hidden:
            del modules[package]


# Where they are installed, structlog loads them for tracebacks in colour: 4.5 MiB of a daemon for what it never prints.
with _as_if_absent("rich", "better_exceptions"):
    import structlog

_STDERR = 2
_MAX_TEXT = 400
_MAX_CAUSES = 512


def configure(program: str) -> Any:
    """Set logging up for this process and return its logger, bound to `program` ("hub", "publisher")."""
    renderer: Any = structlog.processors.JSONRenderer()
    if sys.stderr is not None and sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _escape,
        renderer,
    ]
    structlog.configure(
        processors=processors,
        logger_factory=_Stderr,
        cache_logger_on_first_use=True,
    )
    return structlog.get_logger().bind(program=program)


class _Stderr:
    """Where rendered lines go, whatever their level. Unbuffered: what failed is not tried again at the exit."""

    def __init__(self, *_: object) -> None:
        pass

    def msg(self, line: str) -> None:
        if sys.stderr is None:
            return  # we were started without: descriptor 2 is something else by now
        with contextlib.suppress(OSError):
            files.write_all(_STDERR, line.encode("utf-8", "backslashreplace") + b"\n")

    debug = info = warning = error = critical = msg


def _escape(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    first = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return first | {key: _shown(key, value) for key, value in event.items() if key not in first}


def _shown(key: str, value: Any) -> Any:
    if key == "exception":
        return visible(value, keep="\n")
    return visible(value)[:_MAX_TEXT] if isinstance(value, str | bytes) else value


class Repeats:
    """Says when a cause that keeps coming is worth a line: the first time, then at most once per 10 s with a count."""

    def __init__(self) -> None:
        self._causes: dict[tuple[str, ...], tuple[float, int]] = {}

    def due(self, cause: tuple[str, ...], now_s: float) -> int | None:
        """How many occurrences a line about `cause` stands for now (≥ 1), or None when none is due.

        `now_s` is monotonic seconds. At most 512 causes are held; then all are begun anew.
        """
        told_at, held_back = self._causes.get(cause, (None, 0))
        if told_at is not None and now_s - told_at < LOG_REPEAT_SECONDS:
            self._causes[cause] = (told_at, held_back + 1)
            return None
        if told_at is None and len(self._causes) >= _MAX_CAUSES:
            self._causes.clear()
        self._causes[cause] = (now_s, 0)
        return held_back + 1
