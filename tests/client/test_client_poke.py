"""The poke's few words over a real socket, and every way in which there may be no answer."""

import os
import socket
from pathlib import Path

import pytest
from scripted_publisher import answer, hint_all, publisher

from wakehub.client import poke as module
from wakehub.client.poke import Answer, Missing, poke


def ids(count: int) -> list[str]:
    return [f"m_{number:026}" for number in range(count)]


def test_one_line_asks_and_one_line_per_id_answers(run_directory: Path) -> None:
    path = run_directory / "publish.sock"

    def mixed(asked: list[str], connection: socket.socket) -> None:
        answer(connection, asked[1], "refused", code=507, holder=False)
        answer(connection, asked[0])
        answer(connection, asked[2], "hub_down")

    with publisher(path, mixed) as seen:
        found = dict(poke(path, ids(3)))
    assert seen == [ids(3)]
    assert found == {
        ids(3)[0]: Answer(ids(3)[0], "hinted", None, True),
        ids(3)[1]: Answer(ids(3)[1], "refused", 507, False),
        ids(3)[2]: Answer(ids(3)[2], "hub_down", None, True),
    }


def test_more_than_256_ids_go_in_several_pokes(run_directory: Path) -> None:
    path = run_directory / "publish.sock"
    with publisher(path) as seen:
        found = list(poke(path, ids(600)))
    assert [len(asked) for asked in seen] == [256, 256, 88]
    assert [row_id for row_id, _ in found] == ids(600)


def test_no_socket_and_a_stale_one_are_absent(run_directory: Path) -> None:
    path = run_directory / "publish.sock"
    assert list(poke(path, ids(1))) == [(ids(1)[0], Missing.ABSENT)]
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(os.fspath(path))
    assert list(poke(path, ids(1))) == [(ids(1)[0], Missing.ABSENT)]


def test_a_denied_socket_is_told_apart(run_directory: Path) -> None:
    assert module._missing(PermissionError(1, "Operation not permitted")) is Missing.DENIED
    assert module._missing(PermissionError(13, "Permission denied")) is Missing.DENIED
    assert "sandbox" in Missing.DENIED.value
    assert "running" not in Missing.DENIED.value


def test_answers_that_came_count_although_the_rest_is_missing(run_directory: Path) -> None:
    path = run_directory / "publish.sock"
    with publisher(path, lambda asked, connection: answer(connection, asked[0])):
        found = dict(poke(path, ids(2)))
    assert isinstance(found[ids(2)[0]], Answer)
    assert found[ids(2)[1]] is Missing.SILENT


def test_a_publisher_that_says_nothing_is_silent_after_its_time(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POKE_DEADLINE_MS", 50)
    monkeypatch.setattr(module, "POKE_GRACE_MS", 50)
    path = run_directory / "publish.sock"
    with publisher(path, lambda asked, connection: connection.recv(1) and None):
        assert list(poke(path, ids(1))) == [(ids(1)[0], Missing.SILENT)]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"\xff\n",
        b"[]\n",
        b'{"id":1,"state":"hinted","code":null,"holder":true}\n',
        b'{"id":"m","state":"delivered","code":null,"holder":true}\n',
        b'{"id":"m","state":"hinted","code":"x","holder":true}\n',
        b'{"id":"m","state":"hinted","code":null}\n',
        b"x" * 9000,
    ],
)
def test_an_answer_that_is_none_is_garbled(run_directory: Path, line: bytes) -> None:
    path = run_directory / "publish.sock"
    with publisher(path, lambda asked, connection: connection.sendall(line)):
        assert list(poke(path, ids(1))) == [(ids(1)[0], Missing.GARBLED)]


def test_an_answer_for_another_row_or_a_second_one_is_passed_over(run_directory: Path) -> None:
    path = run_directory / "publish.sock"

    def more(asked: list[str], connection: socket.socket) -> None:
        answer(connection, "m_other")
        hint_all(asked, connection)
        hint_all(asked, connection)

    with publisher(path, more):
        assert [row_id for row_id, _ in poke(path, ids(1))] == ids(1)
