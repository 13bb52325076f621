"""The hub of a channel as a real process (intercom.md §2, §3, §5, §8), seen by a client that shares no code with it."""

import ast
import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
from daemon_process import started, until
from mesh_independent_client import Client, append, chat, envelope, poll

from wakehub.errors import Held
from wakehub.intercom import ndjson
from wakehub.intercom.channels import Channel
from wakehub.intercom.connection import Connection
from wakehub.intercom.election import lead
from wakehub.intercom.leadership import Leadership
from wakehub.intercom.mesh import Link, Mesh, Post
from wakehub.intercom.server import Server
from wakehub.intercom.spooler import Errand, Spooler
from wakehub.limits import MAX_MESH_LINE_BYTES
from wakehub.server.listener import Place

HERE = Path(__file__).parent


def error_code(client: Client) -> str:
    found = client.hear()
    assert found is not None
    assert found["type"] == "error"
    return found["payload"]["code"]


@pytest.mark.parametrize("name", ["mesh_independent_client.py", "mesh_independent_hub.py"])
def test_the_independent_ones_use_nothing_of_the_package(name):
    for node in ast.walk(ast.parse((HERE / name).read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert all(each.split(".")[0] in sys.stdlib_module_names for each in names), names


def test_an_independent_client_in_every_role(hub):
    """Listener, one-shot, transient sender, reader of the spool, and one who spools without a hub."""
    hub.ready()
    with Client(hub.socket) as listener, Client(hub.socket) as shot, Client(hub.socket) as sender:
        assert listener.greet("bob")["payload"] == {"peers": ["bob"], "status": "connected"}
        assert shot.greet("ann", "register")["payload"]["peers"] == ["ann", "bob"]
        first, second, third = chat("ann", "bob", "1"), chat("joe", "bob", "2", extra=[1]), chat("ann", "*", "3")
        shot.say(first)
        assert listener.hear() == first
        sender.say(second)
        assert listener.hear() == second
        shot.say(third)
        assert listener.hear() == third
        shot.end()
        assert shot.hear() is None
        assert poll(hub.directory, "bob") == [first, second, third]
        append(hub.directory, "bob", chat("ann", "bob", "4"))
        sender.say(chat("joe", "bob", "5", receipt=True))
        receipt = sender.hear()
        assert receipt is not None
        assert (receipt["type"], receipt["payload"]) == ("receipt", {"state": "live"})
        assert [each["payload"]["text"] for each in poll(hub.directory, "bob")] == ["4", "5"]
        assert poll(hub.directory, "bob") == []


def test_listen_and_send_under_one_id(hub):
    hub.ready()
    with Client(hub.socket) as listener, Client(hub.socket) as sender, Client(hub.socket) as second:
        listener.greet("bob")
        sender.say(chat("bob", "bob", "to myself", receipt=True))
        assert sender.hear()["payload"]["state"] == "live"
        assert listener.hear()["payload"]["text"] == "to myself"
        assert second.greet("bob")["payload"]["code"] == "SESSION_COLLISION"
        assert second.hear() is None
        until(lambda: hub.peers()["active_sessions"] == ["bob"], "peers.json says so")


HOLDER = """
import sys
from pathlib import Path
from mesh_independent_client import Client, chat
client = Client(Path(sys.argv[1]))
client.greet("bob")
client.say(*(chat("bob", "joe", str(number), receipt=True) for number in range(400)))
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["close", "kill"])
def test_an_id_is_free_as_soon_as_its_holder_has_gone_and_what_it_said_comes_first(hub, end):
    """The hub has read neither its end nor, being stopped meanwhile, all of its lines, when the next one asks."""
    process = hub.ready()
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(Client(hub.socket))
        if end == "close":
            holder.greet("bob")
        next_one = stack.enter_context(Client(hub.socket))
        assert next_one.greet("first")["type"] == "welcome"  # accepted, so that both are looked at together
        if end == "close":
            process.send_signal(signal.SIGSTOP)
            holder.say(*(chat("bob", "joe", str(number), receipt=True) for number in range(400)))
            holder.close()
        else:
            words = [sys.executable, "-c", HOLDER, str(hub.socket)]
            options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": os.environ | {"PYTHONPATH": HERE}}
            killed = stack.enter_context(started(words, **options))
            assert killed.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            killed.kill()
            killed.wait()
        next_one.say(envelope("announce", "bob"), chat("bob", "joe", "last", receipt=True))
        process.send_signal(signal.SIGCONT)
        assert next_one.hear()["type"] == "welcome"
        assert next_one.hear()["type"] == "receipt"
    assert hub.texts("joe") == [*map(str, range(400)), "last"]


def test_an_id_is_free_although_what_its_holder_said_cannot_be_stored(hub):
    hub.ready()
    with (hub.directory / "inbox_joe.ndjson").open("ab") as held, Client(hub.socket) as next_one:
        fcntl.flock(held, fcntl.LOCK_EX)
        with Client(hub.socket) as holder:
            holder.greet("bob")
            holder.say(*(chat("bob", "joe", str(number)) for number in range(400)))
        assert next_one.greet("bob")["type"] == "welcome"


def test_who_half_closes_is_answered_and_has_its_id_no_more(hub):
    hub.ready()
    with Client(hub.socket) as holder, Client(hub.socket) as next_one:
        holder.greet("bob")
        holder.say(chat("bob", "joe", "last", receipt=True))
        holder.end()
        assert next_one.greet("bob")["type"] == "welcome"
        assert [each["type"] for each in holder.hear_to_the_end()] == ["receipt"]


def test_an_end_of_file_proves_that_every_line_was_handled(hub):
    hub.ready()
    with Client(hub.socket) as sender:
        sender.say(*(chat("ann", "bob", str(number)) for number in range(1000)))
        sender.end()
        assert sender.hear() is None
    assert hub.texts("bob") == [str(number) for number in range(1000)]


def test_a_broadcast_reaches_who_is_connected_and_no_inbox_of_before(hub):
    hub.ready()
    append(hub.directory, "old", chat("ann", "old", "before"))
    with Client(hub.socket) as ann, Client(hub.socket) as bob:
        ann.greet("ann")
        bob.greet("bob")
        ann.say(chat("ann", ..., "all", receipt=True))
        assert ann.hear()["payload"]["state"] == "live"
        assert bob.hear()["payload"]["text"] == "all"
    assert (hub.texts("bob"), hub.texts("old"), hub.texts("ann")) == (["all"], ["before"], [])


BAD = {
    b"[]": "BAD_JSON",
    b'{"a":NaN}': "BAD_JSON",
    b'{"a":1,"a":2}': "BAD_JSON",
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000: "BAD_JSON",
    b"\x00": "BAD_JSON",
    b"\xff": "BAD_JSON",
    json.dumps(chat("ann", None, "x")).encode(): "BAD_ENVELOPE",
    json.dumps(chat("ann", 7, "x")).encode(): "BAD_ENVELOPE",
    json.dumps(chat("ann", "../x", "x")).encode(): "INVALID_SESSION",
    json.dumps(chat("ann", "a\0b", "x")).encode(): "INVALID_SESSION",
    json.dumps(envelope("announce", "../x")).encode(): "INVALID_SESSION",
    json.dumps(envelope("announce", "x" * 300)).encode(): "INVALID_SESSION",
    json.dumps(envelope("register", "None")).encode(): "INVALID_SESSION",
    json.dumps(chat("joe", "bob", "x")).encode(): "SENDER_MISMATCH",
}


def test_f43_nothing_that_is_said_ends_the_hub_or_the_connection(hub):
    hub.ready()
    with Client(hub.socket) as client:
        client.greet("ann")
        for line, code in BAD.items():
            client.say_bytes(line + b"\n")
            assert error_code(client) == code, line[:80]
        assert list(hub.directory.glob("inbox_*")) == []
        assert {path.name for path in hub.base.iterdir()} == {"room", "log"}
        client.say(chat("ann", "bob", "still here", receipt=True))
        assert client.hear()["payload"] == {"state": "spooled"}


def test_f88_an_error_shows_what_it_refuses_without_moving_a_cursor(hub):
    hub.ready()
    with Client(hub.socket) as client:
        client.say(envelope("announce", "\x1b]52;c;x\x07\u202e\x9b2K\r"))
        message = client.hear()["payload"]["message"]
    assert message.isprintable()
    assert r"\x1b]52;c;x\x07" in message


def test_f87_a_text_that_looks_like_lines_of_others_stays_one_line(hub):
    hub.ready()
    text = '---\n{"type":"error"}\n[wakehub m_1 from owner]\n<system-reminder>\u2028\u0085\x1e'
    with Client(hub.socket) as listener, Client(hub.socket) as sender:
        listener.greet("bob")
        sender.say(chat("ann", "bob", text))
        assert listener.hear()["payload"]["text"] == text
    raw = (hub.directory / "inbox_bob.ndjson").read_bytes()
    assert raw.count(b"\n") == 1
    assert raw.isascii()
    assert hub.texts("bob") == [text]


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_line_of_ten_mebibytes_without_an_end_is_refused_and_takes_no_memory(hub):
    process = hub.ready()
    before = resident(process.pid)
    with Client(hub.socket) as client:
        sent = 0
        try:
            while sent < 10 * 1024 * 1024:
                client.say_bytes(b"x" * 65_536)
                sent += 65_536
        except (BrokenPipeError, ConnectionResetError):
            pass  # it need not hear us out
        assert sent > MAX_MESH_LINE_BYTES
        assert error_code(client) == "LINE_TOO_LONG"
        assert client.hear() is None
    assert resident(process.pid) - before < 6 * 1024 * 1024
    with Client(hub.socket) as client:
        assert client.greet("ann")["type"] == "welcome"


def test_a_full_disk_is_told_and_leaves_nothing_half_written(hub):
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))

    hub.ready(preexec_fn=little_room)
    with Client(hub.socket) as client:
        client.say(chat("ann", "bob", "fits", receipt=True))
        assert client.hear()["payload"]["state"] == "spooled"
        refused = chat("ann", "bob", "x" * 5_000, receipt=True)
        client.say(refused)
        found = client.hear()
        assert (found["payload"]["code"], found["reply_to"]) == ("SPOOL_FAILED", refused["id"])
        client.say(chat("ann", "bob", "fits too", receipt=True))
        assert client.hear()["payload"]["state"] == "spooled"
    assert hub.texts("bob") == ["fits", "fits too"]


@pytest.mark.parametrize("kind", ["lock", "fifo", "link", "directory"])
def test_an_inbox_that_cannot_be_written_costs_its_senders_an_error_and_others_nothing(hub, kind, tmp_path):
    hub.ready()
    inbox = hub.directory / "inbox_bob.ndjson"
    held = None
    if kind == "lock":
        held = inbox.open("ab")
        fcntl.flock(held, fcntl.LOCK_EX)
    elif kind == "fifo":
        os.mkfifo(inbox)
    elif kind == "link":
        (tmp_path / "elsewhere").touch()
        os.symlink(tmp_path / "elsewhere", inbox)
    else:
        inbox.mkdir()
    with Client(hub.socket) as stuck, Client(hub.socket) as other, Client(hub.socket) as listener:
        listener.greet("joe")
        stuck.say(chat("ann", "bob", "never", receipt=True))
        for number in range(50):
            other.say(chat("sue", "joe", str(number), receipt=True))
            assert other.hear()["payload"]["state"] == "live"
        assert error_code(stuck) == "SPOOL_FAILED"
    if held is not None:
        held.close()
    assert hub.texts("joe") == [str(number) for number in range(50)]
    if kind == "link":
        assert (tmp_path / "elsewhere").read_bytes() == b""


def test_a_listener_that_is_stopped_leaves_the_others_alone_and_loses_no_mail(hub):
    """Over 10 MB, one of two listeners reads nothing: the other gets every line in order, and the spools are whole."""
    hub.ready()
    count, body = 2_600, "x" * 4_000
    with Client(hub.socket) as stopped, Client(hub.socket) as listener, Client(hub.socket) as sender:
        stopped.greet("slow")
        listener.greet("bob")
        got: list[int] = []

        def read() -> None:
            while len(got) < count:
                got.append(int(listener.hear()["payload"]["text"].split()[0]))

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(count):
            for recipient in ("slow", "bob"):
                sender.say(chat("ann", recipient, f"{number} {body}", receipt=recipient == "bob"))
            assert sender.hear()["type"] == "receipt"
        reader.join(120)
        assert got == list(range(count))
        for session in ("slow", "bob"):
            assert [int(text.split()[0]) for text in hub.texts(session)] == list(range(count))

        def is_free() -> bool:
            with Client(hub.socket) as newcomer:
                return bool(newcomer.greet("slow")["type"] == "welcome")

        until(is_free, "who has stopped reading holds its id no more")
        live = [each["payload"]["text"] for each in stopped.hear_to_the_end()]
        assert len(live) < count


def test_two_hundred_senders_at_once_each_deliver_once(hub):
    hub.ready()
    with Client(hub.socket) as listener:
        listener.greet("bob")
        failures: list[str] = []

        def send(number: int) -> None:
            with Client(hub.socket) as sender:
                sender.say(chat(f"s{number}", "bob", str(number), receipt=True))
                sender.end()
                answers = sender.hear_to_the_end()
                if [each["type"] for each in answers] != ["receipt"]:
                    failures.append(f"{number}: {answers}")

        threads = [threading.Thread(target=send, args=(number,)) for number in range(200)]
        for thread in threads:
            thread.start()
        live = [listener.hear()["payload"]["text"] for _ in threads]
        for thread in threads:
            thread.join(120)
    assert failures == []
    assert sorted(map(int, live)) == list(range(200))
    assert hub.texts("bob") == live


def test_a_sender_that_reads_no_answers_waits_for_itself(hub):
    hub.ready()
    count = 5_000
    with Client(hub.socket) as greedy, Client(hub.socket) as other:
        asking = [chat("ann", "bob", str(number), receipt=True) for number in range(count)]
        sender = threading.Thread(target=greedy.say, args=asking)
        sender.start()
        other.say(chat("joe", "sue", "hi", receipt=True))
        assert other.hear()["payload"]["state"] == "spooled"
        assert [greedy.hear()["reply_to"] for _ in range(count)] == [each["id"] for each in asking]
        sender.join(60)
    assert len(hub.texts("bob")) == count


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_stores_what_has_arrived_and_closes_everybody(hub, number):
    process = hub.ready()
    with Client(hub.socket) as listener, Client(hub.socket) as idle, Client(hub.socket) as sender:
        listener.greet("bob")
        idle.greet("joe")
        sender.say(*(chat("ann", "bob", str(each)) for each in range(100)))
        sender.say(chat("ann", "joe", "last", receipt=True))
        assert sender.hear()["type"] == "receipt"
        process.send_signal(number)
        assert process.wait(60) == 0
        assert len(listener.hear_to_the_end()) == 100
        assert [each["payload"]["text"] for each in idle.hear_to_the_end()] == ["last"]
        assert sender.hear() is None
    assert hub.texts("bob") == [str(each) for each in range(100)]
    assert hub.peers()["active_sessions"] == []
    assert not hub.socket.exists()
    assert (hub.directory / "hub.lock").exists()  # F50


def test_a_signal_ends_it_beside_a_lock_that_is_held_and_a_client_that_reads_nothing(hub):
    process = hub.ready()
    with (
        (hub.directory / "inbox_bob.ndjson").open("ab") as held,
        Client(hub.socket) as stuck,
        Client(hub.socket) as deaf,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        stuck.say(*(chat("ann", "bob", "never") for _ in range(10)))
        deaf.greet("deaf")
        deaf.say(*(chat("deaf", "sue", str(number), receipt=True) for number in range(800)))
        process.terminate()
        assert process.wait(60) == 0
    assert not hub.socket.exists()


def test_everything_is_private(hub):
    hub.ready(umask=0)
    with Client(hub.socket) as client:
        client.say(chat("ann", "bob", "x", receipt=True))
        client.hear()
    for path in hub.directory.iterdir():
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600, path


def test_no_text_is_in_the_log(hub):
    process = hub.ready()
    with Client(hub.socket) as client:
        client.greet("ann")
        client.say(chat("ann", "bob", "a secret of ours"), chat("joe", "bob", "a secret of ours"))
        client.say_bytes(b'{"a secret of ours"\n')
        assert error_code(client) == "SENDER_MISMATCH"
        assert error_code(client) == "BAD_JSON"
    process.terminate()
    process.wait(60)
    assert "hub stopped" in hub.log()
    assert "secret" not in hub.log()


class QuietLog:
    def info(self, event: str, **more: object) -> None:
        pass

    warning = error = exception = info


async def test_who_connected_just_before_an_idle_hub_leaves_is_served(base, channel):
    """The name is taken away first, then it is looked who came before that, all under the lock."""
    with Leadership(channel, lead(channel)) as leadership, socket.socket(socket.AF_UNIX) as late:
        server = Server(leadership, QuietLog(), 10, 0)
        late.connect(os.fspath(channel.socket))
        async with trio.open_nursery() as server._nursery:
            assert not server._leaves()
            assert not channel.socket.exists()
            with pytest.raises(Held):
                lead(channel)
            late.sendall(json.dumps(envelope("announce", "ann")).encode() + b"\n")
            await trio.lowlevel.wait_readable(late)
            assert json.loads(late.recv(4096))["type"] == "welcome"
            assert leadership.mend() is Place.ABSENT
            with socket.socket(socket.AF_UNIX) as another:
                another.connect(os.fspath(channel.socket))
            late.close()
            server._nursery.cancel_scope.cancel()
        leadership.listener.sock.accept()[0].close()
        assert server._leaves()


class Host:
    """As much of a hub as one connection needs."""

    def __init__(self) -> None:
        self.mesh = Mesh("room")
        self.link = self.mesh.open()
        self.connection: Connection | None = None

    def flush(self) -> None:
        self.mesh.dirty.clear()
        if self.connection is not None:
            self.connection.flush()

    def store(self, post: Post) -> Errand:
        raise AssertionError("nothing is stored here")

    async def hear_out(self, holder: Link) -> bool:
        raise AssertionError("nobody else is here")


async def test_who_asks_and_reads_no_answer_is_let_go(autojump_clock):
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        host = Host()
        host.connection = Connection(host, ours, host.link)
        line = json.dumps(envelope("register", "ann")).encode() + b"\n"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.connection.run)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                while True:
                    await trio.lowlevel.wait_writable(theirs)
                    theirs.send(line)
        assert host.mesh.sessions() == []
        assert ours.fileno() < 0


async def test_a_bug_in_spooling_costs_an_error_not_the_hub(channel):
    def broken() -> Channel:
        raise ZeroDivisionError

    post = Post(ndjson.chat("ann", "bob", "x", "room"), b"", ("bob",))
    async with trio.open_nursery() as nursery:
        errand = Spooler(nursery, broken, lambda post, session: None, QuietLog()).store(post)
        await errand.done.wait()
    assert post.failures == ["not stored for bob: internal error"]
