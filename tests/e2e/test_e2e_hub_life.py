"""A real hub from ready to drained: ceiling, gates, numbers, supervisor, logs, load (awh1.md §4.1, §5, §6, §7)."""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading

import open_metrics
import pytest
from independent_client import ERROR, WAKE, HubClosed, Refused

CEILING = (507, "hub at its connection ceiling")


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_flushes_what_is_queued_unlinks_and_ends_well(hub, number):
    names = [f"a{each}" for each in range(10)]
    hub.home.enroll(*names, "late")
    hub.start()
    clients = [hub.connect(name) for name in names]
    for _ in range(20):
        for client in clients:
            client.wake(names[0], "m_1")
    for client in clients:
        assert client.ping() == []
    hub.send_signal(number)
    wakes = [client.wait_closed() for client in clients]
    assert hub.wait_exit() == 0
    assert len([frame for frame in wakes[0] if frame.kind == WAKE]) == 200
    assert wakes[1:] == [[]] * 9
    assert sorted(os.listdir(hub.home.run)) == ["allowlist.jws"]
    assert hub.home.hub_lock.exists()
    assert [entry["event"] for entry in hub.logs() if entry["event"].startswith("hub")] == [
        "hub ready", "hub stopping", "hub stopped",
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError):
        hub.open()


def _deafen(hub, sender, name: str) -> None:
    """Wake an agent that does not read until its queue at the hub is full."""
    while not hub.stats()['overflow_total{cause="recipient_frames"}']:
        for _ in range(100):
            sender.wake(name, "m" * 20)
        sender.ping()


def test_a_second_signal_ends_it_at_once_though_a_peer_does_not_read(hub):
    hub.home.enroll("alice", "deaf")
    hub.start()
    alice, _deaf = hub.connect("alice"), hub.connect("deaf")
    _deafen(hub, alice, "deaf")
    hub.send_signal(signal.SIGTERM)
    hub.wait_log("hub stopping")
    assert hub.process.poll() is None
    hub.send_signal(signal.SIGINT)
    assert hub.wait_exit() == 1
    assert hub.logs("hub ends at once")
    assert not hub.home.hub_socket.exists()


def test_the_reader_of_its_log_may_go(hub):
    hub.home.enroll("alice")
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-m", "wakehub", "serve"], stderr=writer, env=hub.home.environment())
    try:
        os.close(writer)
        assert b"hub ready" in os.read(reader, 65536)
        os.close(reader)
        for _ in range(3):
            alice = hub.connect("alice")
            assert alice.ping() == []
            alice.close()
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(20)


# --- the ceiling and the lack of descriptors --------------------------------------------------------------------------


