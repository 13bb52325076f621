"""`init`, `peers`, `cleanup` and `daemon` as a user runs them, with real processes."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from bridge_world import Peer, World, envelope, kill9, line, until, world


@pytest.fixture
def mesh():
    with world() as made:
        for name in ("a", "b"):
            (made.base / name).mkdir()
        yield made


def intercom(mesh: World, *argv: str, project: str = "a") -> subprocess.CompletedProcess[bytes]:
    return mesh.run("intercom", "--channel", "dev", *argv, cwd=mesh.base / project)


def report(mesh: World, *argv: str, project: str = "a", status: int = 0) -> dict:
    found = intercom(mesh, *argv, project=project)
    assert found.returncode == status, found
    assert found.stdout.isascii()
    return json.loads(found.stdout)


# --- init ---


def test_init_twice_in_one_project_gives_one_id(mesh):
    first, second = report(mesh, "init"), report(mesh, "init")
    assert first["session"] == second["session"]
    assert (first["new"], second["new"]) == (True, False)
    assert (second["active"], second["active_by_me"], second["unread"]) == (False, False, 0)
    assert Path(first["project"]) == mesh.base / "a"


def test_why_an_id_is_new_is_told(mesh):
    own = report(mesh, "init")["session"]
    file = mesh.base / "a" / ".intercom" / "session.json"
    named = json.loads(file.read_bytes())
    for document in ({**named, "channels": {}}, {"channels": {"other": {}}}, {}):
        file.write_text(json.dumps(document))
        found = intercom(mesh, "poll")
        (line,) = found.stderr.decode().splitlines()
        other = json.loads(file.read_bytes())["channels"]["dev"]["session"]
        assert other != own
        assert line == f"wakehub: this project is {other} on channel dev: {file} named no id for that channel, and " + (
            "names this one now"
        )
    file.write_text('{"channels": {"dev": {"session": "nova"}}}')
    found = intercom(mesh, "poll")
    assert (found.returncode, found.stdout) == (78, b"")
    assert f"next: mend it, or put it aside for a new identity: mv {file} {file}.bad" in found.stderr.decode()


def test_a_second_project_has_another_id(mesh):
    assert report(mesh, "init")["session"] != report(mesh, "init", project="b")["session"]


def test_every_command_in_a_project_goes_by_its_id(mesh):
    """F35: from a shell in a shell as well as with --project-dir from anywhere."""
    own = report(mesh, "init")["session"]
    assert report(mesh, "send", "--to", own, "--text", "to myself")["envelope"]["from_session"] == own
    found = mesh.run("intercom", "poll", "--channel", "dev", "--project-dir", str(mesh.base / "a"), cwd=mesh.base)
    assert json.loads(found.stdout)["count"] == 1


def test_no_command_needs_init(mesh):
    sent = report(mesh, "send", "--to", "wren", "--text", "x")["envelope"]["from_session"]
    assert report(mesh, "init")["session"] == sent


def test_active_and_active_by_me(mesh):
    own = report(mesh, "init")["session"]
    mesh.start("intercom", "listen", "--channel", "dev", log="a", cwd=mesh.base / "a")
    until(lambda: own in json.loads(intercom(mesh, "peers").stdout)["active_sessions"], "the listener is connected")
    here = report(mesh, "init")
    assert (here["session"], here["active"], here["active_by_me"]) == (own, True, True)
    other = report(mesh, "init", project="b")
    assert other["session"] != own
    assert other["active"] is False


def test_a_new_id_can_be_asked_for(mesh):
    first = report(mesh, "init")["session"]
    second = report(mesh, "init", "--force-new")
    assert second["replaced"] == first
    assert report(mesh, "init")["session"] == second["session"] != first


def test_fresh_drops_what_is_unread_and_says_so(mesh):
    own = report(mesh, "init")["session"]
    for _ in range(3):
        report(mesh, "send", "--to", own, "--text", "x", project="b")
    assert (report(mesh, "init")["unread"], report(mesh, "init")["dropped"]) == (3, 0)
    fresh = report(mesh, "init", "--fresh")
    assert (fresh["unread"], fresh["dropped"]) == (0, 3)
    report(mesh, "poll", status=3)
    report(mesh, "send", "--to", own, "--text", "x", project="b")
    assert report(mesh, "init", "--compat")["dropped"] == 1


def test_a_damaged_identity_is_said_and_a_command_can_do_without(mesh):
    report(mesh, "init")
    path = mesh.base / "a" / ".intercom" / "session.json"
    path.write_bytes(b"{")
    found = intercom(mesh, "poll")
    assert (found.returncode, found.stdout) == (78, b"")
    assert "session.json" in found.stderr.decode()
    assert path.read_bytes() == b"{"
    report(mesh, "poll", "--session", "nova", status=3)


# --- peers and cleanup ---


def test_peers_of_a_channel_without_a_hub(mesh):
    found = report(mesh, "peers", status=3)
    assert (found["hub"], found["hub_pid"], found["active_sessions"]) == ("none", None, [])


def test_peers_shows_who_is_connected(mesh):
    hub = mesh.hub()
    with Peer(mesh.channel) as peer:
        assert peer.register("wren")
        found = report(mesh, "peers")
        assert (found["hub"], found["hub_pid"]) == ("live", hub.pid)
        assert "wren" in found["active_sessions"]
        kill9(hub)
        assert report(mesh, "peers", status=3)["active_sessions"] == []


def test_cleanup_leaves_a_hub_that_lives_alone(mesh):
    hub = mesh.hub()
    before = sorted(path.name for path in mesh.channel.iterdir())
    with Peer(mesh.channel) as peer:
        assert peer.register("wren")
        for more in ((), ("--stale",)):
            found = report(mesh, "cleanup", *more)
            assert (found["hub"], found["removed"]) == ("live", [])
        assert set(before) <= {path.name for path in mesh.channel.iterdir()}
    assert hub.poll() is None
    assert mesh.answers()


def test_cleanup_removes_what_a_dead_hub_left(mesh):
    """F50: but never the lock."""
    hub = mesh.hub()
    until((mesh.channel / "peers.json").exists, "the hub has said who is connected")
    kill9(hub)
    assert (mesh.channel / "hub.sock").exists()
    found = report(mesh, "cleanup")
    assert (found["hub"], set(found["removed"])) == ("none", {"hub.sock", "peers.json"})
    assert [path.name for path in mesh.channel.iterdir() if path.name.startswith("hub.")] == ["hub.lock"]
    mesh.hub()
    assert mesh.answers()


def test_stale_removes_read_mailboxes_and_never_unread_mail(mesh):
    kill9(mesh.hub())
    for session in ("read", "unread"):
        inbox = mesh.channel / f"inbox_{session}.ndjson"
        inbox.write_bytes(line(envelope("chat", "wren", session, {"text": "x"})))
        inbox.chmod(0o600)
    report(mesh, "poll", "--session", "read")
    assert report(mesh, "peers", status=3)["hub"] == "none"  # neither of the two starts one
    found = report(mesh, "cleanup", "--stale")
    assert {"inbox_read.ndjson", "offset_read.json"} <= set(found["removed"])
    assert found["kept"] == [{"session": "unread", "unread": 1}]
    assert not (mesh.channel / "inbox_read.ndjson").exists()
    assert json.loads((mesh.channel / "inbox_unread.ndjson").read_bytes())["payload"] == {"text": "x"}


def test_a_project_keeps_its_id_when_its_mailbox_was_cleaned_up(mesh):
    own = report(mesh, "init")["session"]
    report(mesh, "cleanup", "--stale")
    assert report(mesh, "init")["session"] == own


# --- daemon ---


def test_a_second_hub_ends_with_0(mesh):
    first = mesh.hub()
    second = intercom(mesh, "daemon")
    assert second.returncode == 0
    assert first.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_hub_under_its_clients(mesh, number):
    hub = mesh.hub()
    with Peer(mesh.channel) as peer:
        assert peer.register("wren")
        hub.send_signal(number)
        assert hub.wait(60) == 0
    assert not (mesh.channel / "hub.sock").exists()
