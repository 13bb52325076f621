"""`wakehub install` and `uninstall`: what is written into other programs' places, and how it gets out again.

A `Plan` is made first and shown as a diff; only `carry_out` changes anything. What was written is noted in
``state/installed/TARGET.json``: each file, what it was before, and the digest of what it became. So removing gives back

    the very bytes from before    if the file is still what we wrote
    all but our entries           if a settings file was changed since
    nothing, it stays             if a file of ours was changed since

To install again is to undo and do in one step. Services are never started or stopped here; what to run is said. Only a
`wakehub up` of the background is ended first, since a service would find everything taken.
"""

import base64
import contextlib
import difflib
import errno
import hashlib
import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from wakehub import files, invocation
from wakehub.client import background
from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.errors import BadData, Held, Misconfigured, Unsafe, WakehubError
from wakehub.limits import MAX_SETTINGS_BYTES
from wakehub.ops import json_text
from wakehub.relay.backends.claude import directory, inbound
from wakehub.visible import visible

Target = Literal["claude", "systemd", "launchd"]

_HOOKS: Final = {"SessionStart": "session-start", "UserPromptSubmit": "prompt", "Stop": "stop"}
_HOOK_SECONDS: Final = 10
_MAX_NOTE_BYTES: Final = 4 * MAX_SETTINGS_BYTES
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./@+:,=~-]+")
_UNITS: Final = ("wakehub.service", "wakehub-publish.service")
_AGENTS: Final = ("wakehub.hub.plist", "wakehub.publisher.plist")
_SWITCH: Final = "wakehub wakehub-publish"


