"""The client's side (intercom.md §2, §3, §5, §8): towards our hub, others' hubs, dead and frozen ones, and none."""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_process import until
from mesh_independent_client import Client, chat

from wakehub.errors import Unavailable
from wakehub.intercom import client, ndjson
from wakehub.intercom.channels import Channel
from wakehub.intercom.ndjson import Refusal
from wakehub.intercom.spool import Batch, Inbox
from wakehub.locks import live_holder

OTHER_HUB = Path(__file__).with_name("mesh_independent_hub.py")


def say(channel: Channel, to: str, text: str, sender: str = "ann") -> client.Sent:
    return client.send(channel, ndjson.chat(sender, to, text, "room"))


def taken(channel: Channel, session: str) -> list[str]:
    found: list[str] = []
    client.drain(Inbox(channel, session), lambda batch: found.extend(each.text or "" for each in batch.envelopes))
    return found


LISTENER = """
import sys
from pathlib import Path
from wakehub.errors import WakehubError
from wakehub.intercom import client
from wakehub.intercom.channels import Channel

def hand_over(batch):
    for each in batch.envelopes:
        print(each.text)
    sys.stdout.flush()

with Channel.open(Path(sys.argv[1]), "room") as channel:
    try:
        client.listen(channel, sys.argv[2], hand_over, stop=0)
    except WakehubError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit)
"""


