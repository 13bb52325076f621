"""The publisher's socket: what is asked, what is answered, who may ask (formats.md, Poke)."""

import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from wakehub.client.poke import Answer, Missing, poke
from wakehub.errors import Unavailable, Unsafe
from wakehub.identity.peercred import PeerCredentials, SameUidAuthorizer
from wakehub.limits import MAX_POKE_CLIENTS, MAX_POKE_IDS, MAX_POKE_LINE_BYTES, POKE_DEADLINE_MS, SOCKET_CHECK_SECONDS
from wakehub.publisher.hints import Outcome
from wakehub.publisher.poke import PokeServer, Submit, parse_poke

KNOWN = {
    "m_1": Outcome("hinted", None, True),
    "m_2": Outcome("refused", 404, False),
    "m_3": Outcome("hub_down", None, False),
}


async def submit(ids: Sequence[str]) -> dict[str, Outcome]:
    return {row_id: KNOWN[row_id] for row_id in ids}


@asynccontextmanager
async def serving(
    path: Path, submit: Submit = submit, authorizer: SameUidAuthorizer | None = None
) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(PokeServer(path, submit, authorizer).run)
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture
def path(home: Path) -> Path:
    return home / "run" / "publish.sock"


async def exchange(path: Path, question: bytes, *, end: bool = False) -> bytes:
    """Everything that is answered, to the close."""
    async with await trio.open_unix_socket(os.fspath(path)) as stream:
        await stream.send_all(question)
        if end:
            await stream.send_eof()
        return b"".join([part async for part in stream])


async def test_one_line_per_id_in_the_order_asked(path: Path) -> None:
    async with serving(path):
        answer = await exchange(path, b'{"v":1,"ids":["m_2","m_1","m_3"]}\n')
    assert [json.loads(line) for line in answer.splitlines()] == [
        {"id": "m_2", "state": "refused", "code": 404, "holder": False},
        {"id": "m_1", "state": "hinted", "code": None, "holder": True},
        {"id": "m_3", "state": "hub_down", "code": None, "holder": False},
    ]
    assert answer.endswith(b"\n")


async def test_a_poke_in_pieces(path: Path) -> None:
    async with serving(path), await trio.open_unix_socket(os.fspath(path)) as stream:
        for byte in b'{"v":1,"ids":["m_1"]}\n':
            await stream.send_all(bytes((byte,)))
            await wait_all_tasks_blocked()
        assert json.loads(b"".join([part async for part in stream]))["state"] == "hinted"


async def test_no_ids_are_answered_by_the_close_alone(path: Path) -> None:
    asked: list[Sequence[str]] = []

    async def note(ids: Sequence[str]) -> dict[str, Outcome]:
        asked.append(ids)
        return {}

    async with serving(path, note):
        assert await exchange(path, b'{"v":1,"ids":[]}\n') == b""
    assert asked == [[]]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"hello\n", "Expecting value"),
        (b"\n", "it is empty"),
        (b"\xff\n", "utf-8"),
        (b'["m_1"]\n', "not a JSON object"),
        (b'{"ids":["m_1"]}\n', "key v is missing"),
        (b'{"v":2,"ids":["m_1"]}\n', "v is not within 1..1"),
        (b'{"v":true,"ids":["m_1"]}\n', "v is not a whole number"),
        (b'{"v":1,"ids":"m_1"}\n', "ids is not a list"),
        (b'{"v":1,"ids":[1]}\n', "an id is not text"),
        (b'{"v":1,"ids":[],"ids":["m_1"]}\n', "appears twice"),
        (b'{"v":1,"ids":[],"more":0}\n', "unknown key more"),
        (json.dumps({"v": 1, "ids": ["m_1"] * (MAX_POKE_IDS + 1)}).encode() + b"\n", "257 ids exceed 256"),
        (b" " * (MAX_POKE_LINE_BYTES + 1), "the line exceeds 16384 bytes"),
        (b'{"v":1,"ids":["m_1"]}', "the line has no end"),
        (b"", "the line has no end"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value[:24]),
)
async def test_a_bad_line_is_told_what_is_wrong_with_it(path: Path, line: bytes, what: str) -> None:
    async with serving(path):
        answer = json.loads(await exchange(path, line, end=not line.endswith(b"\n") and len(line) < 100))
        assert list(answer) == ["error"]
        assert what in answer["error"]
        assert json.loads(await exchange(path, b'{"v":1,"ids":["m_1"]}\n'))["state"] == "hinted"


def test_the_longest_poke_is_a_good_line() -> None:
    ids = ["m_" + "0" * 26] * MAX_POKE_IDS
    line = json.dumps({"v": 1, "ids": ids}).encode()
    assert len(line) <= MAX_POKE_LINE_BYTES
    assert parse_poke(line) == ids


