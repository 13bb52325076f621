"""The forward-only hub forwards the right bytes to the right agent, and says goodbye to nobody else."""

import socket

import pytest

from wakehub.bench.dialects import agent_id
from wakehub.bench.systems import Epoll
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Wake


@pytest.fixture
def address(stage):
    return Epoll().serve(stage, 2, ()).address


def connect(address, number):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    sock.connect(address)
    sock.sendall(encode(Frame(Kind.HELLO, agent_id(number).encode(), payload=bytes(100))))
    greeted = b""
    while greeted.count(b"AWH1") < 2 or len(greeted) < 100:  # challenge and welcome
        greeted += sock.recv(4096)
    return sock


def wake(sender, to, row_id=b"m_1"):
    return encode(Frame(Kind.WAKE, agent_id(sender).encode(), to, Wake(row_id).encode()))


def test_wakes_go_to_whom_they_name_whole_and_in_order(address):
    with connect(address, 0) as zero, connect(address, 1) as one, connect(address, 2) as two:
        first, second = wake(0, agent_id(1).encode(), b"m_first"), wake(0, agent_id(1).encode(), b"m_second")
        both = first + second
        for at in range(0, len(both), 7):  # in pieces that hold to no frame
            zero.sendall(both[at : at + 7])
        got = b""
        while len(got) < len(both):
            got += one.recv(len(both) - len(got))
        assert got == both
        back = wake(1, agent_id(0).encode())
        one.sendall(back)
        assert zero.recv(4096) == back
        two.setblocking(False)
        with pytest.raises(BlockingIOError):
            two.recv(1)


def test_a_topic_reaches_everybody_but_the_sender(address):
    with connect(address, 0) as zero, connect(address, 1) as one:
        with connect(address, 2) as gone:
            gone.sendall(b"")
        with connect(address, 3) as three:
            raw = wake(0, b"#bench/all")
            zero.sendall(raw)
            assert one.recv(4096) == raw
            assert three.recv(4096) == raw
            back = wake(1, agent_id(0).encode())
            one.sendall(back)
            assert zero.recv(4096) == back