class Listener:
    """`client.listen` as a process; what it prints is in `lines`. Its standard input's end stops it."""

    def __init__(self, base: Path, session: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", LISTENER, str(base), session],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def stop(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        status = self.process.wait(60)
        self._reader.join(60)
        self.error = self.process.stderr.read()
        self.process.stderr.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@pytest.fixture
def listen(base: Path) -> Iterator[Callable[[str], Listener]]:
    started: list[Listener] = []

    def start(session: str) -> Listener:
        started.append(Listener(base, session))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        if each.process.stdout is not None and not each.process.stdout.closed:
            each.stop()


@pytest.fixture
def other_hub(hub, channel: Channel) -> Iterator[subprocess.Popen[str]]:
    """A hub of another make, in the channel of `hub`, none of which is started."""
    with subprocess.Popen(
        [sys.executable, str(OTHER_HUB), str(channel.path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


# --- our hub ---


def test_a_first_send_starts_the_hub_and_says_what_became_of_it(hub, channel, listen):
    listener = None
    assert say(channel, "bob", "1").status == "spooled_offline"
    assert hub.peers()["hub_pid"]
    listener = listen("bob")
    until(lambda: "bob" in hub.peers()["active_sessions"], "it listens")
    assert say(channel, "bob", "2").status == "sent"
    assert say(channel, "*", "3").status == "sent"
    until(lambda: len(listener.lines) == 3, "all came")
    assert listener.stop() == 0
    assert listener.lines == ["1", "2", "3"]
    assert taken(channel, "bob") == []


def test_a_second_listener_ends_with_one_line_and_the_first_stays(hub, channel, listen):
    first = listen("bob")
    until(lambda: "bob" in hub.peers()["active_sessions"], "it listens")
    second = listen("bob")
    assert second.process.wait(60) == 75
    second.stop()
    assert second.error.count("\n") == 1
    assert "bob is connected to the channel room already" in second.error
    assert say(channel, "bob", "to myself", "bob").status == "sent"
    until(lambda: first.lines == ["to myself"], "the first one has it")
    assert first.stop() == 0


def test_f21_a_hub_that_is_killed_loses_nothing_and_repeats_nothing(hub, channel, listen):
    """kill -9 of the hub, again and again, under two listeners and a sender that goes on."""
    listeners = {session: listen(session) for session in ("bob", "joe")}
    until(lambda: set(hub.peers()["active_sessions"]) == set(listeners), "both listen")
    sent = []
    for number in range(120):
        if number % 30 == 15:
            leader = until(lambda: live_holder(hub.directory / "hub.lock"), "a hub leads")
            os.kill(leader.pid, signal.SIGKILL)
        for session in listeners:
            assert say(channel, session, f"{number}").status != "error"
        sent.append(f"{number}")
    for session, listener in listeners.items():
        until(lambda: len(listener.lines) >= len(sent), f"all reached {session}")  # noqa: B023
        assert listener.stop() == 0
        assert listener.lines == sent
        assert hub.texts(session) == sent


def test_a_listener_that_was_stopped_and_goes_on_has_everything_once(hub, channel, listen):
    """SIGSTOP over 10 MB: the other one is told all of it meanwhile, in order."""
    stopped, other = listen("slow"), listen("bob")
    until(lambda: hub.peers()["active_sessions"] == ["bob", "slow"], "both listen")
    stopped.process.send_signal(signal.SIGSTOP)
    count, body = 2_600, "x" * 4_000
    with Client(hub.socket) as sender:
        for number in range(count):
            sender.say(chat("ann", "slow", f"{number} {body}"), chat("ann", "bob", f"{number} {body}"))
        sender.end()
        assert sender.hear() is None
    until(lambda: len(other.lines) == count, "the other one has everything")
    assert [int(line.split()[0]) for line in other.lines] == list(range(count))
    stopped.process.send_signal(signal.SIGCONT)
    until(lambda: len(stopped.lines) >= count, "so has the one that was stopped")
    for listener in (stopped, other):
        assert listener.stop() == 0
        assert [int(line.split()[0]) for line in listener.lines] == list(range(count))


def test_listeners_revive_a_hub_that_was_killed_without_anybody_sending(hub, channel, listen):
    listen("bob")
    before = until(lambda: "bob" in hub.peers()["active_sessions"] and hub.peers()["hub_pid"], "it listens")
    os.kill(before, signal.SIGKILL)
    until(lambda: hub.peers()["hub_pid"] != before and "bob" in hub.peers()["active_sessions"], "it is back")


def test_many_that_send_at_once_without_a_hub_start_one_and_each_message_is_there_once(hub, base):
    outcomes: list[str] = []

    def send(number: int) -> None:
        with Channel.open(base, "room") as channel:
            outcomes.append(say(channel, "bob", str(number), f"s{number}").status)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(outcomes) == 50
    assert "error" not in outcomes
    assert sorted(map(int, hub.texts("bob"))) == list(range(50))


def test_what_could_not_be_handed_over_stays_unread(channel):
    Inbox(channel, "bob").append([ndjson.chat("ann", "bob", "1", "room").line()])

    def broken(batch: object) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        client.drain(Inbox(channel, "bob"), broken)
    assert taken(channel, "bob") == ["1"]


@pytest.mark.parametrize("hub_dies", [True, False])
def test_a_listener_goes_on_when_the_directory_is_taken_away(hub, base, listen, hub_dies):
    listener = listen("bob")
    before = until(lambda: "bob" in hub.peers()["active_sessions"] and hub.peers()["hub_pid"], "it listens")
    hub.directory.rename(base / "away")
    shutil.rmtree(base / "away", ignore_errors=True)
    if hub_dies:
        os.kill(before, signal.SIGKILL)
    until(lambda: hub.directory.exists() and "bob" in hub.peers()["active_sessions"], "it is back")
    assert (hub.peers()["hub_pid"] != before) == hub_dies
    with Channel.open(base, "room") as anew:
        assert say(anew, "bob", "there").status == "sent"
    until(lambda: listener.lines == ["there"], "it came")
    assert listener.stop() == 0


@contextlib.contextmanager
def bob_listens(channel: Channel) -> Iterator[tuple[list[str], list[str]]]:
    """Bob's listener in a thread of this process: the texts that it handed over, and what it told."""
    found: list[str] = []
    told: list[str] = []
    stop, ring = os.pipe()

    def hand_over(batch: Batch) -> None:
        found.extend(each.text or "" for each in batch.envelopes)

    thread = threading.Thread(
        target=lambda: client.listen(channel, "bob", hand_over, stop=stop, tell=told.append), daemon=True
    )
    thread.start()
    yield found, told
    os.write(ring, b".")
    thread.join(60)
    for fd in (stop, ring):
        os.close(fd)
    assert not thread.is_alive()


def test_a_listener_on_a_full_disk_prints_a_message_once_and_says_why_it_is_unread(hub, channel):
    """Woken again and again, and looking by itself, while its offset cannot be moved."""
    hub.ready()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # of this process: the hub has room
        try:
            found, told = stack.enter_context(bob_listens(channel))
            for number in range(3):
                with Client(hub.socket) as sender:
                    sender.say(chat("ann", "bob", str(number)))
                    sender.end()
                    assert sender.hear() is None
                until(lambda: str(number) in found, "it came")  # noqa: B023
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        size = (hub.directory / "inbox_bob.ndjson").stat().st_size
        until(lambda: Inbox(channel, "bob").document().get("offset") == size, "it is noted once there is room")
    assert found == ["0", "1", "2"]
    assert len(told) == 1
    assert "bob is not noted as read" in told[0]
    assert "free space" in told[0]


@pytest.mark.parametrize("trouble", ["another reader that hands over without end", "no descriptor left"])
def test_a_listener_that_cannot_read_its_inbox_says_why_and_goes_on_when_it_can(hub, channel, trouble):
    hub.ready()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Client(hub.socket) as sender, bob_listens(channel) as (found, told):
        until(lambda: "bob" in hub.peers()["active_sessions"], "it listens")
        with contextlib.ExitStack() as stack:
            if trouble == "no descriptor left":
                stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # of this process: the hub has some
            else:
                stack.enter_context(Inbox(channel, "bob", patience_ms=60_000).taking())
            sender.say(chat("ann", "bob", "1"))
            until(lambda: told, "it is told")
            assert found == []
        until(lambda: found == ["1"], "it came")
    (line,) = told
    assert ("EMFILE" if trouble == "no descriptor left" else "reading of the inbox of bob is locked") in line


def test_a_hub_that_ends_at_once_is_not_started_again_and_again(hub, channel):
    """Each that was tried has said in the log why it ended."""
    (hub.directory / "hub.lock").mkdir()
    assert say(channel, "bob", "by the spool").status == "fallback_spooled"
    assert 1 <= channel.log.read_text().count("hub.lock is not a file of ours") <= 11
    (hub.directory / "hub.lock").rmdir()


def test_a_refusal_of_the_hub_is_told(hub, channel):
    hub.ready()
    (hub.directory / "inbox_bob.ndjson").mkdir()
    found = say(channel, "bob", "x")
    assert found.status == "error"
    assert "SPOOL_FAILED" in found.message
    assert found.message.isprintable()


@pytest.mark.parametrize(("sender", "to"), [("../x", "bob"), ("ann", "../x"), ("ann", "hub")])
def test_f43_what_is_no_id_reaches_neither_hub_nor_file(channel, sender, to):
    with pytest.raises(Refusal):
        client.send(channel, ndjson.Envelope("chat", sender, to))
    assert not list(channel.path.iterdir())


def test_mail_is_waited_for(channel):
    inbox = Inbox(channel, "bob")
    assert not client.wait_for_mail(inbox, 0)
    sender = threading.Thread(target=inbox.append, args=([ndjson.chat("ann", "bob", "1", "room").line()],))
    sender.start()
    assert client.wait_for_mail(inbox, 60)
    sender.join()
    assert taken(channel, "bob") == ["1"]


# --- hubs that are killed, frozen, or answer nothing ---


def test_a_frozen_hub_is_done_without_and_what_it_does_later_is_done_already(hub, channel):
    process = hub.ready()
    process.send_signal(signal.SIGSTOP)
    assert say(channel, "bob", "1").status == "fallback_spooled"
    with pytest.raises(Unavailable, match="does not answer"):
        client.join(channel, "ann")
    assert taken(channel, "bob") == ["1"]
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)  # it takes what has arrived, and ends
    assert process.wait(60) == 0
    assert hub.texts("bob") == ["1"]
    assert taken(channel, "bob") == []


class Scripted:
    """A hub that takes a connection, reads a line, does `act` with it and closes."""

    def __init__(self, channel: Channel, act: Callable[[bytes, socket.socket], None]) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(os.fspath(channel.socket))
        self._sock.listen()
        self._act = act
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._sock.accept()
                with sock, sock.makefile("rb") as file:
                    self._act(file.readline(), sock)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(60)


def test_a_hub_that_closes_before_it_stored_a_chat_loses_it_not(channel):
    with Scripted(channel, lambda line, sock: None):
        assert say(channel, "bob", "1").status == "fallback_spooled"
    assert taken(channel, "bob") == ["1"]


def test_a_hub_that_closes_after_it_stored_a_chat_gets_it_not_again(channel):
    with Scripted(channel, lambda line, sock: Inbox(channel, "bob").append([line])):
        assert say(channel, "bob", "1").status == "spooled_offline"
    assert len((channel.path / "inbox_bob.ndjson").read_bytes().splitlines()) == 1
    assert taken(channel, "bob") == ["1"]


def test_a_hub_that_says_something_else_is_no_hub(channel):
    with Scripted(channel, lambda line, sock: sock.sendall(b"x" * 2_000_000 + b"\n")):
        assert say(channel, "bob", "1").status == "fallback_spooled"
    assert taken(channel, "bob") == ["1"]


def test_f88_what_a_hub_says_is_shown_in_one_visible_line(channel):
    said = ndjson.Envelope("error", "hub", "ann", "room", {"code": "X\n", "message": "\x1b]52;c;x\x07"}).line()
    with Scripted(channel, lambda line, sock: sock.sendall(said)):
        with pytest.raises(Unavailable, match=r"X\\n: \\x1b\]52") as caught:
            client.join(channel, "ann")
        sent = say(channel, "bob", "1")
    assert str(caught.value).isprintable()
    assert (sent.status, sent.message.isprintable()) == ("error", True)


# --- a hub of another make ---


@pytest.mark.usefixtures("other_hub")
def test_our_client_sends_listens_and_reads_with_a_hub_of_another_make(hub, channel, listen):
    assert say(channel, "bob", "1").status == "spooled_offline"
    listener = listen("bob")
    until(lambda: "bob" in hub.peers()["active_sessions"], "it listens")
    assert say(channel, "bob", "2").status == "sent"
    assert say(channel, "*", "3").status == "sent"
    with Client(hub.socket) as other:
        other.say(chat("joe", "bob", "4"))
        other.end()
        other.hear_to_the_end()
    until(lambda: listener.lines == ["1", "2", "3", "4"], "all came once")
    assert listener.stop() == 0
    assert hub.texts("bob") == ["1", "2", "3", "4"]
    assert say(channel, "bob", "5").status == "spooled_offline"
    assert taken(channel, "bob") == ["5"]


@pytest.mark.usefixtures("other_hub")
def test_one_id_listens_and_sends_also_where_the_hub_takes_a_sender_for_a_listener(hub, channel, listen):
    listener = listen("bob")
    until(lambda: "bob" in hub.peers()["active_sessions"], "it listens")
    second = listen("bob")
    assert second.process.wait(60) == 75
    assert say(channel, "joe", "1", "bob").status == "fallback_spooled"
    assert say(channel, "bob", "2", "bob").status == "fallback_spooled"
    until(lambda: listener.lines == ["2"], "its own spool is looked at")
    assert hub.texts("joe") == ["1"]
    assert listener.stop() == 0


def test_our_hub_takes_the_place_of_another_one_that_ended(hub, channel, other_hub, listen):
    listener = listen("bob")
    until(lambda: "bob" in hub.peers()["active_sessions"], "it listens")
    other_hub.kill()
    other_hub.wait(60)
    until(lambda: hub.peers()["hub_pid"] not in (0, other_hub.pid), "ours leads")
    until(lambda: "bob" in hub.peers()["active_sessions"], "it listens again")
    assert say(channel, "bob", "1").status == "sent"
    until(lambda: listener.lines == ["1"], "it came")
    assert listener.stop() == 0


def test_the_independent_hub_is_what_it_is_meant_to_be(hub, other_hub):
    """Registration by whatever comes first, no receipt, closed behind the last line."""
    with Client(hub.socket) as sender:
        sender.say(*(chat("ann", "bob", str(number), receipt=True) for number in range(5)))
        sender.end()
        assert [each["type"] for each in sender.hear_to_the_end()] == ["welcome"]
    assert hub.texts("bob") == list("01234")
