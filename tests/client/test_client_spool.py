"""Leaving envelopes: in the first directory that takes them, whole and private, or with every reason."""

import os
import stat
from pathlib import Path

import pytest

from wakehub.client.spool import drop
from wakehub.errors import Exit
from wakehub.identity.keys import KeyPair
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.refusals import RecordUnwritable
from wakehub.inbox.rows import NewRow
from wakehub.inbox.signing import signer


def envelope(key: KeyPair, body: bytes = b"hello") -> Envelope:
    return Envelope.seal(NewRow("bob", "alice", body), signer(key), Now.read())


def closed(directory: Path) -> Path:
    """A directory that no check lets pass, whoever asks."""
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_directory_is_made_and_the_file_is_whole_and_private(run_directory: Path, key: KeyPair) -> None:
    made = envelope(key)
    (path,) = drop([run_directory / "spool"], [made])
    assert path == run_directory / "spool" / f"{made.id}.json"
    assert path.read_bytes() == made.encode()
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert os.listdir(path.parent) == [path.name]


def test_the_first_directory_that_takes_it_has_it(run_directory: Path, key: KeyPair) -> None:
    directories = [closed(run_directory / "open"), run_directory / "b", run_directory / "c"]
    (run_directory / "b").symlink_to(run_directory)
    (path,) = drop(directories, [envelope(key)])
    assert path.parent == run_directory / "c"


def test_without_any_each_says_why_and_what_to_do_is_said(run_directory: Path, key: KeyPair) -> None:
    first, second = closed(run_directory / "open"), run_directory / "file" / "spool"
    (run_directory / "file").write_bytes(b"")
    with pytest.raises(RecordUnwritable) as refused:
        drop([first, second], [envelope(key)])
    assert refused.value.exit == Exit.PERMISSION
    assert "0755" in refused.value.why
    assert "cannot create directory" in refused.value.why
    assert "[spool] dirs" in refused.value.remedy
    assert str(second) in refused.value.remedy


def test_of_several_that_belong_together_all_are_left_or_none(run_directory: Path, key: KeyPair) -> None:
    first, second = envelope(key), envelope(key)
    spool = run_directory / "spool"
    spool.mkdir(mode=0o700)
    (spool / f"{second.id}.json").mkdir()
    with pytest.raises(RecordUnwritable):
        drop([spool], [first, second])
    assert os.listdir(spool) == [f"{second.id}.json"]
    third = envelope(key)
    assert drop([spool], [first, third]) == [spool / f"{first.id}.json", spool / f"{third.id}.json"]
