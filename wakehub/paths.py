"""Every location in one place (design.md, Where things lie; formats.md, Directories).

Three directories are chosen once, by `init`, and written into ``config.toml``; everything else is named relative to
them. Environment and platform directories matter only for that choice.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from wakehub.errors import Misconfigured
from wakehub.visible import visible

_XDG: Final = {
    "user_config_path": ("XDG_CONFIG_HOME", ".config"),
    "user_state_path": ("XDG_STATE_HOME", ".local/state"),
}


class Paths(NamedTuple):
    """Where one instance of wakehub lives; all absolute. `run` holds sockets, `state` the record, `keys` the keys."""

    run: Path
    state: Path
    keys: Path
    config_file: Path

    @property
    def hub_socket(self) -> Path:
        return self.run / "hub.sock"

    @property
    def stats_socket(self) -> Path:
        return self.run / "stats.sock"

    @property
    def publish_socket(self) -> Path:
        return self.run / "publish.sock"

    @property
    def allowlist(self) -> Path:
        return self.run / "allowlist.jws"

    @property
    def owner_key(self) -> Path:
        return self.keys / "owner.key"

    @property
    def owner_pub(self) -> Path:
        return self.keys / "owner.pub"

    @property
    def agents(self) -> Path:
        return self.keys / "agents"

    def agent_key(self, agent_id: str) -> Path:
        return self.agents / f"{_stem(agent_id)}.key"

    def bundle(self, agent_id: str) -> Path:
        return self.agents / f"{_stem(agent_id)}.a2a-hub.json"

    @property
    def record(self) -> Path:
        return self.state / "record.db"

    @property
    def blobs(self) -> Path:
        """The contents of attachments, by their SHA-256."""
        return self.state / "blobs"

    @property
    def files(self) -> Path:
        """The attachments that were handed over, by message."""
        return self.state / "files"

    @property
    def spool(self) -> Path:
        """Where messages are left when the record cannot be written, unless the configuration says otherwise."""
        return self.state / "spool"

    @property
    def audit(self) -> Path:
        return self.state / "audit.jsonl"

    @property
    def claims(self) -> Path:
        return self.state / "claims"

    def claim(self, address: str) -> Path:
        """Which session is the shared endpoint `address`."""
        return self.claims / f"{_stem(address)}.json"

    @property
    def log(self) -> Path:
        return self.state / "up.log"

    def lock(self, name: str) -> Path:
        """The lock file of ``hub``, ``publish``, ``up`` or ``init``."""
        return self.state / f"{name}.lock"


def _stem(agent_id: str) -> str:
    from wakehub.identity.addresses import file_stem  # a layer above this one

    return file_stem(agent_id)


def config_file(environ: Mapping[str, str]) -> Path:
    """Where ``config.toml`` lies or would lie: WAKEHUB_HOME, systemd's CONFIGURATION_DIRECTORY, or the platform's."""
    home = environ.get("WAKEHUB_HOME")
    if home:
        return Path(home).absolute() / "config.toml"
    given = environ.get("CONFIGURATION_DIRECTORY")
    if given:
        return Path(given.split(":")[0]) / "config.toml"
    return _platform("user_config_path") / "config.toml"


def choose(environ: Mapping[str, str]) -> Paths:
    """The directories that `init` takes: WAKEHUB_HOME, else systemd's, else the platform's."""
    configured = config_file(environ)
    home = environ.get("WAKEHUB_HOME")
    if home:
        root = Path(home).absolute()
        return Paths(root / "run", root / "state", root / "keys", configured)
    state = _first(environ, "WAKEHUB_STATE_DIR", "STATE_DIRECTORY") or _platform("user_state_path")
    run = _first(environ, "RUNTIME_DIRECTORY")
    if run is None:
        runtime = environ.get("XDG_RUNTIME_DIR")
        run = Path(runtime) / "wakehub" if runtime else state / "run"
    return Paths(run, state, configured.parent / "keys", configured)


def _first(environ: Mapping[str, str], *names: str) -> Path | None:
    for name in names:
        value = environ.get(name)
        if value:
            return Path(value.split(":")[0]).absolute()
    return None


def _platform(which: str) -> Path:
    try:
        if sys.platform == "linux":
            return _xdg(*_XDG[which]) / "wakehub"
        import platformdirs

        found = getattr(platformdirs, which)("wakehub", appauthor=False)
    except RuntimeError as error:  # neither HOME nor the user database knows a home directory
        raise Misconfigured(
            "there is no home directory", why=visible(str(error)), remedy="set WAKEHUB_HOME to an absolute path"
        ) from error
    assert isinstance(found, Path)
    return found


def _xdg(variable: str, below_home: str) -> Path:
    """What platformdirs says on Linux (a test compares them), which is too slow to load for a hook (fault F86)."""
    return Path(os.environ.get(variable, "").strip() or Path.home() / below_home)
