"""The signed allowlist (awh1.md §4.3): what is refused, in what order, and when it is read again."""

import contextlib
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from identity_world import AGENT, NOW, World, make_directory, make_link, make_pipe

from wakehub import files
from wakehub.identity import allowlist, stamps
from wakehub.identity.allowlist import (
    Allowlist,
    AllowlistFile,
    BadSignature,
    Entry,
    Malformed,
    Refused,
    Unsigned,
    Unusable,
    parse,
    sign,
)
from wakehub.identity.keys import KeyPair, b64
from wakehub.identity.stamps import NS
from wakehub.limits import MAX_ALLOWLIST_BYTES

OWNER = KeyPair(b"\1" * 32)
KEY = b64(KeyPair(b"\2" * 32).public)


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "agent_id": "bob",
        "pubkey_b64": KEY,
        "bind_authority": "possession_proof",
        "bound_at": "2026-09-21T14:13:20Z",
        "revoked_keys": [],
        "readable_prefixes": [],
    } | changes


def document(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": 2,
        "refreshed_at": "2026-09-21T14:13:20Z",
        "valid_for_secs": 60,
        "agents": list(entries or (entry(),)),
    } | changes


def jws(payload: object, header: object = None, owner: KeyPair = OWNER) -> bytes:
    def part(value: object) -> str:
        return b64(value if isinstance(value, bytes) else json.dumps(value).encode())

    signed = f"{part({'alg': 'EdDSA'} if header is None else header)}.{part(payload)}".encode()
    return signed + b"." + b64(owner.sign(signed)).encode()


# --- the format ---


def test_the_form_of_the_specification_is_read() -> None:
    found = parse(
        jws(document(entry(revoked_keys=[b64(b"\7" * 32)], readable_prefixes=["acme/eng", "acme", "x" * 63]))),
        OWNER.public,
    )
    assert found == Allowlist(
        stamps.parse("2026-09-21T14:13:20Z"),
        60,
        {
            "bob": Entry(
                "bob",
                KeyPair(b"\2" * 32).public,
                "possession_proof",
                stamps.parse("2026-09-21T14:13:20Z"),
                frozenset({b"\7" * 32}),
                ("acme/eng", "acme", "x" * 63),
            )
        },
    )


def test_what_is_signed_is_read_back_and_has_the_specified_keys() -> None:
    bob = Entry("bob", b"\2" * 32, "possession_proof", NOW * NS, frozenset({b"\7" * 32, b"\6" * 32}), ("acme",))
    made = Allowlist(NOW * NS, 60, {"bob": bob, "émile": Entry("émile", b"\3" * 32, "other", 0)})
    data = sign(made, OWNER)
    assert parse(data, OWNER.public) == made
    header, payload, _ = (allowlist.unb64(part) for part in data.decode().split("."))
    assert json.loads(header) == {"alg": "EdDSA"}
    assert json.loads(payload)["agents"][0] == {
        "agent_id": "bob",
        "pubkey_b64": b64(b"\2" * 32),
        "bind_authority": "possession_proof",
        "bound_at": "2026-09-21T14:13:20Z",
        "revoked_keys": sorted([b64(b"\7" * 32), b64(b"\6" * 32)]),
        "readable_prefixes": ["acme"],
    }


def test_nothing_is_signed_that_would_be_refused() -> None:
    with pytest.raises(Malformed, match="agent_id"):
        sign(Allowlist(NOW * NS, 60, {"": Entry("", b"\2" * 32, "possession_proof", 0)}), OWNER)
    many = {f"{number:0128}": Entry(f"{number:0128}", b"\2" * 32, "possession_proof", 0) for number in range(3000)}
    with pytest.raises(Malformed, match="exceed"):
        sign(Allowlist(NOW * NS, 60, many), OWNER)


def test_nobody_is_a_legal_allowlist() -> None:
    assert parse(jws(document() | {"agents": []}), OWNER.public).agents == {}


@pytest.mark.parametrize(
    "header",
    [{"alg": "EdDSA", "kid": "owner"}, {"alg": "EdDSA", "typ": "JWT"}, {"typ": "x", "kid": "y", "alg": "EdDSA"}],
)
def test_headers_that_are_taken(header: dict[str, str]) -> None:
    assert parse(jws(document(), header), OWNER.public).agents.keys() == {"bob"}


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"alg": "none"},
        {"alg": "Ed25519"},
        {"alg": "eddsa"},
        {"alg": "HS256"},
        {"alg": ["EdDSA"]},
        {"alg": "EdDSA", "crit": ["b64"], "b64": False},
        {"alg": "EdDSA", "jwk": {"kty": "OKP"}},
        {"alg": "EdDSA", "kid": 1},
        b'{"alg":"EdDSA","alg":"none"}',
        b"EdDSA",
        b"",
    ],
)
def test_headers_that_are_not(header: object) -> None:
    with pytest.raises(Malformed):
        parse(jws(document(), header), OWNER.public)