async def test_trouble_with_the_record_is_an_error_line(path: Path) -> None:
    async def fail(ids: Sequence[str]) -> dict[str, Outcome]:
        raise Unavailable("the record is locked")

    async with serving(path, fail):
        assert json.loads(await exchange(path, b'{"v":1,"ids":["m_1"]}\n')) == {"error": "the record is locked"}


@pytest.mark.parametrize("said", [b"", b'{"v":1,"ids":["m_1"]}\n'], ids=["who says nothing", "whom nothing answers"])
async def test_the_publisher_closes_after_2_s(path: Path, said: bytes, autojump_clock: MockClock) -> None:
    async def never(ids: Sequence[str]) -> dict[str, Outcome]:
        await trio.sleep_forever()
        raise AssertionError

    async with serving(path, never):
        began = trio.current_time()
        assert await exchange(path, said) == b""
        assert trio.current_time() - began == pytest.approx(POKE_DEADLINE_MS / 1000)


class Nobody(SameUidAuthorizer):
    def allows(self, credentials: PeerCredentials) -> bool:
        assert credentials == PeerCredentials(os.geteuid(), os.getpid())
        return False


async def test_another_uid_gets_not_one_byte(path: Path) -> None:
    async with serving(path, authorizer=Nobody()):
        try:
            assert await exchange(path, b'{"v":1,"ids":["m_1"]}\n') == b""
        except trio.BrokenResourceError:
            pass  # closed on unread bytes: a reset, which is not a byte either


async def test_more_clients_than_are_served_at_once_wait_their_turn(path: Path) -> None:
    busy, most = 0, 0
    everyone, answer = trio.Event(), trio.Event()

    async def slow(ids: Sequence[str]) -> dict[str, Outcome]:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == MAX_POKE_CLIENTS:
            everyone.set()
        await answer.wait()
        busy -= 1
        return await submit(ids)

    answers: list[bytes] = []

    async def client() -> None:
        answers.append(await exchange(path, b'{"v":1,"ids":["m_1"]}\n'))

    async with serving(path, slow):
        async with trio.open_nursery() as clients:
            for _ in range(MAX_POKE_CLIENTS + 8):
                clients.start_soon(client)
            await everyone.wait()
            await wait_all_tasks_blocked()
            answer.set()
    assert most == MAX_POKE_CLIENTS
    assert [json.loads(line)["state"] for line in answers] == ["hinted"] * (MAX_POKE_CLIENTS + 8)


async def test_a_client_that_goes_away_costs_nothing(path: Path) -> None:
    async with serving(path):
        for _ in range(MAX_POKE_CLIENTS + 1):
            async with await trio.open_unix_socket(os.fspath(path)) as stream:
                await stream.send_all(b'{"v":1')
        assert json.loads(await exchange(path, b'{"v":1,"ids":["m_1"]}\n'))["state"] == "hinted"


# --- the place ---


async def test_it_is_private_and_replaces_what_a_dead_one_left(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
    async with serving(path):
        found = os.lstat(path)
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert await exchange(path, b'{"v":1,"ids":[]}\n') == b""
    assert list(path.parent.iterdir()) == []


def write_notes(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_text("notes")


async def test_what_is_no_socket_is_never_replaced(path: Path) -> None:
    write_notes(path)
    with pytest.RaisesGroup(pytest.RaisesExc(Unsafe, match="is not a socket"), flatten_subgroups=True):
        async with serving(path):
            pass
    assert stat.S_ISREG(os.lstat(path).st_mode)


def remove(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def replace(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(path))


@pytest.mark.parametrize("harm", [remove, remove_directory, replace])
async def test_a_path_that_is_no_longer_it_is_bound_again(
    path: Path, mock_clock: MockClock, harm: Callable[[Path], None]
) -> None:
    async with serving(path):
        harm(path)
        await wait_all_tasks_blocked()
        mock_clock.jump(SOCKET_CHECK_SECONDS)
        await wait_all_tasks_blocked()
        assert await exchange(path, b'{"v":1,"ids":[]}\n') == b""


async def test_a_successor_s_socket_is_not_removed(path: Path) -> None:
    async with serving(path):
        replace(path)
        successor = os.lstat(path).st_ino
    assert os.lstat(path).st_ino == successor


async def test_the_client_and_the_server_mean_the_same(path: Path) -> None:
    async with serving(path):
        found = await trio.to_thread.run_sync(lambda: list(poke(path, list(KNOWN))))
    assert found == [(row_id, Answer(row_id, o.state, o.code, o.holder)) for row_id, o in KNOWN.items()]
    assert list(poke(path, ["m_1"])) == [("m_1", Missing.ABSENT)]
