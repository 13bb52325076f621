"""Files of messages: measured while copied in, handed over as checked copies, gone with their last row."""

import hashlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_process import started

from wakehub.errors import BadData, CannotCreate, Exit
from wakehub.inbox.attachments import Attachments, Lost
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import NotStored
from wakehub.inbox.rows import Attachment, NewRow, Row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import COPY_BYTES, MAX_ATTACHED_BYTES, MAX_ATTACHMENTS


@pytest.fixture
def kept(tmp_path: Path) -> Attachments:
    return Attachments(tmp_path / "state" / "blobs", tmp_path / "state" / "files")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file somewhere for somebody to attach."""
    directory = tmp_path / "work"
    directory.mkdir()

    def make(name: str, content: bytes = b"content") -> Path:
        (directory / name).write_bytes(content)
        return directory / name

    return make


def send(inbox: SqliteInbox, kept: Attachments, *sources: Path, **fields: int) -> Row:
    with kept.adding(sources) as attachments:
        (row,) = inbox.append(NewRow("bob", "alice", b"see the files", attachments=attachments, **fields), Now.read())
    return row


def blobs(kept: Attachments) -> Sequence[str]:
    return sorted(os.listdir(kept.blobs))


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


# --- taking in ---


def test_what_is_stored_is_what_was_read_under_its_digest(
    kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]
) -> None:
    content = os.urandom(2 * COPY_BYTES + 1)
    source = write("résumé one.bin", content)
    source.chmod(0o644)
    row = send(inbox, kept, source)
    digest = hashlib.sha256(content)
    assert row.attachments == (Attachment("résumé one.bin", len(content), digest.digest()),)
    assert blobs(kept) == [digest.hexdigest()]
    assert (kept.blobs / digest.hexdigest()).read_bytes() == content
    assert (mode(kept.blobs), mode(kept.blobs / digest.hexdigest())) == (0o700, 0o600)


def test_equal_content_is_kept_once(kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]) -> None:
    send(inbox, kept, write("a"), write("b"), write("empty", b""))
    send(inbox, kept, write("c"))
    assert blobs(kept) == sorted(hashlib.sha256(content).hexdigest() for content in (b"content", b""))


def test_damaged_content_is_mended_by_the_next_who_attaches_it(
    kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]
) -> None:
    first = send(inbox, kept, write("a"))
    (kept.blobs / first.attachments[0].digest.hex()).write_bytes(b"garbage")
    assert kept.hand_over(first) == (None,)
    send(inbox, kept, write("a"))
    (copy,) = kept.hand_over(first)
    assert copy is not None
    assert copy.read_bytes() == b"content"


def test_nothing_attached_needs_no_directory(kept: Attachments, inbox: SqliteInbox) -> None:
    row = send(inbox, kept)
    assert kept.hand_over(row) == ()
    assert kept.collect(inbox) == 0
    assert not kept.blobs.exists()
    assert not kept.files.exists()


def test_too_large_is_refused_with_the_limit_and_nothing_is_left_half_written(
    kept: Attachments, write: Callable[..., Path]
) -> None:
    """Sparse files: their size alone counts, and it is counted over all files of the message."""
    first, second = write("first", b"x"), write("second", b"")
    os.truncate(second, MAX_ATTACHED_BYTES)
    with pytest.raises(BadData, match=str(MAX_ATTACHED_BYTES)) as refused, kept.adding([first, second]):
        pytest.fail("it was taken")
    assert refused.value.exit == Exit.DATA
    assert blobs(kept) == [hashlib.sha256(b"x").hexdigest()]
    os.truncate(second, MAX_ATTACHED_BYTES - 1)
    with kept.adding([first, second]) as attachments:
        assert [attachment.size for attachment in attachments] == [1, MAX_ATTACHED_BYTES - 1]


def test_too_many_are_refused_before_anything_is_copied(kept: Attachments, write: Callable[..., Path]) -> None:
    sources = [write(f"f{number}") for number in range(MAX_ATTACHMENTS + 1)]
    with pytest.raises(BadData, match=str(MAX_ATTACHMENTS)), kept.adding(sources):
        pytest.fail("they were taken")
    assert not kept.blobs.exists()


def _link(place: Path) -> None:
    place.with_name("target").write_bytes(b"secret")
    place.symlink_to("target")


def _socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.relpath(place))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_link, "links are not followed"),
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (_socket, "No such device"),
        (lambda place: None, "No such file"),
    ],
)
def test_only_a_regular_file_is_attached(
    kept: Attachments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    why: str,
) -> None:
    """A FIFO without a writer does not hold anybody up either."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "thing")
    with pytest.raises(BadData, match=why), kept.adding([tmp_path / "thing"]):
        pytest.fail("it was taken")


def test_a_full_disk_stores_nothing(kept: Attachments, write: Callable[..., Path]) -> None:
    """A file size limit stands for the full disk: writing ends in an error half-way."""
    source = write("large", bytes(1 << 20))
    script = """if True:
        import resource, signal, sys
        from pathlib import Path
        from wakehub.inbox.attachments import Attachments
        from wakehub.inbox.refusals import NotStored
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        blobs, files, source = map(Path, sys.argv[1:])
        try:
            with Attachments(blobs, files).adding([source]):
                raise SystemExit("it was taken")
        except NotStored as refused:
            raise SystemExit(0 if "not stored" in str(refused) and refused.exit == 73 else str(refused))
    """
    subprocess.run([sys.executable, "-c", script, kept.blobs, kept.files, source], check=True)
    assert blobs(kept) == []