def test_three_hundred_connections_against_a_ceiling_of_256(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice = hub.connect("alice")
    held = [hub.open() for _ in range(255)]
    surplus = [hub.open() for _ in range(44)]
    for client in held:
        client.challenge()
    for client in surplus:
        frame = client.recv_frame()
        assert (frame.kind, frame.error, frame.from_, frame.to) == (ERROR, CEILING, "wakehub", "")
        assert client.wait_closed() == []
    assert hub.stats()["connections"] == 256
    assert hub.stats()['refused_total{cause="ceiling",label=""}'] == 44
    assert [(entry["limit"], entry["times"]) for entry in hub.logs("refused", cause="ceiling")] == [(256, 1)]
    for client in held:
        client.close()
    hub.until(lambda: hub.stats()["connections"] == 1, "the slots come back")
    bob = hub.connect("bob")
    bob.wake("alice", "m_1")
    assert alice.recv_wake().wake.row_id == "m_1"


def test_a_refusal_at_the_ceiling_is_an_error_to_a_client_that_asks_for_a_session(hub):
    hub.home.enroll("alice")
    hub.home.configure("[hub]\nmax_connections = 8\n")
    hub.start()
    held = [hub.open() for _ in range(8)]
    for client in held:
        client.challenge()
    with pytest.raises(Refused, match="507 hub at its connection ceiling"):
        hub.connect("alice")
    held[0].close()
    hub.until(lambda: hub.stats()["connections"] == 7, "a slot came back")
    assert hub.connect("alice").ping() == []


def test_without_descriptors_those_who_wait_are_served_once_there_are_some_again(hub):
    """The hub inherits so many descriptors that fewer are left than its limit promises."""

    def occupy() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        for number in range(10, 40):
            os.dup2(0, number)

    hub.home.enroll("alice", "bob")
    hub.start(preexec_fn=occupy, close_fds=False)
    assert hub.wait_log("hub ready")["ceiling"] == 32
    waiting = [hub.open() for _ in range(32)]
    hub.wait_log("accept fails", error="EMFILE")
    for client in waiting[:16]:
        client.close()
    hub.wait_log("accept works again")
    for client in waiting[16:]:
        client.challenge()
    alice, bob = hub.connect("alice"), hub.connect("bob")
    alice.wake("bob", "m_1")
    assert bob.recv_wake().wake.row_id == "m_1"
    assert len(hub.logs("accept fails")) == len(hub.logs("accept works again"))


# --- the gates --------------------------------------------------------------------------------------------------------

_KNOCK = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        print(repr(sock.recv(1)))
"""


def test_another_user_gets_not_one_byte_on_either_socket(hub):
    hub.home.enroll("alice")
    hub.start()
    sockets = [hub.home.hub_socket, hub.home.stats_socket]
    if os.geteuid() == 0:
        hub.home.path.chmod(0o711)  # what keeps others away before the hub even looks at them
        hub.home.run.chmod(0o711)
        for path in sockets:
            path.chmod(0o666)
        answer = subprocess.run(
            [sys.executable, "-c", _KNOCK, *map(str, sockets)], capture_output=True, text=True, timeout=20, cwd="/"
        )
        assert (answer.stdout, answer.stderr) == ("b''\n" * 2, "")
        assert hub.wait_log("refused", cause="credential")["uid"] == 65534
        assert hub.stats()['refused_total{cause="credential",label=""}'] == 2
    else:  # nobody can become somebody else: what is left to show is who is let in
        assert hub.stats()['refused_total{cause="credential",label=""}'] == 0
    assert hub.connect("alice").ping() == []


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_the_numbers_are_open_metrics_and_tell_what_happened(hub):
    hub.home.enroll("team/alice", "team/bob", "team/carol")
    hub.start()
    alice = hub.connect("team/alice")
    bob, carol = hub.connect("team/bob", ["#team"]), hub.connect("team/carol", ["#team"])
    alice.wake("team/bob", "m_1")
    alice.wake("#team", "m_2")
    alice.wake("nobody", "m_3")
    for client, number in ((bob, 2), (carol, 1)):
        for _ in range(number):
            client.recv_wake()
    alice.ping()
    families = open_metrics.parse(hub.stats_text())

    def value(name: str, **labels: str) -> float:
        return families[f"wakehub_{name}"].value(**labels)

    assert [value(name) for name in ("wakes_routed", "fanout_deliveries", "wakes_written")] == [2, 2, 3]
    assert [value(name) for name in ("connections", "recipients", "queued_bytes", "egress_bytes")] == [3, 3, 0, 0]
    assert value("refused", cause="unknown_agent", label="") == 1
    assert value("connection_ceiling") == 256
    assert families["wakehub_wake_latency_us"].samples["_count", ()] == 3
    assert families["wakehub_fanout_us"].samples["_count", ()] == 1
    assert value("accepted") == 4  # the hub's own look at the start, and three clients


def test_readers_of_the_numbers_hold_nobody_up(hub):
    hub.home.enroll("alice")
    hub.start()
    alice = hub.connect("alice")
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            reader = stack.enter_context(socket.socket(socket.AF_UNIX))
            reader.connect(str(hub.home.stats_socket))
        assert alice.ping() == []
    hub.until(lambda: hub.stats_text(), "readers are served again")


# --- the supervisor ---------------------------------------------------------------------------------------------------


@pytest.fixture
def supervisor(home):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(home.path / "notify"))
        sock.settimeout(20)
        yield sock


def test_the_supervisor_hears_that_it_is_ready_once_it_answers_then_that_it_lives_and_stops(hub, supervisor):
    hub.home.enroll("alice")
    hub.start(wait=False, environ={"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "100000"})
    heard: list[str] = []

    def hear(what: str) -> None:
        while what not in heard:
            heard.append(supervisor.recv(1000).decode())

    hear("READY=1")
    assert hub.connect("alice").ping() == []
    hear("STATUS=1 agents connected")
    heard.clear()
    hear("WATCHDOG=1")
    hub.send_signal(signal.SIGTERM)
    hear("STOPPING=1")
    assert hub.wait_exit() == 0


@pytest.mark.parametrize("address", ["/nowhere/notify", "@wakehub-nobody-listens"])
def test_a_supervisor_that_cannot_be_reached_is_no_reason_to_fail(hub, address):
    hub.home.enroll("alice")
    hub.start(environ={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "10000"})
    assert len(hub.logs("supervisor cannot be notified")) == 1
    assert hub.connect("alice").ping() == []
    assert hub.stop() == 0
    assert len(hub.logs("supervisor cannot be notified")) == 1


def test_a_hub_that_lost_its_directories_still_serves_who_is_there_and_ends_well(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice, bob = hub.connect("alice"), hub.connect("bob")
    for path in (hub.home.hub_socket, hub.home.stats_socket):
        path.unlink()
    shutil.rmtree(hub.home.state)
    alice.wake("bob", "m_1")
    assert bob.recv_wake().wake.row_id == "m_1"
    assert hub.stop() == 0


# --- the log ----------------------------------------------------------------------------------------------------------


def test_every_line_is_json_with_one_line_for_each_change(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice = hub.connect("alice")
    alice.wake("alice", "m_secret_row", "a namespace", "a sender")
    alice.recv_wake()
    hub.connect("bob").depart()
    hub.wait_log("agent disconnected", agent="bob")
    hub.connect("alice")
    hub.wait_log("agent disconnected", agent="alice")
    assert hub.stop() == 0
    entries = [json.loads(line) for line in hub.lines]
    assert all(entry["program"] == "hub" and entry["timestamp"].endswith("Z") for entry in entries)
    assert [(entry["event"], entry.get("agent", ""), entry.get("why", "")) for entry in entries] == [
        ("hub ready", "", ""),
        ("agent connected", "alice", ""),
        ("agent connected", "bob", ""),
        ("agent disconnected", "bob", "departed"),
        ("agent disconnected", "alice", "replaced"),
        ("agent connected", "alice", ""),
        ("hub stopping", "", ""),
        ("agent disconnected", "alice", "disconnected"),
        ("hub stopped", "", ""),
    ]
    assert not any("m_secret_row" in line or "a namespace" in line for line in hub.lines)


def test_an_id_cannot_forge_a_line(hub):
    forged = 'x","event":"hub stopped\u202e\u2028'
    hub.home.enroll(forged)
    hub.start()
    hub.connect(forged)
    shown = 'x","event":"hub stopped\\u202e\\u2028'
    assert hub.wait_log("agent connected")["agent"] == shown
    stranger = hub.open()
    stranger.challenge()
    stranger.send_frame(1, from_="\u202eevil", payload=bytes(32 + 64) + b"\0\0\0")
    stranger.wait_closed()
    assert hub.wait_log("refused", label="bad_certificate")["agent"] == "\\u202eevil"


def test_a_cause_that_repeats_is_one_line(hub):
    hub.home.enroll("alice")
    hub.start()
    for number in range(50):
        client = hub.open()
        client.challenge()
        client.send_frame(1, from_=f"stranger-{number}", payload=bytes(32 + 64) + b"\0\0\0")
        client.wait_closed()
    assert hub.stats()['refused_total{cause="hello",label="bad_certificate"}'] == 50
    assert len(hub.logs("refused")) == 1


# --- many at once -----------------------------------------------------------------------------------------------------


def test_a_deaf_recipient_of_ten_thousand_wakes_beside_fifty_lively_agents(hub):
    """F80."""
    names = [f"lively-{number}" for number in range(50)]
    hub.home.enroll("deaf", *names)
    hub.start()
    deaf = hub.connect("deaf")
    lively = [hub.connect(name) for name in names]
    most_queued = 0.0
    answers = set()
    for turn in range(10):
        for number, client in enumerate(lively):
            for each in range(20):
                client.wake("deaf", f"{turn}-{number}-{each}".ljust(128, "."), "n" * 60)
            client.wake(names[number - 1], f"{turn}-{number}")
        for number, client in enumerate(lively):
            answers |= set(client.ping())
            assert client.recv_wake().wake.row_id == f"{turn}-{(number + 1) % 50}"
        stats = hub.stats()
        most_queued = max(most_queued, stats["queued_bytes"])
        assert (stats["queued_bytes"] <= 65_536, stats["queued_frames"] <= 256) == (True, True)
    assert answers == {(507, "recipient queue or hub egress budget full")}
    assert most_queued > 32_768
    assert hub.stats()["slow_consumers"] == 1

    lively[0].wake("lively-0", "still lively")
    assert lively[0].recv_wake().wake.row_id == "still lively"
    while hub.stats()["queued_frames"]:
        deaf.recv_frame()
    assert deaf.ping() == []
    lively[0].wake("deaf", "the last")
    while deaf.recv_wake().wake.row_id != "the last":
        pass
    assert hub.stats()["slow_consumers"] == 0
    assert hub.stats()["egress_bytes"] == 0


def test_fifty_agents_that_exchange_wakes_are_all_back_after_a_kill_and_a_restart(hub):
    names = [f"agent-{number}" for number in range(50)]
    hub.home.enroll(*names)
    hub.start()
    clients = {name: hub.connect(name) for name in names}
    before = set(clients.values())

    def neighbour(number: int) -> str:
        return names[(number + 1) % len(names)]

    for number, name in enumerate(names):
        clients[name].wake(neighbour(number), f"before-{number}")
    for number, name in enumerate(names):
        assert clients[neighbour(number)].recv_wake().wake.row_id == f"before-{number}"
        clients[name].wake(neighbour(number), "in flight")

    errors: list[BaseException] = []
    pause = threading.Event()

    def come_back(name: str) -> None:
        """What a client in the field does: notice the end, and try until the hub is there again."""
        try:
            clients[name].wait_closed()
            while True:
                try:
                    clients[name] = hub.connect(name)
                    return
                except (OSError, HubClosed):
                    pause.wait(0.01)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=come_back, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    hub.restart()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert not before & set(clients.values())
    for number, name in enumerate(names):
        clients[name].wake(neighbour(number), f"after-{number}")
    for number in range(len(names)):
        assert clients[neighbour(number)].recv_wake().wake.row_id == f"after-{number}"
    assert all(client.ping() == [] for client in clients.values())
    assert hub.stats()["recipients"] == 50