GOOD = jws(document())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"..",
        GOOD + b"\n",
        b" " + GOOD,
        GOOD + b".",
        GOOD + b"=",
        GOOD.replace(b".", b".."),
        GOOD.rsplit(b".", 1)[0],
        json.dumps(document()).encode(),
        json.dumps({"payload": "", "signatures": []}).encode(),
        b"\xff" + GOOD,
        GOOD.replace(b".", b"\xc2\xb7"),
    ],
)
def test_what_is_no_compact_jws_is_unsigned(data: bytes) -> None:
    with pytest.raises((Unsigned, BadSignature)):
        parse(data, OWNER.public)


def test_an_empty_signature_is_a_bad_one() -> None:
    with pytest.raises(BadSignature):
        parse(GOOD.rsplit(b".", 1)[0] + b".", OWNER.public)
    none = jws(document(), {"alg": "none"}).rsplit(b".", 1)[0] + b"."
    with pytest.raises(BadSignature):
        parse(none, OWNER.public)


def test_another_owner_is_refused_before_the_content_is_looked_at() -> None:
    for payload in (document(), b"{", b"[" * 100_000):
        with pytest.raises(BadSignature):
            parse(jws(payload, owner=KeyPair(b"\3" * 32)), OWNER.public)


def test_every_changed_byte_is_refused() -> None:
    for at in range(len(GOOD)):
        for other in b"Az0_.\n":
            if GOOD[at] != other:
                with pytest.raises(Refused):
                    parse(GOOD[:at] + bytes([other]) + GOOD[at + 1 :], OWNER.public)


@given(st.binary(max_size=300))
def test_rubbish_is_refused_signed_or_not(data: bytes) -> None:
    for attempt in (data, jws(data), jws(document(), data)):
        with pytest.raises(Refused):
            parse(attempt, OWNER.public)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in document().items() if name != key}


def entry_without(key: str) -> dict[str, Any]:
    return document({name: value for name, value in entry().items() if name != key})


@pytest.mark.parametrize(
    "payload",
    [
        *(without(key) for key in document()),
        *(entry_without(key) for key in entry()),
        document(extra=1),
        document(entry(extra=1)),
        document(version=1),
        document(version=3),
        document(version="2"),
        document(version=2.0),
        document(refreshed_at=1_790_000_000),
        document(refreshed_at="2026-09-21"),
        document(valid_for_secs=0),
        document(valid_for_secs=43_201),
        document(valid_for_secs=-1),
        document(valid_for_secs=True),
        document(valid_for_secs="60"),
        document(agents={}),
        document(agents=None),
        document(agents=["bob"]),
        document(entry(), entry()),
        document(entry(agent_id="")),
        document(entry(agent_id="b" * 129)),
        document(entry(agent_id="é" * 65)),
        document(entry(agent_id="a\nb")),
        document(entry(agent_id="a\x85b")),
        document(entry(agent_id="\ud800")),
        document(entry(agent_id=7)),
        document(entry(pubkey_b64=KEY + "=")),
        document(entry(pubkey_b64=KEY[:-1])),
        document(entry(pubkey_b64=b64(b"\2" * 31))),
        document(entry(pubkey_b64=b64(b"\2" * 33))),
        document(entry(pubkey_b64="")),
        document(entry(pubkey_b64=None)),
        document(entry(bind_authority="a\tb")),
        document(entry(bind_authority=None)),
        document(entry(bound_at="2026-09-21T14:13:51Z")),
        document(entry(bound_at="2026-09-21T14:13:50.000000001Z")),
        document(entry(bound_at="soon")),
        document(entry(bound_at=None)),
        document(entry(revoked_keys="x")),
        document(entry(revoked_keys=[7])),
        document(entry(revoked_keys=[b64(b"\2" * 31)])),
        document(entry(revoked_keys=None)),
        document(entry(readable_prefixes=["a", "b", "c", "d"])),
        document(entry(readable_prefixes=[""])),
        document(entry(readable_prefixes=["x" * 64])),
        document(entry(readable_prefixes=["a\0"])),
        document(entry(readable_prefixes=[7])),
        document(entry(readable_prefixes={"a": 1})),
        [document()],
        None,
        b"",
        b"{",
        b"\xff",
        json.dumps(document()).encode("utf-16"),
        json.dumps(document()).replace('"version": 2', '"version": 2, "version": 2').encode(),
        json.dumps(document()).replace('"revoked_keys"', '"agent_id": "alice", "revoked_keys"').encode(),
        json.dumps(document()).replace("60", "6e1").encode(),
    ],
)
def test_one_fault_refuses_the_whole_file(payload: object) -> None:
    with pytest.raises(Malformed):
        parse(jws(payload), OWNER.public)