def test_an_error_of_the_caller_is_the_callers(kept: Attachments, write: Callable[..., Path]) -> None:
    with pytest.raises(NotStored, match="as it is"), kept.adding([write("a")]):
        raise NotStored("as it is")


# --- handing over ---


def test_an_agent_gets_copies_of_its_own(kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]) -> None:
    row = send(inbox, kept, write("a.txt", b"one"), write("-rf .sh", b"two"))
    first, second = kept.hand_over(row)
    assert first == kept.files / row.id / "a.txt"
    assert second == kept.files / row.id / "-rf .sh"
    assert [path.read_bytes() for path in (first, second)] == [b"one", b"two"]
    assert {mode(path) for path in (first, second)} == {0o600}
    assert {mode(path) for path in (kept.files, kept.files / row.id)} == {0o700}
    first.write_bytes(b"scribbled on")
    second.unlink()
    second.symlink_to("/etc/passwd")
    assert kept.hand_over(row) == (first, second)  # a redelivery: as they were sent
    assert [path.read_bytes() for path in (first, second)] == [b"one", b"two"]
    assert not second.is_symlink()
    assert sorted(os.listdir(first.parent)) == ["-rf .sh", "a.txt"]


@pytest.mark.parametrize("harm", ["gone", "longer", "other", "link", "open to others"])
def test_what_is_not_what_was_sent_is_not_handed_over(
    kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path], harm: str
) -> None:
    row = send(inbox, kept, write("a"), write("b", b"good"))
    blob = kept.blobs / row.attachments[0].digest.hex()
    if harm == "longer":
        blob.write_bytes(b"content!")
    elif harm == "other":
        blob.write_bytes(b"CONTENT")
    elif harm == "open to others":
        blob.chmod(0o644)
    else:
        blob.unlink()
    if harm == "link":
        blob.symlink_to(write("a"))
    lost, good = kept.hand_over(row)
    assert lost is None
    assert good is not None
    assert os.listdir(good.parent) == ["b"]
    with pytest.raises(Lost):
        kept.copy(row.attachments[0], good)
    assert good.read_bytes() == b"good"


def test_a_name_or_id_that_leads_elsewhere_is_refused_before_any_file_is_made(
    kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]
) -> None:
    """F43: a damaged record must not be a way out of the directory either."""
    row = send(inbox, kept, write("a"))
    bad = replace(row, attachments=(replace(row.attachments[0], name="../../x"),))
    with pytest.raises(BadData):
        kept.hand_over(bad)
    with pytest.raises(BadData):
        kept.hand_over(replace(row, id="../x"))
    assert not kept.files.exists()


def test_a_copy_that_cannot_be_made_now_is_another_thing_than_one_that_is_lost(
    kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]
) -> None:
    row = send(inbox, kept, write("a"))
    kept.files.write_bytes(b"in the way")
    with pytest.raises(CannotCreate):
        kept.hand_over(row)


# --- collecting ---


def test_contents_and_copies_go_with_their_last_row(
    kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]
) -> None:
    first = send(inbox, kept, write("shared"), write("own", b"own"))
    second = send(inbox, kept, write("shared"))
    kept.hand_over(first)
    kept.hand_over(second)
    assert kept.collect(inbox) == 0
    inbox.ack([first.id], "alice", None, Now.read())
    assert kept.collect(inbox) == 0  # a row that was handed off is kept for a while, and so are its files
    assert inbox.prune(Now.read().later(8 * 86_400_000)) == 1
    assert kept.collect(inbox) == 2
    assert blobs(kept) == [hashlib.sha256(b"content").hexdigest()]
    assert os.listdir(kept.files) == [second.id]
    inbox.ack([second.id], "alice", None, Now.read())
    inbox.prune(Now.read().later(8 * 86_400_000))
    assert kept.collect(inbox) == 2
    assert blobs(kept) == os.listdir(kept.files) == []


def test_at_expiry_the_files_go_with_the_body(
    kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]
) -> None:
    row = send(inbox, kept, write("a"), ttl_s=60)
    kept.hand_over(row)
    inbox.expire(Now.read().later(61_000))
    assert kept.collect(inbox) == 2
    tombstone = inbox.row(row.id)
    assert tombstone is not None
    assert tombstone.attachments == row.attachments


def test_what_a_killed_sender_left_is_collected_and_what_one_is_adding_is_not(
    kept: Attachments, inbox: SqliteInbox, write: Callable[..., Path]
) -> None:
    script = """if True:
        import sys
        from pathlib import Path
        from wakehub import files
        from wakehub.inbox.attachments import Attachments
        blobs, copies, source = map(Path, sys.argv[1:])
        with Attachments(blobs, copies).adding([source]), files.draft(blobs):
            print("added", flush=True)
            sys.stdin.read()
    """
    words = [sys.executable, "-c", script, kept.blobs, kept.files, write("a")]
    with started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == b"added\n"
        assert len(blobs(kept)) == 2
        assert kept.collect(inbox) == 0
    assert kept.collect(inbox) == 2
    assert blobs(kept) == []
