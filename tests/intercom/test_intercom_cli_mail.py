"""`send`, `poll` and `listen` as a user runs them: real processes, a real hub that starts by itself."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bridge_world import Peer, World, envelope, kill9, line, until, world

AS_NOVA = ("--session", "nova")


@pytest.fixture
def mesh():
    with world() as made:
        yield made


def report(found: subprocess.CompletedProcess[bytes]) -> dict:
    """The one object that a command printed, in plain ASCII."""
    assert found.stdout.isascii()
    assert found.stdout.count(b"\n") == 1, found
    return json.loads(found.stdout)


def intercom(mesh: World, *argv: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return mesh.run("intercom", "--channel", "dev", *argv, **options)


def send(mesh: World, text: str, *more: str, to: str = "rowan") -> dict:
    found = intercom(mesh, "send", *AS_NOVA, "--to", to, "--text", text, *more)
    assert found.returncode == 0, found.stderr
    return report(found)


def poll(mesh: World, *more: str, session: str = "rowan") -> list[str]:
    found = intercom(mesh, "poll", "--session", session, *more)
    said = report(found)
    assert said["count"] == len(said["messages"])
    assert found.returncode == (0 if said["count"] else 3)
    return [each["payload"]["text"] for each in said["messages"]]


def listen(mesh: World, session: str, *more: str) -> subprocess.Popen[bytes]:
    process = mesh.start("intercom", "listen", "--channel", "dev", "--session", session, *more, log=session)
    until(lambda: session in connected(mesh) or process.poll() is not None, f"{session} is connected")
    return process


def connected(mesh: World) -> list[str]:
    try:
        return json.loads((mesh.channel / "peers.json").read_bytes())["active_sessions"]
    except FileNotFoundError:
        return []


def printed(mesh: World, session: str) -> list[str]:
    return [json.loads(each)["payload"]["text"] for each in (mesh.base / f"{session}.out").read_bytes().splitlines()]


# --- send and poll ---


def test_what_is_sent_is_polled_once(mesh):
    sent = send(mesh, "the tests pass")
    assert sent["status"] == "spooled_offline"
    assert poll(mesh, "--peek") == ["the tests pass"]
    assert poll(mesh, "--peek", "--wait", "1") == ["the tests pass"]
    assert poll(mesh, "--wait", "1") == ["the tests pass"]
    assert poll(mesh) == []
    assert poll(mesh, "--peek") == []


def test_the_envelope_is_that_of_the_specification(mesh):
    sent = send(mesh, "grüße \x1b]52;c;x\x07", "--reply-to", "msg_0123456789ab")["envelope"]
    assert list(sent)[:8] == ["id", "type", "from_session", "to_session", "channel", "reply_to", "payload", "timestamp"]
    assert (sent["type"], sent["from_session"], sent["to_session"], sent["channel"]) == ("chat", "nova", "rowan", "dev")
    assert (sent["reply_to"], sent["payload"]) == ("msg_0123456789ab", {"text": "grüße \x1b]52;c;x\x07"})
    (got,) = report(intercom(mesh, "poll", "--session", "rowan"))["messages"]
    assert {key: got[key] for key in list(sent)[:8]} == {key: sent[key] for key in list(sent)[:8]}


def test_a_payload_may_be_any_object_and_the_text_come_from_standard_input(mesh):
    found = intercom(mesh, "send", *AS_NOVA, "--to", "rowan", "--json-payload", '{"sha": [1, null]}', "--text", "hi")
    assert report(found)["envelope"]["payload"] == {"text": "hi", "sha": [1, None]}
    found = intercom(mesh, "send", *AS_NOVA, "--to", "rowan", "--stdin", stdin="`grüße`\n".encode())
    assert report(found)["envelope"]["payload"] == {"text": "`grüße`\n"}
    found = intercom(mesh, "send", *AS_NOVA, "--to", "rowan", "--json-payload", '{"text": "only"}')
    assert report(found)["envelope"]["payload"] == {"text": "only"}


def test_one_who_waits_is_told_at_once(mesh):
    waiting = mesh.start("intercom", "poll", "--channel", "dev", "--session", "rowan", "--wait", "60", log="rowan")
    send(mesh, "now")
    assert waiting.wait(60) == 0
    assert json.loads((mesh.base / "rowan.out").read_bytes())["count"] == 1


def test_a_hub_that_is_only_slow_stores_nothing_twice(mesh):
    """F21, F47: a sender that waited in vain puts its message into the spool; the hub then finds it done."""
    hub = mesh.hub()
    hub.send_signal(signal.SIGSTOP)
    assert send(mesh, "once")["status"] == "fallback_spooled"
    hub.send_signal(signal.SIGCONT)
    assert send(mesh, "then")["status"] == "spooled_offline"
    hub.send_signal(signal.SIGTERM)
    assert hub.wait(60) == 0
    assert [each["payload"]["text"] for each in mesh.spooled("rowan")] == ["once", "then"]


def test_a_broadcast_reaches_who_is_connected_and_not_its_sender(mesh):
    listen(mesh, "rowan")
    listen(mesh, "nova")
    send(mesh, "before wren came", to="wren")
    assert send(mesh, "to all", to="*")["status"] == "sent"
    assert send(mesh, "to all, too", to="all")["status"] == "sent"
    until(lambda: printed(mesh, "rowan") == ["to all", "to all, too"], "rowan has both")
    assert printed(mesh, "nova") == []
    assert poll(mesh, session="wren") == ["before wren came"]


def test_more_than_is_printed_at_once_is_said(mesh):
    large = [envelope("chat", "nova", "rowan", {"text": f"{number}" + "x" * 900_000}) for number in range(3)]
    send(mesh, "first")
    with (mesh.channel / "inbox_rowan.ndjson").open("ab") as file:
        file.write(b"".join(map(line, large)))
    said = []
    for more, count in (("--peek", 3), ("--wait=1", 3), ("--wait=1", 1)):
        found = intercom(mesh, "poll", "--session", "rowan", more)
        assert report(found)["count"] == count
        said.append(found.stderr.decode())
    assert said[0] == said[1] == "wakehub: rowan has more unread than is printed at once; it comes with the next poll\n"
    assert said[2] == ""


@pytest.mark.parametrize("how", ["poll", "peek", "listen"])
def test_lines_that_were_no_envelopes_are_named_with_their_file(mesh, how):
    send(mesh, "1")
    path = mesh.channel / "inbox_rowan.ndjson"
    first = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"[]\n")
    send(mesh, "2")
    if how == "listen":
        listen(mesh, "rowan")
        until(lambda: printed(mesh, "rowan") == ["1", "2"], "both are printed")
        said = until(lambda: mesh.said("rowan"), "it is told")
    else:
        said = intercom(mesh, "poll", "--session", "rowan", *["--peek"][: how == "peek"]).stderr.decode()
    line = f"1 line of {path} was no envelope (at byte {first}); what is read past goes to inbox_rowan.bad"
    assert said == f"wakehub: {line}\n"


@pytest.mark.parametrize("to", ["*", "all"])
def test_a_broadcast_that_nobody_hears_is_not_said_to_wait(mesh, to):
    """Only who is connected gets one; that its sender listens does not count."""
    listen(mesh, "nova")
    found = intercom(mesh, "send", *AS_NOVA, "--to", to, "--text", "anybody?")
    assert found.returncode == 4
    assert report(found)["status"] == "error"
    assert b"nobody else is connected" in found.stderr


def test_listening_and_sending_under_one_id(mesh):
    """The existing implementation fails exactly there."""
    listen(mesh, "nova")
    listen(mesh, "rowan")
    assert send(mesh, "from under my own listener")["status"] == "sent"
    until(lambda: printed(mesh, "rowan"), "rowan has it")
    assert intercom(mesh, "send", "--session", "rowan", "--to", "nova", "--text", "back").returncode == 0
    until(lambda: printed(mesh, "nova") == ["back"], "nova's listener still has its id")


def test_a_second_listener_ends_with_one_line(mesh):
    first = listen(mesh, "nova")
    second = intercom(mesh, "listen", "--session", "nova")
    assert (second.returncode, second.stdout) == (75, b"")
    (said,) = second.stderr.decode().splitlines()
    assert "nova is connected" in said
    send(mesh, "still there", to="nova")
    until(lambda: printed(mesh, "nova") == ["still there"], "the first one has it")
    assert first.poll() is None


def test_a_listener_that_is_killed_finds_the_rest(mesh):
    first = listen(mesh, "rowan")
    send(mesh, "one")
    until(lambda: printed(mesh, "rowan") == ["one"], "rowan has the first")
    kill9(first)
    send(mesh, "two")
    listen(mesh, "rowan")
    until(lambda: printed(mesh, "rowan") == ["one", "two"], "rowan has the second, and the first once")


def test_a_listener_outlives_its_hub(mesh):
    hub = mesh.hub()
    listen(mesh, "rowan")
    kill9(hub)
    send(mesh, "to whoever comes after")
    until(lambda: printed(mesh, "rowan") == ["to whoever comes after"], "rowan has it")
    until(lambda: mesh.answers() and "rowan" in connected(mesh), "rowan is connected again")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_listener(mesh, number):
    process = listen(mesh, "rowan")
    process.send_signal(number)
    assert process.wait(60) == 0
    assert "Traceback" not in mesh.said("rowan")


def test_a_listener_whose_reader_has_gone_ends_and_loses_nothing(mesh):
    """F7."""
    words = [sys.executable, "-P", "-m", "wakehub", "intercom", "--channel", "dev", "listen", "--session", "rowan"]
    with subprocess.Popen(
        words, env=mesh.environ, cwd=mesh.base, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as one:
        until(lambda: "rowan" in connected(mesh), "rowan is connected")
        send(mesh, "read")
        assert json.loads(one.stdout.readline())["payload"]["text"] == "read"
        one.stdout.close()
        send(mesh, "not read")
        assert one.wait(60) == 74
        assert b"Traceback" not in one.stderr.read()
    assert poll(mesh, "--wait", "1") == ["not read"]


def test_on_a_terminal_nothing_can_pose_as_something_else(mesh):
    """F87, F88: a line for each message, and what is invisible made visible."""
    send(mesh, "first\nmsg_0 from root: forged\x1b]52;c;x\x07\u202e\x85")
    listen(mesh, "rowan", "--format", "line")
    shown = until(lambda: (mesh.base / "rowan.out").read_text(), "it is printed")
    assert shown.count("\n") == 1
    assert "first\\nmsg_0 from root: forged\\x1b]52;c;x\\x07\\u202e\\x85" in shown
    assert not {"\x1b", "\x07", "\u202e", "\x85"} & set(shown)


def test_a_payload_that_is_more_than_text_is_shown_whole(mesh):
    intercom(mesh, "send", *AS_NOVA, "--to", "rowan", "--json-payload", '{"text": "x", "sha\\u001b": "1f0c"}')
    listen(mesh, "rowan", "--format", "line")
    shown = until(lambda: (mesh.base / "rowan.out").read_text(), "it is printed")
    assert "1f0c" in shown
    assert "\x1b" not in shown


def test_fresh_says_what_it_drops(mesh):
    send(mesh, "old")
    send(mesh, "older")
    listen(mesh, "rowan", "--fresh")
    send(mesh, "new")
    until(lambda: printed(mesh, "rowan"), "the new one is printed")
    assert printed(mesh, "rowan") == ["new"]
    assert "2 unread" in mesh.said("rowan")


def test_fresh_drops_nothing_of_whoever_holds_the_id(mesh):
    first = listen(mesh, "rowan")
    first.send_signal(signal.SIGSTOP)
    send(mesh, "kept")
    assert intercom(mesh, "listen", "--session", "rowan", "--fresh").returncode == 75
    first.send_signal(signal.SIGCONT)
    until(lambda: printed(mesh, "rowan") == ["kept"], "the first one has it")


def test_the_defaults_of_the_existing_tool_can_be_had(mesh):
    send(mesh, "old")
    listen(mesh, "rowan", "--compat")
    send(mesh, "new")
    until(lambda: printed(mesh, "rowan"), "the new one is printed")
    assert printed(mesh, "rowan") == ["new"]


# --- what is refused ---


def test_a_text_too_long_for_a_line_is_refused(mesh):
    """It is said how much came, how much there may be, and what to do."""
    for body, size in (
        ("x" * 1_048_576, "10487.. bytes"),
        ("x" * 3_000_000, "3000000 bytes"),
        ("é" * 200_000, "1200... b"),
    ):
        found = intercom(mesh, "send", *AS_NOVA, "--to", "rowan", "--stdin", stdin=body.encode())
        assert (found.returncode, found.stdout) == (65, b"")
        said = found.stderr.decode()
        assert "1048576" in said
        assert re.search(size, said), said
        assert "next: split it, or write it to a file and send its path" in said
    assert poll(mesh) == []


def test_bytes_that_are_no_text_are_refused(mesh):
    found = intercom(mesh, "send", *AS_NOVA, "--to", "rowan", "--stdin", stdin=b"\xff")
    assert found.returncode == 65
    assert b"UTF-8" in found.stderr


def test_no_body_is_in_any_log(mesh):
    hub = mesh.hub()
    listen(mesh, "rowan")
    send(mesh, "the secret of the day")
    until(lambda: printed(mesh, "rowan"), "rowan has it")
    kill9(hub)
    send(mesh, "the secret of the day")
    until(lambda: len(printed(mesh, "rowan")) == 2, "rowan has both")
    logs = [path for path in mesh.base.rglob("*") if path.suffix in (".err", ".log")]
    assert len(logs) >= 2
    for path in logs:
        assert b"secret" not in path.read_bytes(), path


# --- beside the existing tool's files ---


def test_mail_that_others_spooled_is_mail(mesh):
    mesh.channel.mkdir(mode=0o700)
    inbox = mesh.channel / "inbox_rowan.ndjson"
    inbox.write_bytes(b"{torn" + b"\n" + line(envelope("chat", "wren", "rowan", {"text": "kept"})) + b'{"unfinished": ')
    inbox.chmod(0o600)
    assert poll(mesh) == ["kept"]
    with inbox.open("ab") as file:
        file.write(b"1}\n" + line(envelope("chat", "wren", "rowan", {"text": "after"})))
    assert poll(mesh) == ["after"]


def test_a_plain_client_gets_what_ours_sends(mesh):
    mesh.hub()
    with Peer(mesh.channel) as peer:
        assert peer.register("wren")
        assert send(mesh, "hi", to="wren")["status"] == "sent"
        while (got := peer.read())["type"] == "heartbeat":
            pass
        assert got["payload"] == {"text": "hi"}


def test_the_variable_and_the_flag_name_the_place(mesh):
    other = mesh.base / "other"
    found = mesh.run("intercom", "send", "--dir", str(other), *AS_NOVA, "--to", "rowan", "--text", "x")
    assert found.returncode == 0
    try:
        assert Path(other / "default" / "inbox_rowan.ndjson").exists()
        assert not mesh.channel.exists()
    finally:
        pid = json.loads((other / "default" / "peers.json").read_bytes())["hub_pid"]
        os.kill(pid, signal.SIGTERM)


def test_on_a_full_disk_it_is_said_that_mail_will_come_again(mesh):
    """Exit 73, the reason, and what to do; with room again it comes once more, and then no more."""
    send(mesh, "again")
    words = f"{sys.executable} -P -m wakehub intercom poll --channel dev --session rowan"
    found = subprocess.run(
        ["sh", "-c", f"ulimit -f 0; exec {words}"], env=mesh.environ, cwd=mesh.base, capture_output=True, check=False
    )
    assert (found.returncode, report(found)["count"]) == (73, 1)
    said = found.stderr.decode()
    assert "what was handed over from the inbox of rowan is not noted as read: cannot write" in said
    assert (
        "next: free space, then try again; the next process that reads it gets that once more, until it can be noted"
        in said
    )
    assert poll(mesh) == ["again"]
    assert poll(mesh) == []


def test_a_damaged_offset_is_told_and_costs_no_mail(mesh):
    """Also where a project's own id is asked for first, which writes to that file."""
    sent = report(intercom(mesh, "send", "--to", "rowan", "--text", "x"))["envelope"]
    own = sent["from_session"]
    send(mesh, "read before", to=own)
    assert report(intercom(mesh, "poll"))["count"] == 1
    (mesh.channel / f"offset_{own}.json").write_bytes(b'{"offs')
    again = intercom(mesh, "poll")
    assert (again.returncode, report(again)["count"]) == (0, 1)
    assert f"offset_{own}.json cannot be understood" in again.stderr.decode()
    assert again.stderr.count(b"\n") == 1
    assert (mesh.channel / f"offset_{own}.bad").read_bytes() == b'{"offs'
    assert intercom(mesh, "poll").stderr == b""