@pytest.mark.parametrize(
    "payload",
    [
        document(valid_for_secs=1),
        document(valid_for_secs=43_200),
        document(refreshed_at="2026-09-21T16:13:20.5+02:00"),
        document(entry(agent_id="b" * 128)),
        document(entry(agent_id="é" * 64)),
        document(entry(agent_id="a\u200eb")),
        document(entry(bound_at="2026-09-21T14:13:50Z")),
        document(entry(bound_at="1970-01-01T00:00:00Z")),
        document(entry(bind_authority="something_new")),
        document(entry(readable_prefixes=["a", "b", "c"])),
        document(entry(revoked_keys=[KEY, KEY])),
        document(entry(), entry(agent_id="Bob")),
    ],
)
def test_the_edges_of_what_is_legal(payload: object) -> None:
    assert parse(jws(payload), OWNER.public).agents


def test_a_detail_is_safe_to_show() -> None:
    with pytest.raises(Malformed) as refusal:
        parse(jws(document(**{"\x1b[2J\u202e": 1})), OWNER.public)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("authority", "agent_id", "may"),
    [
        ("possession_proof", "bob", True),
        ("lineage_succession", "bob", True),
        ("guardian_recovery", "bob", True),
        ("daemon_key_dir", "bob", False),
        ("daemon_key_dir", "wakehub-publisher", True),
        ("daemon_key_dir", "wake-hub-producer", True),
        ("daemon_key_dir", "wakehub-publisher2", False),
        ("Possession_Proof", "bob", False),
        ("operator", "bob", False),
    ],
)
def test_who_may_delegate(authority: str, agent_id: str, may: bool) -> None:
    assert Entry(agent_id, b"\2" * 32, authority, 0).may_delegate() == may


# --- the file ---


def label(world: World, now_s: float = NOW) -> str:
    found = world.file.current(now_s, world.mono_s)
    return found.label if isinstance(found, Unusable) else "usable"


@pytest.mark.parametrize("authority", ["", "x" * 129, "anything at all"])
def test_any_other_authority_loads_and_cannot_delegate(authority: str) -> None:
    assert not parse(jws(document(entry(bind_authority=authority))), OWNER.public).agents["bob"].may_delegate()


def test_an_empty_file_is_told_for_what_it_is(world: World) -> None:
    world.file.path.write_bytes(b"")
    found = world.file.current(NOW, 0)
    assert isinstance(found, Unusable)
    assert (found.label, "not read" in found.detail) == ("unsigned", False)


def test_a_good_file_is_usable(world: World) -> None:
    found = world.file.current(NOW, world.mono_s)
    assert isinstance(found, Allowlist)
    assert found.agents[AGENT] == world.entry


def test_the_edges_of_its_age(world: World) -> None:
    assert label(world, NOW + 59.999) == "usable"
    assert label(world, NOW + 60) == "stale"
    assert label(world, NOW - 30) == "usable"
    assert label(world, NOW - 30.001) == "future"
    stale = world.file.current(NOW + 61, world.mono_s)
    assert isinstance(stale, Unusable)
    assert stale.stale is not None
    assert stale.stale.agents.keys() == {AGENT}
    assert "61 s old" in stale.detail


def test_labels_of_a_file_that_cannot_be_used(world: World) -> None:
    assert label(world) == "usable"
    world.path.chmod(0o644)
    assert label(world) == "unsafe"
    world.path.chmod(0o600)
    assert label(world) == "usable"
    world.path.unlink()
    assert label(world) == "absent"
    world.path.write_bytes(b"")
    world.path.chmod(0o600)
    assert label(world) == "unsigned"
    files.replace(world.path, jws(document(), owner=KeyPair(b"\3" * 32)))
    assert label(world) == "bad_signature"
    files.replace(world.path, jws(b"{}"))
    assert label(world) == "malformed"
    files.replace(world.path, b"x" * (MAX_ALLOWLIST_BYTES + 1))
    assert label(world) == "unsafe"
    world.publish()
    assert label(world) == "usable"


