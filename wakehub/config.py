"""``config.toml`` and the environment become one frozen `Config` (formats.md, Directories).

A file that exists rules over the environment: a job without XDG_RUNTIME_DIR must find the same world as a terminal.
Unknown keys are refused, since a misspelt limit would be no limit.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from wakehub import files, paths
from wakehub.errors import Misconfigured, Unsafe
from wakehub.limits import (
    KEEP_HANDED_OFF_SECONDS,
    MAX_BACKSTOP_SECONDS,
    MAX_HOPS,
    MAX_HUB_ID_BYTES,
    MAX_PAIR_PER_MINUTE,
    MAX_RECORD_SETTING,
    HubLimits,
)
from wakehub.paths import Paths
from wakehub.visible import visible
from wakehub.wire.fields import has_control

DEFAULT_HUB_ID = "wakehub"
_MAX_CONFIG_BYTES = 64 * 1024
_KEYS = {
    "paths": {"run", "state", "keys"},
    "hub": {"id", "socket", "stats_socket", "allowlist", "owner_pub"} | set(HubLimits._fields),
    "listen": {"poll"},
    "record": {"keep_days", "max_hops", "pair_per_minute"},
    "spool": {"dirs"},
}
_DAY_S = 86_400
_WRITTEN: Final = """\
# Chosen once by `wakehub init`; every command uses these, whatever its environment says.
[paths]
run = {}
state = {}
keys = {}
"""
_PLAIN: Final = r'"(/[^"\\\x00-\x1f\x7f]*)"'  # an absolute path in which TOML escapes nothing


class Config(NamedTuple):
    """Everything a command needs to know about this instance.

    `hub_socket`, `stats_socket`, `allowlist` and `owner_pub` are those of `paths` unless set apart; `poll_s` is the
    listener's backstop in seconds (1..60). `keep_s` is how long a message is kept behind its hand-off; `max_hops` and
    `pair_per_minute` are the loop guard's. `spool` are the directories that were configured for envelopes.
    """

    paths: Paths
    hub_id: str
    hub_socket: Path
    stats_socket: Path
    allowlist: Path
    owner_pub: Path
    limits: HubLimits
    poll_s: int = MAX_BACKSTOP_SECONDS
    keep_s: int = KEEP_HANDED_OFF_SECONDS
    max_hops: int = MAX_HOPS
    pair_per_minute: int = MAX_PAIR_PER_MINUTE
    spool: tuple[Path, ...] = ()

    @property
    def spool_dirs(self) -> tuple[Path, ...]:
        """Where envelopes are left and found, in the order of preference."""
        return self.spool or (self.paths.spool,)

    @classmethod
    def at(cls, where: Paths) -> "Config":
        """The defaults for an instance that lives at `where`."""
        return cls(
            where, DEFAULT_HUB_ID, where.hub_socket, where.stats_socket, where.allowlist, where.owner_pub, HubLimits()
        )

    def changed(self, **changes: Any) -> "Config":
        """This configuration with some fields changed; the hub id is checked again.

        Raises `Misconfigured` (exit 78).
        """
        config = self._replace(**{name: value for name, value in changes.items() if value is not None})
        check_hub_id(config.hub_id)
        return config


def load(environ: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration that `environ` points to; without a file, the defaults.

    Raises `Misconfigured` (78) for a bad file, `Unsafe` (77) for one that is not ours or cannot be read.
    """
    return load_at(paths.choose(environ))


