"""Sessions with a real hub, seen by a client that shares no code with it (awh1.md §2, §4, §5)."""

import contextlib
import os
import socket
import struct
import time

import pytest
from independent_client import (
    DEPART,
    ERROR,
    HELLO,
    JOIN,
    PING,
    PONG,
    SUBSCRIBE,
    WAKE,
    Agent,
    Client,
    HubClosed,
    Refused,
    b64,
    encode_body,
    hello_payload,
    lp,
    prefixed,
    public_key,
    stamp,
    topic_list,
)

# --- waking -----------------------------------------------------------------------------------------------------------


def test_handshake_direct_wake_wake_to_oneself_and_to_a_topic(hub):
    hub.home.enroll("team/alice", "team/bob", "team/carol")
    hub.start()
    alice, bob, carol = (hub.connect(f"team/{name}", ["#team"]) for name in ("alice", "bob", "carol"))
    assert alice.hub_id == "wakehub"
    assert (alice.welcome.reconnect_base_ms, alice.welcome.reconnect_jitter_ms) == (250, 750)
    assert len({client.welcome.session for client in (alice, bob, carol)}) == 3

    alice.wake("team/bob", "m_1", "_inbox/team/bob", "team/alice", bytes(32), 7, ttl_ms=60_000)
    frame = bob.recv_wake()
    assert (frame.from_, frame.to, frame.ttl_ms) == ("team/alice", "team/bob", 60_000)
    assert vars(frame.wake) == {
        "row_id": "m_1", "namespace": "_inbox/team/bob", "sender": "team/alice", "digest": bytes(32), "watermark": 7,
    }  # fmt: skip

    alice.wake("team/alice", "m_2")
    assert alice.recv_wake().wake.row_id == "m_2"

    alice.wake("#team", "m_3")
    assert [client.recv_wake().wake.row_id for client in (bob, carol)] == ["m_3", "m_3"]
    assert alice.ping() == []
    with pytest.raises(TimeoutError):
        alice.recv_frame(timeout=0)