@pytest.mark.parametrize("make", [make_link, make_pipe, make_directory])
def test_links_pipes_and_directories_are_unsafe(world: World, make: Callable[[Path], None]) -> None:
    make(world.path)
    assert label(world) == "unsafe"


def test_another_owner_is_unsafe(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody_else = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody_else)
    assert label(world) == "unsafe"


def test_what_cannot_be_opened_is_unreadable(world: World) -> None:
    world.file.path = world.path.with_name("x" * 300)  # ENAMETOOLONG, for root as well
    assert label(world) == "unreadable"


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """As if every descriptor of this process were taken by something else: the next number is over the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull, "rb") as lowest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_hub_judges_on_when_no_descriptor_is_left(world: World) -> None:
    """F59: whoever takes the descriptors would close every session, since the allowlist could not be opened."""
    spare = AllowlistFile(world.path, world.file.owner_public, files.Spare())
    with no_descriptor_left():
        assert label(world) == "unreadable"
        for mono_s in range(10):
            assert isinstance(spare.current(NOW, mono_s), Allowlist)
        world.path.chmod(0o644)
        assert isinstance(found := spare.current(NOW, 10), Unusable)
        assert found.label == "unsafe", "no check is weaker for it"
        world.path.unlink()
        assert isinstance(found := spare.current(NOW, 11), Unusable)
        assert found.label == "absent"


def test_a_spare_descriptor_that_was_lost_is_taken_again(world: World) -> None:
    spare = files.Spare()
    spare.drop()
    file = AllowlistFile(world.path, world.file.owner_public, spare)
    assert isinstance(file.current(NOW, 0), Allowlist)
    with no_descriptor_left():
        assert isinstance(file.current(NOW, 5), Allowlist)


class Counted:
    """How often the file was opened, and how often its bytes were parsed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = self.parsed = 0
        real_opened, real_parse = files.opened, allowlist.parse

        def counting_opened(path: Path, spare: files.Spare | None) -> Any:
            self.opened += 1
            return real_opened(path, spare)

        def counting_parse(data: bytes, public: bytes) -> Allowlist:
            self.parsed += 1
            return real_parse(data, public)

        monkeypatch.setattr(files, "opened", counting_opened)
        monkeypatch.setattr(allowlist, "parse", counting_parse)


def test_it_is_checked_every_time_and_parsed_when_it_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AllowlistFile(world.path, world.owner.public)
    counted = Counted(monkeypatch)
    for step in range(10):
        assert isinstance(file.current(NOW, 100 + step), Allowlist)
    assert (counted.opened, counted.parsed) == (10, 1)
    world.publish(at_s=NOW + 1)
    counted.parsed = 0
    for _ in range(10):
        found = file.current(NOW + 1, 110)
        assert isinstance(found, Allowlist)
        assert found.refreshed_at == (NOW + 1) * NS
    assert (counted.opened, counted.parsed) == (20, 1)


def test_a_bad_file_is_parsed_once_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    files.replace(world.path, jws(b"{}"))
    file = AllowlistFile(world.path, OWNER.public)
    counted = Counted(monkeypatch)
    for _ in range(5):
        assert isinstance(file.current(NOW, 100), Unusable)
    assert (counted.opened, counted.parsed) == (5, 1)


def swap_in_place(world: World, data: bytes) -> None:
    """Write other bytes of the same size and put the times back: nothing that is looked at tells."""
    before = world.path.stat()
    with world.path.open("r+b") as file:
        file.write(data)
    os.utime(world.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = world.path.stat()
    assert (before.st_ino, before.st_size, before.st_mtime_ns) == (after.st_ino, after.st_size, after.st_mtime_ns)


def test_a_change_that_does_not_show_is_seen_within_two_seconds(world: World) -> None:
    assert label(world) == "usable"
    original = world.path.read_bytes()
    swap_in_place(world, original[:-4] + b"AAAA")
    world.mono_s += 1.999
    assert label(world) == "usable"
    world.mono_s += 0.001
    assert label(world) == "bad_signature"
    swap_in_place(world, original)
    world.mono_s += 2
    assert label(world) == "usable"


def test_a_monotonic_clock_of_another_boot_does_not_keep_it(world: World) -> None:
    assert label(world) == "usable"
    swap_in_place(world, world.path.read_bytes()[:-4] + b"AAAA")
    world.mono_s = 0
    assert label(world) == "bad_signature"