@dataclass(frozen=True, slots=True)
class Change:
    """One file: its content before (None: there is none) and after (None: it is removed)."""

    path: Path
    before: bytes | None = field(repr=False)
    after: bytes | None = field(repr=False)

    def diff(self) -> str:
        """The change as a unified diff, made visible; empty when there is none."""
        old, new = ((each or b"").decode("utf-8", "replace").splitlines() for each in (self.before, self.after))
        was, will = (str(self.path) if each is not None else os.devnull for each in (self.before, self.after))
        return "\n".join(visible(line) for line in difflib.unified_diff(old, new, was, will, lineterm=""))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: `changes`, what is to be noted of them (None: nothing is installed then), and in words what
    stands in the way or is left (`notes`) and what to run behind it (`next`)."""

    target: Target
    changes: tuple[Change, ...]
    noted: dict[str, Any] | None
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()


def plan(target: Target, config: Config, environ: Mapping[str, str] = os.environ) -> Plan:
    """What `install` does. Raises `BadData` (65) for settings that cannot be read with certainty, `Held` (75) for a
    file in the way that is not ours, `Misconfigured` (78) for paths that no unit can hold, `Unsafe` (77)."""
    return _claude(config, environ) if target == "claude" else _units(target, config, environ)


def plan_removal(target: Target, config: Config, environ: Mapping[str, str] = os.environ) -> Plan:
    """What `uninstall` does; no changes when nothing is installed. Raises as `plan` does, and `Held` (75) for units
    that are still switched on."""
    if target == "claude":
        _read(_settings(environ))  # what cannot be read may hold our hooks, whatever was noted
    noted = _noted(config, target)
    if noted is None:
        return Plan(target, (), None)
    if target == "systemd":
        _refuse_enabled(environ)
    changes, notes = [], []
    for path, note in ((Path(path), note) for path, note in noted["files"].items()):
        current = _read(path)
        if current is None:
            continue
        if target != "claude" and _digest(current) != note["after"]:
            notes.append(f"{visible(str(path))} was changed since, and stays")
            continue
        if (after := _undone(path, current, note)) != current:
            changes.append(Change(path, current, after))
    return Plan(target, tuple(changes), None, tuple(notes))


def carry_out(plan: Plan, config: Config) -> list[str]:
    """Do what `plan` says, and tell in lines what was done besides. Raises `Held` (75) when a file is no longer what
    the plan was made for; `CannotCreate` (73)."""
    told = []
    for change in plan.changes:
        if _read(change.path) != change.before:
            raise Held(f"{visible(str(change.path))} was changed meanwhile", remedy="run this again")
    if plan.noted is not None:
        told += ensure_home(config)
        files.private_directory(_note(config, plan.target).parent)
        files.replace(_note(config, plan.target), json.dumps(plan.noted).encode())
        if plan.target != "claude" and (pid := background.stop(config.paths)) is not None:
            told.append(f"stopped the `wakehub up` of the background (pid {pid})")
    for change in plan.changes:
        _put(change)
    if plan.noted is None:
        for made in (_noted(config, plan.target) or {}).get("made", ()):  # the innermost first
            with contextlib.suppress(OSError):  # what is not empty stays
                os.rmdir(made)
        _note(config, plan.target).unlink(missing_ok=True)
    return told


# --- Claude Code ---


def _claude(config: Config, environ: Mapping[str, str]) -> Plan:
    path = _settings(environ)
    current = _read(path)
    earlier = _noted(config, "claude")
    note = _files(earlier).get(str(path))
    base = _undone(path, current, note) if current is not None and note is not None else current
    added = {event: _entry(shlex.join([*invocation.words(environ), "hook", name])) for event, name in _HOOKS.items()}
    after = _with_hooks(path, base, added)
    noted = _to_note({path: (base, after)}, earlier, added)
    _, found = inbound.look(directory(environ))
    notes = [f"{finding.detail}; next: {finding.remedy}" for finding in found]
    is_off = json_text.parse(after, visible(str(path))).get("disableAllHooks") is True
    if is_off:
        notes.append(f'no hook runs: {visible(str(path))} says "disableAllHooks": true; next: take that out')
    change = (Change(path, current, after),) if current != after else ()
    return Plan("claude", change, noted, tuple(notes), () if is_off else ("sessions that begin from now on use it",))


def _settings(environ: Mapping[str, str]) -> Path:
    """The settings file of Claude Code; a link leads to the file that is changed."""
    return Path(os.path.realpath(directory(environ) / "settings.json"))


def _entry(line: str) -> dict[str, Any]:
    return {"hooks": [{"type": "command", "command": line, "timeout": _HOOK_SECONDS}]}


def _with_hooks(path: Path, base: bytes | None, added: dict[str, dict[str, Any]]) -> bytes:
    if not base:  # an empty file says as little as none
        return (json.dumps({"hooks": {event: [entry] for event, entry in added.items()}}, indent=2) + "\n").encode()
    shown = visible(str(path))
    hooks = json_text.parse(base, shown).get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(hooks.get(event, []), list) for event in added):
        raise BadData(f"{shown} cannot be changed", why="its hooks are not what they must be", remedy="mend them")
    text = base.decode()
    for event, entry in added.items():
        text = json_text.append(text, ("hooks", event), entry)
    return text.encode()


# --- services ---


def _units(target: Target, config: Config, environ: Mapping[str, str]) -> Plan:
    earlier = _noted(config, target)
    noted = _files(earlier)
    changes, all_files = [], {}
    for path, after in _rendered(target, config, environ).items():
        current = _read(path)
        note = noted.get(str(path))
        if current not in (None, after) and (note is None or _digest(current or b"") != note["after"]):
            raise Held(
                f"{visible(str(path))} is there and is not what wakehub wrote",
                why="it is never replaced",
                remedy="move it away, or go on with it as it is",
            )
        all_files[path] = (None, after)
        if current != after:
            changes.append(Change(path, current, after))
    notes = () if (target == "launchd") == (sys.platform == "darwin") else (f"this system has no {target}",)
    return Plan(target, tuple(changes), _to_note(all_files, earlier), notes, _to_start(target, list(all_files)))


def _rendered(target: Target, config: Config, environ: Mapping[str, str]) -> dict[Path, bytes]:
    """The shipped files with the paths of this installation, by where they belong."""
    home = Path(environ.get("HOME") or Path.home())
    places = config.paths
    for path in (*invocation.program(), places.config_file.parent, places.run, places.state, places.keys):
        if not _PLAIN.fullmatch(str(path)):
            raise Misconfigured(
                f"{visible(str(path))} cannot be written into a unit",
                why="it has characters that mean something there",
                remedy="write the unit yourself: wakehub guide operate",
            )
    if target == "systemd":
        where = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user"
        return {where / name: _unit(_shipped(name), config, environ).encode() for name in _UNITS}
    where = home / "Library" / "LaunchAgents"
    return {where / name: _agent(_shipped(name), config).encode() for name in _AGENTS}


def _shipped(name: str) -> str:
    """A unit file as it is shipped: in the package, or beside it where that is worked on."""
    package = Path(__file__).resolve().parents[1]
    beside = package.parent / ("systemd" if name.endswith(".service") else "launchd") / name
    packaged = package / "units" / name
    return (packaged if packaged.exists() else beside).read_text("utf-8")


def _unit(text: str, config: Config, environ: Mapping[str, str]) -> str:
    places = config.paths
    for generic, ours in (
        ("%h/.local/bin/wakehub", shlex.join(invocation.program())),
        ("%h/.config/wakehub/keys", str(places.keys)),
        ("%h/.config/wakehub", str(places.config_file.parent)),
        ("%h/.local/state/wakehub", str(places.state)),
        ("%t/wakehub", str(places.run)),
    ):
        text = text.replace(generic, ours)
    if str(places.run) != f"{environ.get('XDG_RUNTIME_DIR')}/wakehub":  # then it is not systemd's to make
        text = re.sub(r"^RuntimeDirectory.*\n", "", text, flags=re.MULTILINE)
    if any(each.is_relative_to(top) for each in (places.run, places.state) for top in ("/tmp", "/var/tmp")):
        text = text.replace("PrivateTmp=yes", "PrivateTmp=no")
    return text


def _agent(text: str, config: Config) -> str:
    text = text.replace('"$HOME/.local/bin/wakehub"', shlex.join(invocation.program()))
    return text.replace(
        "unset WAKEHUB_HOME;",
        f"unset WAKEHUB_HOME; export CONFIGURATION_DIRECTORY={config.paths.config_file.parent};",
    )


def _to_start(target: Target, paths: list[Path]) -> tuple[str, ...]:
    if target == "systemd":
        return (f"systemctl --user daemon-reload && systemctl --user enable --now {_SWITCH}", "wakehub doctor")
    return (*(f"launchctl bootstrap gui/{os.getuid()} {path}" for path in paths), "wakehub doctor")


def to_stop(target: Target) -> tuple[str, ...]:
    """What to run before the files of services are removed."""
    if target == "systemd":
        return (f"systemctl --user disable --now {_SWITCH}",)
    if target == "launchd":
        return tuple(f"launchctl bootout gui/{os.getuid()}/{name.removesuffix('.plist')}" for name in _AGENTS)
    return ()


def _refuse_enabled(environ: Mapping[str, str]) -> None:
    home = Path(environ.get("HOME") or Path.home())
    wants = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "systemd/user/default.target.wants"
    for name in _UNITS:
        if os.path.lexists(wants / name):
            raise Held(f"{name} is switched on", why="systemd needs its file", remedy=to_stop("systemd")[0])


# --- what was done ---


def _note(config: Config, target: Target) -> Path:
    return config.paths.state / "installed" / f"{target}.json"


def _noted(config: Config, target: Target) -> dict[str, Any] | None:
    """What was written for `target`; None when nothing is installed."""
    path = _note(config, target)
    try:
        found: dict[str, Any] = json.loads(files.read_owned(path, _MAX_NOTE_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise Unsafe(f"{visible(str(path))} cannot be read", why=str(error), remedy="remove it") from error
    return found


def _files(noted: dict[str, Any] | None) -> dict[str, Any]:
    return noted["files"] if noted else {}


def _to_note(
    written: Mapping[Path, tuple[bytes | None, bytes]], earlier: dict[str, Any] | None, added: object = None
) -> dict[str, Any]:
    made = {str(each): None for path in written for each in path.parents if not os.path.lexists(each)}
    return {
        "version": 1,
        "made": list(made | dict.fromkeys((earlier or {}).get("made", ()))),
        "files": {
            str(path): {
                "before": None if before is None else base64.b64encode(before).decode(),
                "after": _digest(after),
                "added": added,
            }
            for path, (before, after) in written.items()
        },
    }


def _undone(path: Path, current: bytes, note: dict[str, Any]) -> bytes | None:
    """What `path` is without us; None when there was nothing before."""
    if _digest(current) == note["after"]:
        return None if note["before"] is None else base64.b64decode(note["before"])
    json_text.parse(current, visible(str(path)))
    text = current.decode()
    for event, entry in (note["added"] or {}).items():
        text = json_text.remove(text, ("hooks", event), entry)
    return text.encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(path: Path) -> bytes | None:
    """What is in a file of another program; None when there is none."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # no FIFO is waited for
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            data = file.read(MAX_SETTINGS_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unsafe(
            f"{visible(str(path))} cannot be read", why=error.strerror or "the read failed", remedy="mend that first"
        ) from error
    if len(data) > MAX_SETTINGS_BYTES:
        raise BadData(f"{visible(str(path))} is over {MAX_SETTINGS_BYTES} bytes", remedy="look what it is")
    return data


def _put(change: Change) -> None:
    """Write or remove the file in one step; one that was there keeps its mode."""
    path = change.path
    if change.after is None:
        path.unlink()
        return
    mode = 0o644 if change.before is None else stat.S_IMODE(path.stat().st_mode)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WakehubError(f"cannot make {visible(str(path.parent))}", why=str(error), remedy="make it") from error
    with files.draft(path.parent, path.name) as made:
        files.write_all(made.fd, change.after)
        os.fchmod(made.fd, mode)
        made.rename(path.name)