def test_a_wake_is_forwarded_as_the_very_bytes_that_came_in(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice, bob = hub.connect("alice"), hub.connect("bob")
    payload = lp("m_1") + lp("é/x") + lp("") + lp(os.urandom(32)) + struct.pack(">Q", 2**64 - 1)
    body = encode_body(WAKE, "alice", "bob", payload, ts_ms=2**64 - 1, ttl_ms=2**32 - 1)
    alice.send_bytes(prefixed(body))
    assert bob.recv_wake().body == body


def test_subscribe_and_unsubscribe_take_effect_before_they_are_acknowledged(hub):
    hub.home.enroll("team/alice", "team/bob")
    hub.start()
    alice, bob = hub.connect("team/alice"), hub.connect("team/bob")
    for number in range(20):
        bob.subscribe(["#team", "#_inbox/team/bob"])
        alice.wake("#team", f"in_{number}")
        assert bob.recv_wake().wake.row_id == f"in_{number}"
        bob.unsubscribe("#team")
        alice.wake("#team", f"out_{number}")
        assert alice.ping() == []
    assert bob.ping() == []
    with pytest.raises(TimeoutError):
        bob.recv_frame(timeout=0)


def test_wakes_for_an_absent_agent_are_coalesced_and_replayed_behind_the_welcome(hub):
    hub.home.enroll("alice", "bob", "carol")
    hub.start()
    alice = hub.connect("alice")
    alice.wake("bob", "m_0")
    assert alice.ping() == [(404, "no such agent")]

    bob = hub.connect("bob")
    bob.close()
    hub.wait_log("agent disconnected", agent="bob")
    for row_id in ("m_1", "m_2", "m_1", "m_3", "m_1"):
        alice.wake("bob", row_id)
    assert alice.ping() == []

    bob = hub.connect("bob")
    assert (bob.welcome.pending_count, bob.welcome.pending_ids, bob.welcome.lagged) == (5, 3, False)
    replayed = [bob.recv_wake() for _ in range(3)]
    assert [frame.wake.row_id for frame in replayed] == ["m_1", "m_2", "m_3"]
    assert {(frame.from_, frame.to, frame.wake.namespace, frame.wake.watermark) for frame in replayed} == {
        ("wakehub", "bob", "_inbox/bob", 0)
    }
    bob.close()
    bob = hub.connect("bob")
    assert (bob.welcome.pending_count, bob.welcome.pending_ids) == (0, 0)


def test_more_than_sixty_four_for_an_absent_agent_are_said_to_lag(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice = hub.connect("alice")
    hub.connect("bob").close()
    hub.wait_log("agent disconnected", agent="bob")
    for number in range(70):
        alice.wake("bob", f"m_{number}")
    assert alice.ping() == []
    bob = hub.connect("bob")
    assert (bob.welcome.pending_count, bob.welcome.pending_ids, bob.welcome.lagged) == (70, 64, True)
    assert [bob.recv_wake().wake.row_id for _ in range(64)] == [f"m_{number}" for number in range(64)]


def test_a_newer_session_replaces_the_older_which_is_told_behind_what_was_queued(hub):
    hub.home.enroll("team/alice", "team/bob")
    hub.start()
    alice, older = hub.connect("team/alice"), hub.connect("team/bob", ["#team"])
    alice.wake("team/bob", "m_1")
    alice.ping()
    newer = hub.connect("team/bob")
    assert newer.welcome.session > older.welcome.session
    kinds = [(frame.name, frame.wake.row_id if frame.kind == WAKE else frame.error) for frame in older.wait_closed()]
    assert kinds == [("wake", "m_1"), ("error", (409, "session replaced"))]
    alice.wake("team/bob", "m_2")
    assert newer.recv_wake().wake.row_id == "m_2"
    alice.wake("#team", "m_3")  # subscriptions are the session's: the newer one has none
    assert (alice.ping(), newer.ping()) == ([], [])
    with pytest.raises(TimeoutError):
        newer.recv_frame(timeout=0)
    assert hub.stats()["sessions_replaced_total"] == 1


def test_who_departs_is_unknown_afterwards(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice, bob = hub.connect("alice"), hub.connect("bob")
    bob.join()
    assert bob.ping() == []
    bob.depart()
    assert bob.wait_closed() == []
    alice.wake("bob", "m_1")
    assert alice.ping() == [(404, "no such agent")]
    bob = hub.connect("bob")
    assert bob.welcome.pending_count == 0


def test_a_departure_that_is_not_signed_ends_the_session_and_changes_nothing(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice, bob = hub.connect("alice"), hub.connect("bob")
    bob.send_frame(JOIN, payload=bytes(63))
    assert [frame.error for frame in bob.wait_closed()] == [(401, "unauthorized")]
    alice.wake("bob", "m_1")
    assert alice.ping() == []
    assert hub.connect("bob").welcome.pending_count == 1


# --- identity ---------------------------------------------------------------------------------------------------------


def _refusal(hub, from_: str, key_seed: bytes, certificate: bytes, topics=(), transcript_hub: str = "wakehub") -> bytes:
    """The body of the hub's answer to a hello, which must be the last it says."""
    client = hub.open()
    nonce = client.challenge()
    payload = hello_payload(key_seed, transcript_hub, nonce, from_, certificate, topics)
    client.send_frame(HELLO, payload=payload, from_=from_)
    (frame,) = client.wait_closed()
    return frame.body


def test_every_identity_failure_gets_the_same_bytes_and_its_own_label(hub):
    home, now = hub.home, time.time()
    home.enroll("team/alice")
    home.enroll("late", bound_at=stamp(now - 60))
    home.enroll("weak", bind_authority="hearsay")
    revoked = os.urandom(32)
    home.enroll("burnt", revoked_keys=[b64(public_key(revoked))])
    home.agents["stranger"] = Agent("stranger")
    hub.start()
    alice, other = home.bundle("team/alice"), home.bundle("late")
    seed, certificate = alice.delegate_seed, alice.certificate
    damaged = certificate[:-1] + bytes([certificate[-1] ^ 1])

    def bundle(name: str, **options):
        made = home.bundle(name, **options)
        return made.agent_id, made.delegate_seed, made.certificate

    late = "late"
    cases = {
        "bad_id": ("", seed, certificate),
        "bad_certificate": ("team/alice", seed, b"\x01\xff"),
        "principal_mismatch": bundle("team/alice", principal="late"),
        "hub_mismatch": (
            "team/alice",
            seed,
            home.agents["team/alice"].bundle("elsewhere", delegate_seed=seed).certificate,
        ),
        "key_mismatch": ("team/alice", other.delegate_seed, certificate),
        "unknown_agent": bundle("stranger"),
        "revoked_key": bundle("burnt", delegate_seed=revoked),
        "before_binding": bundle(late, not_before=now - 120),
        "bind_authority": bundle("weak"),
        "certificate_signature": ("team/alice", seed, damaged),
        "window_empty": bundle("team/alice", ttl_s=0),
        "window_too_long": bundle("team/alice", ttl_s=43_201),
        "window_not_yet": bundle("team/alice", not_before=now + 100),
        "window_expired": bundle("team/alice", not_before=now - 100, ttl_s=50),
        "topic": ("team/alice", seed, certificate, ["#secret"]),
        "transcript_signature": ("team/alice", seed, certificate, (), "elsewhere"),
    }
    bodies = {label: _refusal(hub, *case) for label, case in cases.items()}
    bodies["bad_certificate, empty"] = _refusal(hub, "team/alice", seed, b"")
    client = hub.open()
    client.challenge()
    client.send_frame(PING, from_="team/alice")
    (frame,) = client.wait_closed()
    bodies["no hello"] = frame.body
    assert frame.error == (401, "unauthorized")
    assert (frame.from_, frame.to, frame.ts_ms, frame.ttl_ms) == ("wakehub", "", 0, 0)
    assert set(bodies.values()) == {frame.body}, {label: body for label, body in bodies.items() if body != frame.body}

    stats = hub.stats()
    counted = {label: stats[f'refused_total{{cause="hello",label="{label}"}}'] for label in cases}
    assert counted == dict.fromkeys(cases, 1) | {"bad_certificate": 2}
    for label in cases:
        assert hub.logs("refused", cause="hello", label=label)
    assert hub.connect("team/alice", ["#team"]).ping() == []


def test_without_a_usable_allowlist_nobody_is_admitted_and_the_log_says_why(hub):
    home = hub.home
    home.enroll("alice")

    def damage() -> None:
        signed = home.allowlist.read_bytes()
        home.allowlist.write_bytes(signed[:-8] + (b"A" if signed[-8:-7] != b"A" else b"B") + signed[-7:])

    faults = {
        "absent": home.allowlist.unlink,
        "unsafe": lambda: home.allowlist.chmod(0o640),
        "unsigned": lambda: home.allowlist.write_bytes(b"{}"),
        "bad_signature": damage,
        "malformed": lambda: home.sign_allowlist(header={"alg": "EdDSA", "crit": "x"}),
        "stale": lambda: home.sign_allowlist(refreshed_at=stamp(time.time() - 61), valid_for_secs=60),
        "future": lambda: home.sign_allowlist(refreshed_at=stamp(time.time() + 100)),
    }
    hub.start()
    for fault, bring_about in faults.items():
        bring_about()
        with pytest.raises(Refused, match="401 unauthorized"):
            hub.connect("alice")
        hub.wait_log("refused", cause="hello", label=f"allowlist_{fault}")
        home.sign_allowlist()
        assert hub.connect("alice").ping() == []


def test_a_hub_without_an_owner_key_admits_nobody_until_there_is_one(hub):
    hub.home.enroll("alice")
    owner = hub.home.keys / "owner.pub"
    content = owner.read_bytes()
    owner.unlink()
    hub.start()
    assert hub.wait_log("hub ready")["verifier"] == "DenyAllVerifier"
    with pytest.raises(Refused, match="401 unauthorized"):
        hub.connect("alice")
    owner.write_bytes(content)  # for now with a mode that is not safe
    hub.wait_log("owner key cannot be used")
    owner.chmod(0o600)
    hub.wait_log("owner key found")
    assert hub.connect("alice").ping() == []


def test_a_revoked_agent_and_one_with_a_revoked_session_key_are_closed_without_a_word(hub):
    hub.home.enroll("alice", "bob", "carol")
    hub.start()
    alice, bob, carol = hub.connect("alice"), hub.connect("bob"), hub.connect("carol")
    session_key = public_key(hub.home.bundle("bob").delegate_seed)
    hub.home._entries["bob"]["revoked_keys"] = [b64(session_key)]
    hub.home.revoke("alice")
    assert alice.wait_closed() == []
    assert bob.wait_closed() == []
    assert carol.ping() == []
    for name in ("alice", "bob"):
        with pytest.raises(Refused, match="401 unauthorized"):
            hub.connect(name)
    assert hub.stats()['refused_total{cause="revalidation",label="unknown_agent"}'] == 1
    assert hub.stats()['refused_total{cause="revalidation",label="revoked_key"}'] == 1


def test_a_session_ends_with_its_certificate(hub):
    hub.home.enroll("alice")
    hub.start()
    alice = hub.connect("alice", bundle=hub.home.bundle("alice", not_before=time.time() - 10, ttl_s=12))
    assert alice.ping() == []
    assert alice.wait_closed() == []
    hub.wait_log("agent disconnected", agent="alice", why="revalidation")


def test_a_stale_allowlist_refuses_hellos_at_once_and_leaves_sessions_their_grace(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice = hub.connect("alice")
    hub.home.sign_allowlist(refreshed_at=stamp(time.time() - 61), valid_for_secs=60)
    with pytest.raises(Refused, match="401 unauthorized"):
        hub.connect("bob")
    assert alice.ping() == []
    hub.home.sign_allowlist()
    bob = hub.connect("bob")
    bob.wake("alice", "m_1")
    assert alice.recv_wake().wake.row_id == "m_1"


def test_a_clock_that_is_a_little_behind_the_minting_one_is_forgiven(hub):
    hub.home.enroll("alice")
    hub.start()
    assert hub.connect("alice", bundle=hub.home.bundle("alice", not_before=time.time() + 20)).ping() == []


# --- refusals in session ----------------------------------------------------------------------------------------------


def test_what_a_session_may_not_do_is_answered_and_the_session_goes_on(hub):
    hub.home.enroll("team/alice", "bob")
    hub.start()
    alice, bob = hub.connect("team/alice"), hub.connect("bob")
    wake = lp("m_1") + lp("") * 3 + bytes(8)
    cases = [
        (
            {"kind": WAKE, "to": "bob", "payload": wake, "from_": "bob"},
            (403, "from does not match the session identity"),
        ),
        ({"kind": HELLO}, (403, "kind not accepted from a client")),
        ({"kind": ERROR, "payload": b"\x01\x90no"}, (403, "kind not accepted from a client")),
        ({"kind": WAKE, "to": "", "payload": wake}, (404, "empty destination")),
        ({"kind": WAKE, "to": "nobody", "payload": wake}, (404, "no such agent")),
        ({"kind": WAKE, "to": "#other", "payload": wake}, (403, "topic outside the sender's read scope")),
        ({"kind": WAKE, "to": "#_inbox/bob", "payload": wake}, (403, "topic outside the sender's read scope")),
        ({"kind": WAKE, "to": "#" + "x" * 90, "payload": wake}, (403, "topic outside the sender's read scope")),
    ]
    for frame, expected in cases:
        alice.send_frame(**frame)
        assert alice.ping() == [expected], frame
    alice.wake("bob", "m_2", ttl_ms=1, ts_ms=1)
    assert alice.ping() == []
    alice.wake("bob", "m_3")
    assert bob.recv_wake().wake.row_id == "m_3"
    assert hub.stats()["wakes_expired_total"] == 1


def test_a_violation_in_session_is_answered_and_ends_it(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    bob = hub.connect("bob")
    for frame, code in (
        ({"kind": WAKE, "to": "bob", "payload": b"\x05abc"}, 400),
        ({"kind": WAKE, "to": "bob", "payload": bytes(257)}, 413),
        ({"kind": SUBSCRIBE, "payload": topic_list(["#x"])}, 401),
        ({"kind": SUBSCRIBE, "payload": b"\x02\x02#x"}, 400),
        ({"kind": 11, "payload": b"hello"}, 400),
        ({"kind": DEPART, "payload": bytes(64)}, 401),
    ):
        alice = hub.connect("alice")
        alice.send_frame(**frame)
        (answer,) = alice.wait_closed()
        assert answer.error[0] == code
    assert bob.ping() == []


def test_a_flood_is_told_once_in_a_while_and_before_the_pong(hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice = hub.connect("alice")
    hub.connect("bob").close()
    hub.wait_log("agent disconnected", agent="bob")
    wake = prefixed(encode_body(WAKE, "alice", "bob", lp("m_1") + lp("") * 3 + bytes(8)))
    while hub.stats()['refused_total{cause="rate_limited",label=""}'] < 100:
        alice.send_bytes(wake * 500)
    errors: list[tuple[int, str]] = []
    while True:  # a refused ping is refused as well, perhaps without a word; tokens come back at 500 a second
        alice.send_frame(PING)
        with contextlib.suppress(TimeoutError):
            if (frame := alice.recv_frame(timeout=0.05)).kind == PONG:
                break
            errors.append(frame.error)
    assert set(errors) == {(429, "frame rate exceeded")}
    assert len(errors) < 100


# --- bad company before the handshake ---------------------------------------------------------------------------------


def test_garbage_silence_and_half_a_hello_cost_nobody_else_anything(hub):
    hub.home.enroll("alice", "bob")
    hub.home.configure("[hub]\nhandshake_deadline_ms = 300\n")
    hub.start()
    alice = hub.connect("alice")
    silent, slow, loud, large = (hub.open() for _ in range(4))
    for client in (silent, slow, loud, large):
        client.challenge()
    slow.send_bytes(bytes(3))
    loud.send_bytes((100).to_bytes(4, "big") + os.urandom(100))
    large.send_bytes((1305).to_bytes(4, "big"))
    assert [frame.error for frame in loud.wait_closed()] == [(400, "bad magic")]
    assert [frame.error for frame in large.wait_closed()] == [(413, "frame exceeds 1304 B")]
    assert (silent.wait_closed(), slow.wait_closed()) == ([], [])
    assert alice.ping() == []
    assert hub.stats()['refused_total{cause="deadline",label=""}'] == 2
    assert hub.connect("bob").ping() == []


def test_a_client_that_only_wrote_half_a_frame_and_left_is_counted(hub):
    hub.home.enroll("alice")
    hub.start()
    alice = hub.connect("alice")
    alice.send_bytes(b"\0\0")
    alice.sock.shutdown(socket.SHUT_WR)
    assert alice.wait_closed() == []
    assert hub.stats()['refused_total{cause="malformed",label="eof"}'] == 1


def test_the_nonce_is_the_connections_own(hub):
    hub.home.enroll("alice")
    hub.start()
    first = hub.open()
    nonce = first.challenge()
    second = hub.open()
    assert second.challenge() != nonce
    bundle = hub.home.bundle("alice")
    replayed = hello_payload(bundle.delegate_seed, "wakehub", nonce, "alice", bundle.certificate)
    second.send_frame(HELLO, payload=replayed, from_="alice")
    assert [frame.error for frame in second.wait_closed()] == [(401, "unauthorized")]
    with pytest.raises(HubClosed):
        second.recv_frame()
    assert isinstance(first, Client)
