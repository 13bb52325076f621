"""The audit log (formats.md, Registry): nothing in it can be changed, and a writer may die anywhere."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_process import started
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from identity_world import make_directory, make_link, make_pipe

from wakehub import files
from wakehub.errors import BadData, CannotCreate, Exit, Unsafe
from wakehub.identity import audit, keys
from wakehub.identity.audit import AuditLog, BrokenChain, Event
from wakehub.identity.keys import KeyPair

OWNER = KeyPair(b"\1" * 32)
BOB = KeyPair(b"\2" * 32).public
NOW = 1_790_000_000


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    found = AuditLog(tmp_path / "audit.jsonl", OWNER.public)
    found.append(OWNER, "init", "owner", OWNER.public, {}, NOW)
    found.append(OWNER, "enroll", "acme/bob", BOB, {}, NOW + 1.9)
    found.append(OWNER, "delegate", "acme/bob", BOB, {"hub_id": 'é,"sig_b64":"x"}', "n": 1, "deep": {"a": []}}, NOW + 2)
    found.append(OWNER, "close", "acme/bob", BOB, {}, NOW + 3)
    return found


def lines(log: AuditLog) -> list[bytes]:
    return log.path.read_bytes().split(b"\n")[:-1]


def write(log: AuditLog, content: list[bytes]) -> None:
    log.path.write_bytes(b"".join(line + b"\n" for line in content))


def test_what_is_appended_is_read_back(log: AuditLog) -> None:
    assert log.verify() == [
        Event(1, NOW, "init", "owner", OWNER.public, {}),
        Event(2, NOW + 1, "enroll", "acme/bob", BOB, {}),
        Event(3, NOW + 2, "delegate", "acme/bob", BOB, {"hub_id": 'é,"sig_b64":"x"}', "n": 1, "deep": {"a": []}}),
        Event(4, NOW + 3, "close", "acme/bob", BOB, {}),
    ]
    chain = log.read()
    assert (chain.size, chain.torn) == (log.path.stat().st_size, 0)
    assert log.path.stat().st_mode & 0o7777 == 0o600


def test_a_line_is_the_specified_one(log: AuditLog) -> None:
    first, second, *_ = lines(log)
    found = json.loads(second)
    assert list(found) == ["n", "at", "event", "agent_id", "pubkey_b64", "detail", "prev", "sig_b64"]
    assert found | {"sig_b64": ""} == {
        "n": 2,
        "at": "2026-09-21T14:13:21Z",
        "event": "enroll",
        "agent_id": "acme/bob",
        "pubkey_b64": keys.b64(BOB),
        "detail": {},
        "prev": hashlib.sha256(first).hexdigest(),
        "sig_b64": "",
    }
    assert json.loads(first)["prev"] == "0" * 64
    unsigned = second[: second.index(b',"sig_b64"')]
    assert keys.verify(OWNER.public, b"wakehub/audit/v1" + unsigned, keys.unb64(found["sig_b64"]))


def test_an_absent_log_is_absent_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", OWNER.public)
    with pytest.raises(FileNotFoundError):
        log.verify()
    files.create(log.path, b"")
    assert log.verify() == []


# --- tampering ---


TAMPERING: list[Callable[[list[bytes], int], list[bytes]]] = [
    lambda content, at: [*content[:at], *content[at + 1 :]],  # left out
    lambda content, at: [*content[:at], content[at], *content[at:]],  # repeated
    lambda content, at: [*content[:at], b"", *content[at:]],  # an empty line slipped in
    lambda content, at: [*content[:at], content[at].replace(b"2026", b"2025", 1), *content[at + 1 :]],
    lambda content, at: [*content[:at], content[at].replace(b'"detail":{', b'"detail": {'), *content[at + 1 :]],
    lambda content, at: [*content[:at], content[at].replace(b'"n":', b'"n":1'), *content[at + 1 :]],
    lambda content, at: [*content[:at], content[at][:-1], *content[at + 1 :]],
    lambda content, at: [*content[:at], content[at] + b" ", *content[at + 1 :]],
    lambda content, at: [*content[:at], content[at] + b"\r", *content[at + 1 :]],
    lambda content, at: [*content[:at], b"{}", *content[at + 1 :]],
    lambda content, at: [*content[:at], b"\xff", *content[at + 1 :]],
    lambda content, at: [*content[:at], content[at - 1], *content[at + 1 :]],  # another line's
]


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("tamper", TAMPERING)
def test_tampering_shows_at_its_line(log: AuditLog, tamper: Callable[[list[bytes], int], list[bytes]], at: int) -> None:
    original = lines(log)
    changed = tamper(original, at)
    write(log, changed)
    if changed == original[:-1]:  # the last line left out: that alone a chain cannot show
        assert len(log.verify()) == 3
        return
    first = next(
        number for number in range(len(changed)) if changed[number : number + 1] != original[number : number + 1]
    )
    with pytest.raises(BrokenChain, match=f"broken at line {first + 1}") as broken:
        log.verify()
    assert broken.value.line == first + 1
    assert broken.value.exit is Exit.PERMISSION
    before = log.path.read_bytes()
    with pytest.raises(BrokenChain):
        log.append(OWNER, "enroll", "mallory", BOB, {}, NOW)
    assert log.path.read_bytes() == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), change=st.integers(1, 255))
def test_no_byte_can_be_changed(log: AuditLog, at: int, change: int) -> None:
    original = log.path.read_bytes()
    changed = bytearray(original)
    changed[at % len(changed)] ^= change
    log.path.write_bytes(changed)
    try:
        chain = log.read()
    except BrokenChain:
        pass
    else:
        assert chain.torn  # it was the last newline
        assert len(chain.events) == 3
    finally:
        log.path.write_bytes(original)


def test_a_chain_of_another_owner_is_refused(log: AuditLog) -> None:
    with pytest.raises(BrokenChain, match=r"line 1: .*owner key"):
        AuditLog(log.path, KeyPair(b"\3" * 32).public).verify()


def forged(log: AuditLog, **changes: object) -> bytes:
    """A fifth line with these changes, properly signed by the owner."""
    head = hashlib.sha256(lines(log)[-1]).hexdigest()
    line = audit._line(OWNER, 5, NOW, "revoke", "acme/bob", BOB, {}, head)
    found = json.loads(line) | changes
    found.pop("sig_b64")
    unsigned = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    return unsigned + b',"sig_b64":"' + keys.b64(OWNER.sign(b"wakehub/audit/v1" + unsigned)).encode() + b'"}'


def test_the_line_of_the_next_test_is_good(log: AuditLog) -> None:
    write(log, [*lines(log), forged(log)])
    assert log.verify()[-1].event == "revoke"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"n": 6}, "n is not within"),
        ({"n": "5"}, "n is not"),
        ({"at": "2026-09-21T14:13:20+00:00"}, "whole seconds"),
        ({"at": "2026-09-21T14:13:20.0Z"}, "whole seconds"),
        ({"at": 0}, "at is not text"),
        ({"event": "grant"}, "unknown event"),
        ({"agent_id": None}, "agent_id"),
        ({"pubkey_b64": ""}, "32 bytes"),
        ({"detail": []}, "detail"),
        ({"prev": "0" * 64}, "follow"),
        ({"extra": 1}, "unknown key"),
        ({"detail": {"ratio": 0.5}}, "not whole"),
    ],
)
def test_a_signature_does_not_excuse_the_form(log: AuditLog, changes: dict[str, object], fault: str) -> None:
    write(log, [*lines(log), forged(log, **changes)])
    with pytest.raises(BrokenChain, match=rf"line 5: .*{fault}"):
        log.verify()


# --- torn lines ---


def test_a_torn_last_line_is_left_out_by_readers_and_cut_by_the_next_writer(log: AuditLog) -> None:
    whole = log.path.read_bytes()
    last = len(lines(log)[-1]) + 1
    for missing in range(1, last):
        log.path.write_bytes(whole[:-missing])
        chain = log.read()
        assert len(chain.events) == 3
        assert chain.torn == last - missing
    with log.writing() as writer:
        assert writer.cut == 1
        assert [event.n for event in writer.events] == [1, 2, 3]
        writer.append(OWNER, "revoke", "acme/bob", BOB, {}, NOW)
        writer.append(OWNER, "enroll", "acme/bob", BOB, {}, NOW)
    assert [event.event for event in log.verify()] == ["init", "enroll", "delegate", "revoke", "enroll"]


def test_zeros_behind_a_crash_are_a_torn_line(log: AuditLog) -> None:
    with log.path.open("ab") as file:
        file.write(b"\0" * 4096)
    assert log.read().torn == 4096
    with log.writing() as writer:
        assert writer.cut == 4096
    assert log.read().torn == 0


def test_a_log_that_is_nothing_but_torn_begins_anew(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", OWNER.public)
    files.create(log.path, b'{"n":1,')
    assert log.verify() == []
    assert log.append(OWNER, "init", "owner", OWNER.public, {}, NOW).n == 1
    assert len(log.verify()) == 1


def test_when_the_disk_is_full_nothing_is_left_of_the_line(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    before = log.path.read_bytes()
    real = os.write

    def write_half(fd: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: len(data) - 50])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_half)
        with pytest.raises(CannotCreate, match="No space left"):
            log.append(OWNER, "revoke", "acme/bob", BOB, {}, NOW)
    assert log.path.read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with log.writing() as writer:
            with pytest.raises(CannotCreate, match="I/O error"):
                writer.append(OWNER, "revoke", "acme/bob", BOB, {}, NOW)
            patch.undo()
            assert writer.append(OWNER, "close", "acme/bob", BOB, {}, NOW).n == 5
    assert [event.event for event in log.verify()][-1] == "close"


# --- refusals of a writer ---


def test_a_line_that_would_not_verify_is_not_written(log: AuditLog) -> None:
    before = log.path.read_bytes()
    for owner, event, agent_id, public, detail in (
        (KeyPair(b"\3" * 32), "revoke", "acme/bob", BOB, {}),
        (OWNER, "grant", "acme/bob", BOB, {}),
        (OWNER, "revoke", "acme/bob", BOB[:-1], {}),
        (OWNER, "revoke", "acme/bob", BOB, {"big": "x" * 9000}),
        (OWNER, "revoke", "acme/bob", BOB, {"ratio": 0.5}),
    ):
        with pytest.raises(BadData):
            log.append(owner, event, agent_id, public, detail, NOW)
    assert log.path.read_bytes() == before


def test_a_full_log_takes_no_line(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_AUDIT_BYTES", log.path.stat().st_size + 10)
    with pytest.raises(BadData, match="is full"):
        log.append(OWNER, "revoke", "acme/bob", BOB, {}, NOW)
    assert len(log.verify()) == 4


def make_open(path: Path) -> None:
    path.chmod(0o644)


@pytest.mark.parametrize("make", [make_open, make_link, make_pipe, make_directory])
def test_a_file_that_is_not_safe_is_neither_read_nor_written(log: AuditLog, make: Callable[[Path], None]) -> None:
    make(log.path)
    with pytest.raises(Unsafe):
        log.verify()
    with pytest.raises(Unsafe):
        log.append(OWNER, "revoke", "acme/bob", BOB, {}, NOW)


# --- taking turns ---


def test_a_reader_waits_for_a_writer(log: AuditLog) -> None:
    seen: list[int] = []
    with log.writing() as writer:
        reader = threading.Thread(target=lambda: seen.append(len(log.verify())))
        reader.start()
        with log.path.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        writer.append(OWNER, "enroll", "carol", BOB, {}, NOW)
        assert seen == []
    reader.join()
    assert seen == [5]


def test_writers_in_many_processes_lose_no_line(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from wakehub.identity.audit import AuditLog\n"
        "from wakehub.identity.keys import KeyPair\n"
        "owner = KeyPair(b'\\1' * 32); log = AuditLog(Path(sys.argv[1]), owner.public); sys.stdin.readline()\n"
        "for number in range(10): log.append(owner, 'enroll', f'{sys.argv[2]}-{number}', owner.public, {}, 0)\n"
    )
    path = tmp_path / "audit.jsonl"
    with contextlib.ExitStack() as running:
        writers = [
            running.enter_context(
                started([sys.executable, "-c", program, str(path), str(number)], stdin=subprocess.PIPE)
            )
            for number in range(4)
        ]
        for writer in writers:  # all at once, as far as that goes
            assert writer.stdin is not None
            writer.stdin.write(b"go\n")
            writer.stdin.close()
        assert [writer.wait() for writer in writers] == [0] * 4
    names = [event.agent_id for event in AuditLog(path, OWNER.public).verify()]
    assert sorted(names) == sorted(f"{writer}-{number}" for writer in range(4) for number in range(10))
    assert all(names.index(f"{writer}-{n}") < names.index(f"{writer}-{n + 1}") for writer in range(4) for n in range(9))
