"""Leaving a message where the publisher finds it, when the record cannot be written from here (formats.md, Spool).

A sandboxed agent may write in few places. Of the directories that were configured the first that takes an envelope has
it: 0700 and ours alone, the file 0600 and whole before it has its name.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from wakehub import files
from wakehub.errors import WakehubError
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.refusals import RecordUnwritable
from wakehub.visible import visible


def drop(directories: Sequence[Path], envelopes: Sequence[Envelope]) -> list[Path]:
    """Write each of `envelopes` into the first of `directories` that takes it; the files, in the same order.

    Raises `RecordUnwritable` (77), which says why each directory did not, when one finds no place; those written by
    then are taken back, as far as the publisher has not taken them in.
    """
    written: list[Path] = []
    try:
        for envelope in envelopes:
            written.append(_drop(directories, envelope))
    except BaseException:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
        raise
    return written


def _drop(directories: Sequence[Path], envelope: Envelope) -> Path:
    refusals = []
    for directory in directories:
        path = directory / f"{envelope.id}.json"
        try:
            files.private_directory(directory)
            files.replace(path, envelope.encode())
        except WakehubError as error:
            refusals.append(f"{error.what}: {error.why}" if error.why else error.what)
        else:
            return path
    raise RecordUnwritable(
        "there is no spool that can be written",
        why="; ".join(refusals),
        remedy='name a directory (0700) that may be written from here in config.toml: [spool] dirs = ["/…"], '
        f"or allow writing to {visible(str(directories[-1]))} in the sandbox's settings",
    )
