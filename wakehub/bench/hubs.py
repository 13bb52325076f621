"""The hub under test: a real `wakehub serve` in a private home, with a signed allowlist and full verification."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wakehub import files
from wakehub.bench.dialects import agent_id
from wakehub.bench.dialects.awh1 import TOPIC
from wakehub.bench.stage import PYTHON, Stage, await_true
from wakehub.config import DEFAULT_HUB_ID
from wakehub.identity import allowlist, keys
from wakehub.identity.allowlist import POSSESSION_PROOF, Allowlist, Entry
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair
from wakehub.identity.stamps import NS
from wakehub.limits import DEFAULT_DELEGATION_SECONDS, MAX_ALLOWLIST_VALID_SECONDS
from wakehub.paths import Paths


@dataclass
class Hub:
    """One instance with `agents` enrolled agents; `ceiling` is its limit of connections (None: the default).

    The allowlist is signed once, for twelve hours, since no publisher runs here. `bundles` is the agents' file.
    """

    stage: Stage
    agents: int
    ceiling: int | None = None
    name: str = "wakehub"
    process: "subprocess.Popen[bytes]" = field(init=False)
    paths: Paths = field(init=False)
    bundles: Path = field(init=False)

    def __post_init__(self) -> None:
        home = self.stage.directory("h")
        self.paths = Paths(home / "run", home / "state", home / "keys", home / "config.toml")
        for directory in (self.paths.run, self.paths.state, self.paths.keys):
            directory.mkdir(0o700)
        self._home = home
        self._log = home / "hub.log"
        self.bundles = self.paths.keys / "bundles"
        self._enrol()

    def start(self, cpus: Sequence[int]) -> None:
        """Start the process on `cpus` (empty: any) and wait until it says that it is ready."""
        said = self._said()
        ceiling = ["--max-connections", str(self.ceiling)] if self.ceiling else []
        self.process = self.stage.start(
            [*PYTHON, "wakehub", "serve", *ceiling],
            log=self._log,
            environ={"WAKEHUB_HOME": str(self._home)},
            cpus=cpus,
        )
        await_true("the hub", lambda: self._said() > said, process=self.process, log=self._log)

    def kill(self) -> None:
        """kill -9."""
        self.stage.end(self.process)

    @property
    def address(self) -> str:
        return str(self.paths.hub_socket)

    @property
    def options(self) -> dict[str, Any]:
        """What the load client's dialect needs."""
        return {"bundles": str(self.bundles)}

    def _said(self) -> int:
        """How often a hub here has said that it is ready."""
        return self._log.read_bytes().count(b'"event": "hub ready"') if self._log.exists() else 0

    def _enrol(self) -> None:
        owner = KeyPair.generate()
        now = int(time.time())
        entries, lines = {}, []
        for number in range(self.agents):
            name, pair = agent_id(number), KeyPair.generate()
            prefix = TOPIC[1:].decode().split("/")[0]
            entries[name] = Entry(name, pair.public, POSSESSION_PROOF, now * NS, prefixes=(prefix,))
            lines.append(Bundle.make(name, pair, DEFAULT_HUB_ID, now, DEFAULT_DELEGATION_SECONDS).to_json())
        keys.write_public(self.paths.owner_pub, owner.public)
        signed = allowlist.sign(Allowlist(now * NS, MAX_ALLOWLIST_VALID_SECONDS, entries), owner)
        files.replace(self.paths.allowlist, signed)
        files.replace(self.bundles, b"\n".join(lines))
