"""Certificates and bundles (awh1.md §4.2, §8; receive.md §6)."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.errors import Unsafe
from wakehub.identity import delegation, keys, stamps
from wakehub.identity.delegation import Bundle, Certificate
from wakehub.identity.keys import KeyPair
from wakehub.wire.fields import lp

ROOT = KeyPair(b"\3" * 32)
DELEGATE = KeyPair(b"\4" * 32)
HUB = "ai-memory-wake-hub"
FROM, TO = "2026-09-03T11:00:00Z", "2026-09-03T13:00:00Z"
SIGNED = bytes.fromhex(
    "87781961692d6d656d6f72792f6132612d6875622d6a6f696e2f7631676167656e742d61676132612d6875625820ca93ac1705187071d67b83"
    "c7ff0efe8108e8ec4530575d7726879333dbdabe7c7261692d6d656d6f72792d77616b652d68756274323032362d30392d30335431313a3030"
    "3a30305a74323032362d30392d30335431333a30303a30305a"
)
SIGNATURE = bytes.fromhex(
    "37d8476fa1b9fc6ae6fd6537d39abb4f99ae5b6b8635c9bb07789bf16b36b105becd146be627c88822bc3645377da65d4d74e072ea75842263"
    "77cf801ad8c508"
)
REFERENCE = Certificate("agent-a", "a2a-hub", DELEGATE.public, HUB, FROM, TO, SIGNATURE)


def utf8(most: int) -> st.SearchStrategy[str]:
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=most)
    return text.filter(lambda value: len(value.encode()) <= most)


STAMPS = st.integers(0, 4_000_000_000).map(stamps.mint) | st.sampled_from(
    ["2026-09-03T11:00:00.5Z", "2026-09-03T11:00:00+02:00", "2026-09-03T11:00:00.123456+02:00"]
)
CERTIFICATES = st.builds(
    Certificate,
    principal=utf8(128),
    scope=st.just("a2a-hub"),
    delegate_key=st.binary(min_size=32, max_size=32),
    hub_id=utf8(64),
    not_before=STAMPS,
    not_after=STAMPS,
    signature=st.binary(min_size=64, max_size=64),
)


# --- certificates ---


def test_reference_values() -> None:
    assert REFERENCE.signed_bytes() == SIGNED
    assert ROOT.sign(SIGNED) == SIGNATURE
    begin = stamps.parse(FROM) // stamps.NS
    assert delegation.mint("agent-a", ROOT, DELEGATE.public, HUB, begin, 7200) == REFERENCE


def test_the_wire_form_is_the_specified_one() -> None:
    assert REFERENCE.encode() == (
        b"\x01\x07agent-a\x07a2a-hub"
        + DELEGATE.public
        + b"\x12ai-memory-wake-hub\x142026-09-03T11:00:00Z\x142026-09-03T13:00:00Z"
        + SIGNATURE
    )
    assert Certificate.decode(REFERENCE.encode()) == REFERENCE
    assert REFERENCE.window() == (stamps.parse(FROM), stamps.parse(TO))


@given(CERTIFICATES)
def test_what_is_encoded_decodes_to_the_same(certificate: Certificate) -> None:
    wire = certificate.encode()
    assert len(wire) <= 390
    assert Certificate.decode(wire) == certificate


@given(st.binary(max_size=400) | CERTIFICATES.map(Certificate.encode), st.data())
def test_what_decodes_encodes_to_the_same_bytes(wire: bytes, data: st.DataObject) -> None:
    if wire:
        at = data.draw(st.integers(0, len(wire) - 1))
        wire = wire[:at] + bytes([data.draw(st.integers(0, 255))]) + wire[at + 1 :]
    try:
        certificate = Certificate.decode(wire)
    except ValueError:
        return
    assert certificate.encode() == wire


def test_every_cut_and_every_trailing_byte_is_refused() -> None:
    wire = REFERENCE.encode()
    for size in range(len(wire)):
        with pytest.raises(ValueError):  # noqa: PT011 - any ValueError is the contract
            Certificate.decode(wire[:size])
    for tail in (b"\0", b"\0" * 64, b"\0" * 300):
        with pytest.raises(ValueError):  # noqa: PT011
            Certificate.decode(wire + tail)


def test_every_changed_byte_is_refused_or_breaks_the_signature() -> None:
    wire = REFERENCE.encode()
    for at in range(len(wire)):
        for change in (1, 0x80, 0xFF):
            changed = wire[:at] + bytes([wire[at] ^ change]) + wire[at + 1 :]
            try:
                certificate = Certificate.decode(changed)
            except ValueError:
                continue
            assert not keys.verify(ROOT.public, certificate.signed_bytes(), certificate.signature)


def test_the_longest_legal_certificate() -> None:
    stamp = "2026-09-03T11:00:00.123456+02:00"
    certificate = Certificate("p" * 128, "a2a-hub", b"\1" * 32, "h" * 64, stamp, stamp, b"\2" * 64)
    assert len(certificate.encode()) == 365
    assert Certificate.decode(certificate.encode()) == certificate
    assert certificate.signed_bytes().startswith(b"\x87\x78\x19ai-memory/a2a-hub-join/v1\x78\x80" + b"p" * 128)


def wire(
    *,
    version: bytes = b"\1",
    principal: bytes = b"agent-a",
    scope: bytes = b"a2a-hub",
    hub_id: bytes = b"hub",
    not_before: bytes = FROM.encode(),
    not_after: bytes = TO.encode(),
    signature: bytes = b"\0" * 64,
) -> bytes:
    fields = lp(principal) + lp(scope) + b"\0" * 32 + lp(hub_id) + lp(not_before) + lp(not_after)
    return version + fields + signature


def test_the_frame_of_the_next_test_decodes() -> None:
    assert Certificate.decode(wire()).principal == "agent-a"


@pytest.mark.parametrize(
    "data",
    [
        wire(version=b"\0"),
        wire(version=b"\2"),
        wire(version=b""),
        wire(principal=b""),
        wire(principal=b"p" * 129),
        wire(principal=b"\xff"),
        wire(scope=b""),
        wire(scope=b"a2a-hux"),
        wire(scope=b"A2A-HUB"),
        wire(hub_id=b""),
        wire(hub_id=b"h" * 65),
        wire(hub_id=b"\xc3"),
        wire(not_before=b""),
        wire(not_before=b"2026-09-03T11:00:00.123456789+02:0"),
        wire(not_after=b"yesterday"),
        wire(not_after="２026-09-03T11:00:00Z".encode()),
        wire(signature=b"\0" * 63),
        wire(signature=b"\0" * 65),
        wire(signature=b""),
    ],
)
def test_what_is_no_certificate(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Certificate.decode(data)


@pytest.mark.parametrize("ttl_s", [1, 3600, 43_200])
def test_mint_signs_whole_seconds_from_now(ttl_s: int) -> None:
    certificate = delegation.mint("bob", ROOT, DELEGATE.public, HUB, 1_790_000_000.999, ttl_s)
    assert certificate.not_before == "2026-09-21T14:13:20Z"
    begin, end = certificate.window()
    assert (begin, end - begin) == (1_790_000_000 * stamps.NS, ttl_s * stamps.NS)
    assert keys.verify(ROOT.public, certificate.signed_bytes(), certificate.signature)


@pytest.mark.parametrize("ttl_s", [-1, 0, 43_201])
def test_mint_refuses_a_window_that_no_hub_takes(ttl_s: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.43200"):
        delegation.mint("bob", ROOT, DELEGATE.public, HUB, 0, ttl_s)


def test_mint_refuses_what_does_not_decode() -> None:
    for agent_id, public, hub_id in (
        ("", DELEGATE.public, HUB),
        ("b" * 129, DELEGATE.public, HUB),
        ("bob", DELEGATE.public, ""),
        ("bob", DELEGATE.public, "h" * 65),
        ("bob", b"\0" * 31, HUB),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            delegation.mint(agent_id, ROOT, public, hub_id, 0, 60)


# --- bundles ---


@pytest.fixture
def bundle() -> Bundle:
    return Bundle.make("acme/bob", ROOT, HUB, 1_790_000_000, 3600)


def test_a_bundle_holds_a_new_key_and_its_certificate(bundle: Bundle) -> None:
    certificate = Certificate.decode(bundle.certificate)
    assert certificate.principal == bundle.agent_id == "acme/bob"
    assert certificate.hub_id == bundle.hub_id == HUB
    assert certificate.delegate_key == bundle.delegate.public
    assert certificate.window() == bundle.window()
    assert keys.verify(ROOT.public, certificate.signed_bytes(), certificate.signature)
    assert bundle.delegate != Bundle.make("acme/bob", ROOT, HUB, 1_790_000_000, 3600).delegate


def test_the_json_is_the_specified_one(bundle: Bundle) -> None:
    assert json.loads(bundle.to_json()) == {
        "version": 1,
        "agent_id": "acme/bob",
        "hub_id": HUB,
        "delegation_b64": keys.b64(bundle.certificate),
        "delegate_private_b64": keys.b64(bundle.delegate.seed),
        "not_before": "2026-09-21T14:13:20Z",
        "not_after": "2026-09-21T15:13:20Z",
    }
    assert Bundle.from_json(bundle.to_json()) == bundle


def test_a_bundle_shows_no_secret(bundle: Bundle) -> None:
    shown = repr(bundle) + str(bundle)
    for secret in (bundle.delegate.seed, bundle.certificate):
        assert repr(secret) not in shown
        assert keys.b64(secret) not in shown


def test_a_bundle_on_disk_is_replaced_by_rename(tmp_path: Path, bundle: Bundle) -> None:
    path = tmp_path / "agents" / "bob.a2a-hub.json"
    bundle.write(path)
    assert path.stat().st_mode & 0o7777 == 0o600
    before = path.stat().st_ino
    later = Bundle.make("acme/bob", ROOT, HUB, 1_790_001_000, 3600)
    with path.open("rb") as held:
        later.write(path)
        assert Bundle.from_json(held.read()) == bundle
    assert path.stat().st_ino != before
    assert Bundle.load(path) == later
    assert os.listdir(path.parent) == [path.name]


def test_a_bundle_from_the_environment(bundle: Bundle) -> None:
    assert Bundle.from_environment({}) is None
    assert Bundle.from_environment({"WAKEHUB_BUNDLE": ""}) is None
    assert Bundle.from_environment({"WAKEHUB_BUNDLE": keys.b64(bundle.to_json())}) == bundle
    for wrong in ("{}", keys.b64(b"{}"), keys.b64(bundle.to_json()) + "=", bundle.to_json().decode()):
        with pytest.raises(Unsafe, match=r"\$WAKEHUB_BUNDLE holds no bundle") as refusal:
            Bundle.from_environment({"WAKEHUB_BUNDLE": wrong})
        assert keys.b64(bundle.delegate.seed) not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"version": 2}, "version"),
        ({"agent_id": "acme/alice"}, "agent_id is not the certificate's"),
        ({"hub_id": "other"}, "hub_id is not the certificate's"),
        ({"not_before": "2026-09-21T14:13:21Z"}, "not_before is not the certificate's"),
        ({"not_after": "2026-09-21T15:13:20+00:00"}, "not_after is not the certificate's"),
        ({"delegate_private_b64": keys.b64(b"\1" * 32)}, "private key is not the certificate's"),
        ({"delegate_private_b64": keys.b64(b"\1" * 31)}, "32 bytes"),
        ({"delegation_b64": keys.b64(b"\1")}, "cut short|missing"),
        ({"delegation_b64": "="}, "base64url"),
        ({"extra": 1}, "unknown key"),
    ],
)
def test_a_bundle_whose_parts_disagree_is_refused(
    tmp_path: Path, bundle: Bundle, change: dict[str, object], fault: str
) -> None:
    path = tmp_path / "bob.a2a-hub.json"
    bundle.write(path)
    data = json.dumps(json.loads(bundle.to_json()) | change)
    with pytest.raises(ValueError, match=fault):
        Bundle.from_json(data)
    path.write_text(data)
    with pytest.raises(Unsafe, match="wakehub delegate"):
        Bundle.load(path)


def test_a_bundle_file_is_checked_as_keys_are(tmp_path: Path, bundle: Bundle) -> None:
    path = tmp_path / "bob.a2a-hub.json"
    bundle.write(path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(Unsafe, match="symbolic link"):
        Bundle.load(tmp_path / "link")
    path.chmod(0o644)
    with pytest.raises(Unsafe, match="0644"):
        Bundle.load(path)
    with pytest.raises(FileNotFoundError):
        Bundle.load(tmp_path / "absent")
