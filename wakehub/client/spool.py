"""Leaving a message where the publisher finds it, when the record cannot be written from here (formats.md, Spool).

A sandboxed agent may write in few places. Of the directories that were configured the first that takes an envelope has
it: 0700 and ours alone, the file 0600 and whole before it has its name. Files that belong to it are copied beside it
before, each under its SHA-256, so that whoever finds the envelope finds them too.
"""

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from wakehub import files
from wakehub.errors import BadData, WakehubError
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.envelope import FILES_SUFFIX, Envelope
from wakehub.inbox.refusals import RecordUnwritable
from wakehub.visible import visible


def drop(directories: Sequence[Path], envelopes: Sequence[Envelope], attach: Sequence[Path] = ()) -> list[Path]:
    """Write each of `envelopes`, and the files `attach` with it, into the first of `directories` that takes it; where
    each lies then, in the same order.

    Raises `RecordUnwritable` (77), which says why each directory did not, when one finds no place, and `BadData` (65)
    for a file that was changed meanwhile; those written by then are taken back, as far as the publisher has not taken
    them in.
    """
    written: list[Path] = []
    try:
        for envelope in envelopes:
            written.append(_drop(directories, envelope, attach))
    except BaseException:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
            shutil.rmtree(path.with_suffix(FILES_SUFFIX), ignore_errors=True)
        raise
    return written


def _drop(directories: Sequence[Path], envelope: Envelope, attach: Sequence[Path]) -> Path:
    refusals = []
    for directory in directories:
        path = directory / f"{envelope.id}.json"
        try:
            files.private_directory(directory)
            _copy(path.with_suffix(FILES_SUFFIX), envelope, attach)
            files.replace(path, envelope.encode())
        except BadData:
            raise
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


def _copy(beside: Path, envelope: Envelope, attach: Sequence[Path]) -> None:
    if not attach:
        return
    try:
        with Attachments(beside, beside).adding(attach) as copied:
            if copied == envelope.attachments:
                return
        raise BadData("a file was changed while it was sent", why="it is not what was signed", remedy="send it again")
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
