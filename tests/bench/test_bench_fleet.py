"""The load client's connections: every message is compared, parts and pings are borne, all else is reported."""

import socket
import threading

import pytest

from wakehub.bench.dialects import Wrong
from wakehub.bench.fleet import Fleet, PairFleet, Watch, converse


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


def test_what_comes_unasked_is_answered_and_anything_else_is_reported(fleet, pair):
    one, other = pair
    one.sendall(b"PING\r\nPINGS")
    fleet.answer_noise(other)
    assert one.recv(100) == b"PONG\r\n"
    with pytest.raises(Wrong, match="PINGS' came unasked"):
        fleet.answer_noise(other)


def test_who_can_be_read_is_told(pair):
    one, other = pair
    watch = Watch([other.fileno()])
    assert watch.ready_now() == []
    one.sendall(b"x")
    assert watch.ready() == watch.ready_now() == [other.fileno()]
    watch.close()


def test_a_socketpair_gives_back_what_was_put_in():
    fleet = PairFleet(Speech())
    fleet.grow(2)
    fleet.writers[1].sendall(b"hello")
    fleet.take(fleet.readers[1], b"hello")
    fleet.writers[0].sendall(b"jello")
    with pytest.raises(Wrong):
        fleet.take(fleet.readers[0], b"hello")
    fleet.close()
    assert len(fleet) == 0
