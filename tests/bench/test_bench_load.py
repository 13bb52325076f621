"""The load client: compares every message, bears parts and pings, and reports what is not as it must be."""

import socket
import threading

import pytest

from wakehub.bench.dialects import Wrong
from wakehub.bench.load import Cost, Fleet, Load, converse


class Speech:
    """A dialect of fixed words."""

    lanes = 1
    rotates = False
    noise = {b"PING\r\n": b"PONG\r\n"}  # noqa: RUF012


@pytest.fixture
def fleet():
    return Fleet(Speech(), "/nowhere", crowd=False)


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(30)
        other.settimeout(30)
        yield one, other


def test_a_message_in_one_piece(fleet, pair):
    pair[0].sendall(b"hello")
    fleet.take(pair[1], b"hello")


@pytest.mark.parametrize("parts", [[b"h", b"ello"], [b"hell", b"o"], [b"PI", b"NG\r\nhel", b"lo"], [b"PING\r\nhello"]])
def test_a_message_in_parts_or_behind_a_ping(fleet, pair, parts):
    one, other = pair

    def write():
        for part in parts:
            one.sendall(part)

    writer = threading.Thread(target=write)
    writer.start()
    fleet.take(other, b"hello")
    writer.join()
    if any(b"P" in part for part in parts):
        assert one.recv(100) == b"PONG\r\n"


@pytest.mark.parametrize("wrong", [b"jello", b"hellx", b"PINX\r\n"])
def test_another_message_is_reported(fleet, pair, wrong):
    pair[0].sendall(wrong)
    with pytest.raises(Wrong, match="came instead of"):
        fleet.take(pair[1], b"hello")


def test_an_end_is_reported(fleet, pair):
    pair[0].sendall(b"hel")
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(Wrong, match="closed a connection"):
        fleet.take(pair[1], b"hello")
    with pytest.raises(Wrong, match="closed a connection"):
        fleet.drop_answer(pair[1], 1)


def test_an_answer_is_read_to_its_last_byte_and_no_further(fleet, pair):
    pair[0].sendall(b":1\r\nnext")
    fleet.drop_answer(pair[1], 4)
    assert pair[1].recv(100) == b"next"


def test_a_conversation_is_carried_through(pair):
    one, other = pair
    heard = []

    def talk():
        heard.append((yield b"first"))
        heard.append((yield b""))

    def answer():
        assert one.recv(5) == b"first"
        one.sendall(b"A")
        one.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(Wrong, match="closed a connection while it was greeted"):
        converse(other, talk())
    thread.join()
    assert heard == [b"A"]


def test_cost_counts_this_process():
    with Cost([]) as cost:
        sum(range(200_000))
    assert cost.client_ns > 0
    assert cost.wall_ns > 0
    assert cost.server_ns == 0


def test_orders_are_the_methods_there_are():
    from wakehub.bench.load import ORDERS

    assert all(callable(getattr(Load, name)) for name in ORDERS)
    assert set(ORDERS) == {name for name in vars(Load) if not name.startswith("_") and name != "fleet"}