def load_at(where: Paths) -> Config:
    """What `load` reads, of the instance at `where`; raises the same."""
    try:
        data = files.read_owned(where.config_file, _MAX_CONFIG_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Config.at(where)
    except PermissionError as error:
        raise Unsafe(
            f"cannot read {visible(str(where.config_file))}",
            why=error.strerror or "permission denied",
            remedy="run as its owner, or allow this path in the sandbox",
        ) from error
    return _parse(data, where)


def _parse(data: bytes, where: Paths) -> Config:
    shown = visible(str(where.config_file))
    try:
        text = data.decode()
        if written := re.fullmatch(re.escape(_WRITTEN).replace(r"\{\}", _PLAIN), text):
            run, state, keys = map(Path, written.groups())
            return Config.at(Paths(run, state, keys, where.config_file))
        import tomllib  # a hook does without, where the file is as `init` wrote it (fault F86)

        found = tomllib.loads(text)
    except ValueError as error:
        raise Misconfigured(f"{shown} is not TOML", why=visible(str(error)), remedy="correct or remove it") from error
    for section, table in found.items():
        known = _KEYS.get(section)
        if known is None or not isinstance(table, dict):
            raise Misconfigured(f"{shown}: unknown section [{visible(section)}]", remedy=f"known are {_names(_KEYS)}")
        for key in table:
            if key not in known:
                raise Misconfigured(
                    f"{shown}: unknown key {visible(key)} in [{section}]", remedy=f"known are {_names(known)}"
                )
    where = where._replace(
        **{key: _path(value, f"[paths] {key}", shown) for key, value in found.get("paths", {}).items()}
    )
    hub: dict[str, Any] = found.get("hub", {})
    try:
        limits = HubLimits(**{key: value for key, value in hub.items() if key in HubLimits._fields}).checked()
    except ValueError as error:
        raise Misconfigured(f"{shown}: [hub] {error}", remedy="correct the value") from error
    apart = {
        ("hub_socket" if key == "socket" else key): _path(hub[key], f"[hub] {key}", shown)
        for key in ("socket", "stats_socket", "allowlist", "owner_pub")
        if key in hub
    }
    poll = found.get("listen", {}).get("poll", MAX_BACKSTOP_SECONDS)
    return Config.at(where).changed(
        hub_id=hub.get("id"),
        limits=limits,
        poll_s=check_poll(poll),
        spool=_paths(found.get("spool", {}).get("dirs", []), "[spool] dirs", shown),
        **_record(found.get("record", {}), shown),
        **apart,
    )


def _record(table: dict[str, Any], shown: str) -> dict[str, int]:
    keep_days = _whole(table, "keep_days", KEEP_HANDED_OFF_SECONDS // _DAY_S, shown)
    return {
        "keep_s": keep_days * _DAY_S,
        "max_hops": _whole(table, "max_hops", MAX_HOPS, shown),
        "pair_per_minute": _whole(table, "pair_per_minute", MAX_PAIR_PER_MINUTE, shown),
    }


def _whole(table: dict[str, Any], key: str, default: int, shown: str) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RECORD_SETTING:
        raise Misconfigured(
            f"{shown}: [record] {key} must be a whole number of 1..{MAX_RECORD_SETTING}", remedy="correct the value"
        )
    return value


def check_hub_id(hub_id: object) -> None:
    """Raise `Misconfigured` unless `hub_id` is 1..64 bytes of UTF-8 without control characters (awh1.md §6)."""
    if not isinstance(hub_id, str) or not 1 <= len(_utf8(hub_id)) <= MAX_HUB_ID_BYTES or has_control(hub_id):
        raise Misconfigured(
            f"hub id '{visible(str(hub_id))}' cannot be used",
            why=f"it must be 1..{MAX_HUB_ID_BYTES} bytes of UTF-8 without control characters",
            remedy="choose another with --hub-id or [hub] id",
        )


def check_poll(seconds: object) -> int:
    """A backstop interval in seconds; raises `Misconfigured` unless it is a whole number of 1..60 (receive.md §3)."""
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 1 <= seconds <= MAX_BACKSTOP_SECONDS:
        raise Misconfigured(
            f"a poll interval of {visible(str(seconds))} s is refused",
            why=f"the guarantee is a poll at most every {MAX_BACKSTOP_SECONDS} s",
            remedy=f"give 1..{MAX_BACKSTOP_SECONDS}",
        )
    return seconds


def write(config: Config) -> bool:
    """Write ``config.toml`` for a new instance (0600); False when one is there already, which is left alone.

    Raises `CannotCreate` (73) when it cannot be written.
    """
    places = (_toml(str(path)) for path in (config.paths.run, config.paths.state, config.paths.keys))
    try:
        files.create(config.paths.config_file, _WRITTEN.format(*places).encode())
    except FileExistsError:
        return False
    return True


def _toml(text: str) -> str:
    """A TOML string. JSON's escapes are TOML's; DEL alone may stand in the one as it is and not in the other."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _path(value: object, name: str, shown: str) -> Path:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise Misconfigured(f"{shown}: {name} is not an absolute path", remedy="write it out from /")
    return Path(value)


def _paths(values: object, name: str, shown: str) -> tuple[Path, ...]:
    if not isinstance(values, list):
        raise Misconfigured(f"{shown}: {name} is not a list", remedy='write ["/absolute/path"]')
    return tuple(_path(value, name, shown) for value in values)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


def _names(names: Any) -> str:
    return ", ".join(sorted(names))
