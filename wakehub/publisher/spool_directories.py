"""Which directories are spools, as config.toml has it now (formats.md, Spool).

A spool is mostly named while the publisher runs, and a sender reads the file anew each time: were it read at the start
only, envelopes would wait unseen in a directory that the sender was right to use.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import structlog

from wakehub.config import Config, load_at
from wakehub.errors import WakehubError
from wakehub.files import Stamp

_log = structlog.get_logger(program="publisher")


class SpoolDirectories:
    """The spools of `config`, and after each change of its file those which that names.

    While the file cannot be used the directories stay what they were, which is logged once for each change.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._seen: Stamp | None = None

    def __call__(self) -> Sequence[Path]:
        """Where to look now, in the order of preference; raises nothing."""
        try:
            now = Stamp.of(os.stat(self._config.paths.config_file))
        except OSError:
            now = None
        if now != self._seen:
            self._seen = now
            try:
                self._config = self._config._replace(spool=load_at(self._config.paths).spool)
            except (WakehubError, OSError) as error:
                _log.warning("the spools stay as they were", why=str(error))
        return self._config.spool_dirs
