"""What a hub of the mesh decides (intercom.md §2, §3, §5), without a socket or a file."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wakehub.intercom import ndjson
from wakehub.intercom.mesh import Claim, Link, Mesh, Post
from wakehub.limits import MAX_MESH_LINE_BYTES, MAX_MESH_QUEUED_BYTES, MAX_MESH_QUEUED_LINES


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("room")


def said(mesh: Mesh, link: Link) -> list[dict]:
    """What waits for a link, taken out as if the kernel had taken it."""
    found = []
    while len(link.queue):
        line = bytes(link.queue.head() or b"")
        found.append(json.loads(line))
        mesh.sent(link, len(line))
    return found


def join(mesh: Mesh, session: str) -> Link:
    link = mesh.open()
    assert mesh.receive(link, ndjson.announce(session, "room").line()) is None
    (answer,) = said(mesh, link)
    assert answer["type"] == "welcome"
    return link


def contest(mesh: Mesh, link: Link, session: str) -> None:
    """Ask for an id that a link has whose peer is still there."""
    claim = mesh.receive(link, ndjson.announce(session, "room").line())
    assert isinstance(claim, Claim)
    assert said(mesh, link) == []
    mesh.contest(link, claim)


def code(mesh: Mesh, link: Link) -> str:
    (answer,) = said(mesh, link)
    assert (answer["type"], answer["from_session"]) == ("error", "hub")
    return answer["payload"]["code"]


def chat(mesh: Mesh, link: Link, sender: str, to: str, text: str = "hi", **more) -> Post | None:
    return mesh.receive(link, ndjson.chat(sender, to, text, "", **more).line())


@pytest.mark.parametrize("kind", ["register", "announce"])
def test_who_joins_is_welcomed_with_everyone_who_is_there(mesh, kind):
    join(mesh, "ann")
    link = mesh.open()
    assert mesh.receive(link, ndjson.Envelope(kind, "bob").line()) is None
    (answer,) = said(mesh, link)
    assert answer["payload"] == {"peers": ["ann", "bob"], "status": "connected"}
    assert (answer["to_session"], answer["channel"]) == ("bob", "room")
    assert mesh.has_changed
    assert mesh.sessions() == ["ann", "bob"]


def test_a_held_id_stays_with_its_holder(mesh):
    holder, other = join(mesh, "ann"), mesh.open()
    contest(mesh, other, "ann")
    assert code(mesh, other) == "SESSION_COLLISION"
    assert not other.is_open
    assert holder.is_open
    mesh.close(other)
    assert mesh.sessions() == ["ann"]


def test_the_id_of_a_peer_that_has_hung_up_is_free_and_what_it_said_is_taken(mesh):
    holder, other = join(mesh, "ann"), mesh.open()
    mesh.release(holder)
    assert mesh.receive(other, ndjson.announce("ann", "room").line()) is None
    post = chat(mesh, holder, "ann", "bob")
    assert isinstance(post, Post)
    mesh.close(holder)
    assert mesh.sessions() == ["ann"]


def test_the_same_id_again_is_welcomed_again_and_another_one_frees_the_first(mesh):
    link = join(mesh, "ann")
    for session in ("ann", "bob"):
        mesh.receive(link, ndjson.register(session, "room").line())
        (answer,) = said(mesh, link)
        assert answer["type"] == "welcome"
    assert mesh.sessions() == ["bob"]
    mesh.close(link)
    assert mesh.sessions() == []


def test_a_first_chat_makes_a_sender_that_is_nobody(mesh):
    listener, sender = join(mesh, "ann"), mesh.open()
    post = chat(mesh, sender, "ann", "bob")
    assert post is not None
    assert post.recipients == ("bob",)
    assert json.loads(post.line)["channel"] == "room"
    assert mesh.sessions() == ["ann"]
    assert said(mesh, sender) == said(mesh, listener) == []
    assert chat(mesh, sender, "joe", "bob") is None
    assert code(mesh, sender) == "SENDER_MISMATCH"
    assert sender.is_open


def test_nobody_speaks_as_another(mesh):
    link = join(mesh, "ann")
    assert chat(mesh, link, "bob", "ann") is None
    assert code(mesh, link) == "SENDER_MISMATCH"
    assert chat(mesh, link, "ann", "bob") is not None


@pytest.mark.parametrize("to", ["*", "all", None])
def test_everyone_is_who_is_connected_but_the_sender(mesh, to):
    link = join(mesh, "ann")
    for session in ("bob", "joe"):
        join(mesh, session)
    document = ndjson.chat("ann", "*", "hi", "room").document()
    if to is None:
        del document["to_session"]
    else:
        document["to_session"] = to
    post = mesh.receive(link, json.dumps(document).encode())
    assert post is not None
    assert post.recipients == ("bob", "joe")


def test_a_live_copy_goes_to_who_is_connected_and_a_receipt_says_so(mesh):
    ann, bob = join(mesh, "ann"), join(mesh, "bob")
    for to, state in (("bob", "live"), ("joe", "spooled"), ("*", "live")):
        post = chat(mesh, ann, "ann", to, receipt=True)
        assert post is not None
        for each in post.recipients:
            mesh.deliver(post, each)
        mesh.settle(ann, post)
        (answer,) = said(mesh, ann)
        assert (answer["type"], answer["reply_to"]) == ("receipt", post.envelope.id)
        assert answer["payload"] == {"state": state}
        assert [each["id"] for each in said(mesh, bob)] == [post.envelope.id] * (state == "live")


def test_no_receipt_unasked(mesh):
    ann = join(mesh, "ann")
    post = chat(mesh, ann, "ann", "bob")
    assert post is not None
    mesh.settle(ann, post)
    assert said(mesh, ann) == []


def test_a_spool_that_fails_is_told_and_ends_nothing(mesh):
    ann = join(mesh, "ann")
    post = chat(mesh, ann, "ann", "bob", receipt=True)
    assert post is not None
    post.failures.append("not stored for bob: no space")
    mesh.settle(ann, post)
    (answer,) = said(mesh, ann)
    assert answer["payload"] == {"code": "SPOOL_FAILED", "message": "not stored for bob: no space"}
    assert answer["reply_to"] == post.envelope.id
    assert ann.is_open


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"[]", "BAD_JSON"), (b'{"a":NaN}', "BAD_JSON"), (b"{}", "BAD_ENVELOPE"),
        (b'{"type":"chat","from_session":"ann","to_session":null}', "BAD_ENVELOPE"),
        (b'{"type":"chat","from_session":"ann","to_session":3}', "BAD_ENVELOPE"),
        (b'{"type":"chat","from_session":"ann","to_session":"../x"}', "INVALID_SESSION"),
        (b'{"type":"chat","from_session":"ann","to_session":"hub"}', "INVALID_SESSION"),
        (b'{"type":"chat","from_session":"../x"}', "INVALID_SESSION"),
        (b'{"type":"register","from_session":"' + b"x" * 300 + b'"}', "INVALID_SESSION"),
        (b'{"type":"announce","from_session":"a\\u0000b"}', "INVALID_SESSION"),
        (b'{"type":"announce","from_session":"None"}', "INVALID_SESSION"),
        (b'{"type":"welcome","from_session":"ann"}', "BAD_ENVELOPE"),
    ],
)  # fmt: skip
def test_f43_what_is_refused_leaves_the_connection_open(mesh, line, expected):
    link = mesh.open()
    assert mesh.receive(link, line) is None
    assert code(mesh, link) == expected
    assert link.is_open
    assert mesh.receive(link, ndjson.announce("ann", "room").line()) is None
    assert mesh.sessions() == ["ann"]


def test_a_join_that_names_no_recipient_is_one_all_the_same(mesh):
    link = mesh.open()
    mesh.receive(link, b'{"type":"register","from_session":"ann","to_session":null}')
    assert mesh.sessions() == ["ann"]


def test_a_heartbeat_of_a_client_is_ignored(mesh):
    link = join(mesh, "ann")
    assert mesh.receive(link, ndjson.heartbeat("ann", "room").line().replace(b'"hub"', b'"ann"', 1)) is None
    assert said(mesh, link) == []


def flood(mesh: Mesh, size: int, count: int) -> list[Post]:
    sender, posts = mesh.open(), []
    for _ in range(count):
        post = chat(mesh, sender, "joe", "bob", "x" * size)
        assert post is not None
        mesh.deliver(post, "bob")
        posts.append(post)
    return posts


@pytest.mark.parametrize(("size", "count"), [(10, 300), (100_000, 20)])
def test_an_overflow_costs_live_copies_and_nobody_else_anything(mesh, size, count):
    bob = join(mesh, "bob")
    posts = flood(mesh, size, count)
    lost = [post.live for post in posts].count(0)
    assert lost
    assert len(bob.queue) == count - lost <= MAX_MESH_QUEUED_LINES
    assert bob.queue.size <= MAX_MESH_QUEUED_BYTES
    assert bob.is_open
    assert mesh.beat() == []


def test_who_takes_nothing_between_two_beats_is_disconnected_and_its_id_free(mesh):
    bob = join(mesh, "bob")
    flood(mesh, 10, 300)
    assert mesh.beat() == []
    assert mesh.beat() == ["bob"]
    assert not bob.is_open
    assert mesh.sessions() == []


def test_who_reads_again_stays(mesh):
    join(mesh, "bob")
    for _ in range(3):
        bob = mesh._holders["bob"]
        flood(mesh, 10, 300)
        assert mesh.beat() == []
        mesh.sent(bob, len(bob.queue.head() or b""))
        assert mesh.beat() == []


def test_a_holder_that_cannot_take_a_heartbeat_gives_its_id_to_who_asks(mesh):
    stopped, newcomer = join(mesh, "bob"), mesh.open()
    flood(mesh, 10, 300)
    contest(mesh, newcomer, "bob")
    assert [each["type"] for each in said(mesh, newcomer)] == ["welcome"]
    assert not stopped.is_open
    mesh.close(stopped)
    assert mesh.sessions() == ["bob"]


def test_everyone_is_beaten_and_nobody_is_ended_for_being_idle(mesh):
    links = [join(mesh, session) for session in ("ann", "bob")]
    for _ in range(5):
        assert mesh.beat() == []
    for link in links:
        assert {each["type"] for each in said(mesh, link)} == {"heartbeat"}


def test_the_longest_line_fits_an_empty_queue(mesh):
    bob, sender = join(mesh, "bob"), mesh.open()
    room = MAX_MESH_LINE_BYTES - len(ndjson.chat("joe", "bob", "", "room").line())
    post = chat(mesh, sender, "joe", "bob", "x" * (room - len("room")))
    assert post is not None
    mesh.deliver(post, "bob")
    assert post.live == 1
    assert len(bob.queue) == 1


def test_what_waited_for_a_closed_link_is_not_charged_any_more(mesh):
    bob = join(mesh, "bob")
    flood(mesh, 1000, 50)
    assert mesh._egress.used
    mesh.close(bob)
    assert mesh._egress.used == 0


IDS = ["ann", "bob", "joe"]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "chat", "everyone", "garbage", "read", "leave", "beat", "hang up"]),
            st.integers(0, 4),
            st.sampled_from(IDS),
            st.sampled_from([1, 400_000]),
        ),
        max_size=60,
    )
)
def test_an_id_has_one_holder_and_every_byte_is_charged_once_whatever_comes(steps):
    mesh = Mesh("room")
    links = [mesh.open() for _ in range(5)]
    for step, number, session, size in steps:
        link = links[number]
        if step == "join":
            claim = mesh.receive(link, ndjson.announce(session, "room").line())
            if isinstance(claim, Claim):
                mesh.contest(link, claim)
        elif step == "hang up":
            mesh.release(link)
        elif step in ("chat", "everyone"):
            sender = link.sender or "sue"
            to = session if step == "chat" else "*"
            post = mesh.receive(link, ndjson.chat(sender, to, "x" * size, "room", receipt=True).line())
            assert post is not None
            assert sender not in post.recipients or to == sender
            for each in post.recipients:
                mesh.deliver(post, each)
            mesh.settle(link, post)
        elif step == "garbage":
            assert mesh.receive(link, session.encode()) is None
        elif step == "read":
            said(mesh, link)
        elif step == "leave":
            mesh.close(link)
        elif step == "beat":
            mesh.beat()
        for place, each in enumerate(links):
            if not each.is_open:  # as the server does: it ends, and somebody else connects
                mesh.close(each)
                links[place] = mesh.open()
        assert mesh._egress.used == sum(each.queue.size for each in links)
        assert all(each.queue.size <= MAX_MESH_QUEUED_BYTES for each in links)
        held = [each.session for each in links if each.session]
        assert sorted(held) == mesh.sessions()
