"""What is signed (awh1.md §3): the reference value, the layouts by hand, and that no two transcripts are alike."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import BUDGET, ids, topic_lists

from wakehub.wire import transcript
from wakehub.wire.frames import Kind

HUB, AGENT, NONCE = b"wakehub", b"alice", bytes(range(32))


def test_the_reference_value() -> None:
    expected = "9ea65efb082681b480d3bc98e35f41dacb8b3ba9d900cee034a9782ddf6d0ddb"
    assert transcript.topics_hash([b"#hive", b"#swarm"]).hex() == expected


def test_no_topics_hash_to_nothing() -> None:
    assert transcript.topics_hash(()) == hashlib.sha256(b"").digest()


def test_topics_are_hashed_in_wire_order_without_a_count() -> None:
    assert transcript.topics_hash([b"#b", b"#a", b"#b"]) == hashlib.sha256(b"\x02#b\x02#a\x02#b").digest()


def test_the_hello_transcript() -> None:
    signed = b"a2a/v1/hello" + b"\x07wakehub" + NONCE + b"\x05alice" + hashlib.sha256(b"\x02#a").digest()
    assert transcript.hello(HUB, NONCE, AGENT, [b"#a"]) == signed


@pytest.mark.parametrize(("kind", "domain"), [(Kind.JOIN, b"a2a/v1/join"), (Kind.DEPART, b"a2a/v1/depart")])
def test_the_membership_transcripts(kind: Kind, domain: bytes) -> None:
    assert transcript.membership(kind, HUB, NONCE, AGENT) == domain + b"\x07wakehub" + NONCE + b"\x05alice"


@pytest.mark.parametrize("kind", set(Kind) - {Kind.JOIN, Kind.DEPART})
def test_nothing_else_is_membership(kind: Kind) -> None:
    with pytest.raises(KeyError):
        transcript.membership(kind, HUB, NONCE, AGENT)


def test_the_longest_ids_fit() -> None:
    signed = transcript.hello(b"h" * 64, NONCE, b"a" * 128, ())
    assert len(signed) == 12 + 65 + 32 + 129 + 32


claims = st.tuples(ids.filter(lambda hub: len(hub) <= 64), st.binary(min_size=32, max_size=32), ids, topic_lists)


@BUDGET
@given(claims, claims)
def test_different_claims_are_signed_differently(
    one: tuple[bytes, bytes, bytes, tuple[bytes, ...]], other: tuple[bytes, bytes, bytes, tuple[bytes, ...]]
) -> None:
    assert (transcript.hello(*one) == transcript.hello(*other)) == (one == other)
    signed = {
        transcript.hello(*one),
        transcript.membership(Kind.JOIN, *one[:3]),
        transcript.membership(Kind.DEPART, *one[:3]),
    }
    assert len(signed) == 3


@BUDGET
@given(st.lists(topic_lists, min_size=2, max_size=2, unique=True))
def test_different_topic_lists_hash_differently(lists: list[tuple[bytes, ...]]) -> None:
    assert transcript.topics_hash(lists[0]) != transcript.topics_hash(lists[1])
