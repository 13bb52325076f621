"""The order of checks at hello, their cost, and revalidation (awh1.md §4.4, §5.9)."""

import os
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from identity_world import AGENT, HUB, NOW, World

from wakehub import files
from wakehub.identity import stamps, verifier
from wakehub.identity.allowlist import Allowlist, Entry
from wakehub.identity.delegation import Bundle, Certificate, signed_bytes
from wakehub.identity.keys import KeyPair
from wakehub.identity.stamps import NS
from wakehub.identity.verifier import Claim, Denied, DenyAllVerifier, Identity, Stale
from wakehub.limits import CERTIFICATE_CACHE_ENTRIES

OTHER = KeyPair(b"\x09" * 32)


def with_certificate(world: World, **changes: str | bytes) -> Claim:
    """An honest hello whose certificate has these fields changed."""
    bundle = world.bundle()
    certificate = replace(Certificate.decode(bundle.certificate), **changes)
    wire = replace(certificate, signature=world.agent.sign(certificate.signed_bytes())).encode()
    return world.claim(replace(bundle, certificate=wire))


def stamp(offset_s: float) -> str:
    whole, fraction = divmod(round((NOW + offset_s) * 1000), 1000)
    return stamps.mint(whole)[:-1] + (f".{fraction:03}Z" if fraction else "Z")


# --- admission ---


def test_an_honest_hello_is_admitted_with_its_prefixes(world: World, verifications: list[bool]) -> None:
    bundle = world.bundle()
    claim = world.claim(bundle, b"#_inbox/" + AGENT.encode(), b"#acme/eng/x", b"#acme")
    proven = Identity(AGENT, bundle.delegate.public, bundle.certificate, ("acme/eng", "acme"))
    assert world.verifier.verify(claim, NOW) == proven
    assert verifications == [True, True]
    assert world.verifier.verify(world.claim(bundle), NOW) == proven
    assert verifications == [True, True, True]  # the certificate was proven before


def test_a_daemon_is_admitted_by_its_name_alone(world: World) -> None:
    world.publish(agent_id="wakehub-publisher", bind_authority="daemon_key_dir", prefixes=())
    claim = world.claim(world.bundle(agent_id="wakehub-publisher"))
    assert isinstance(world.verifier.verify(claim, NOW), Identity)


# --- one refusal of each kind; each leaves every check before it satisfied ---


def bad_ids(world: World) -> list[Claim]:
    claim = world.claim(world.bundle())
    ids = ("", "a\nb", "a\x85", "b" * 129, "é" * 65, "\ud800", "x" * 1000)
    return [replace(claim, agent_id=agent_id) for agent_id in ids]


def bad_certificates(world: World) -> list[Claim]:
    claim = world.claim(world.bundle())
    wires = (b"", b"\0", claim.certificate[:-1], claim.certificate + b"\0", b"\2" + claim.certificate[1:], b"x" * 390)
    return [replace(claim, certificate=wire) for wire in wires]


def other_principals(world: World) -> list[Claim]:
    return [
        world.claim(world.bundle(agent_id="alice"), agent_id=AGENT),
        world.claim(world.bundle(), agent_id="alice"),
        world.claim(world.bundle(agent_id=AGENT.upper()), agent_id=AGENT),
    ]


def other_hubs(world: World) -> list[Claim]:
    return [world.claim(world.bundle(hub_id=hub_id)) for hub_id in ("ai-memory-wake-hub", "Wakehub", "wakehub2")]


def other_keys(world: World) -> list[Claim]:
    claim = world.claim(world.bundle())
    return [replace(claim, key=OTHER.public), replace(claim, key=world.agent.public)]


def unusable_allowlist(change: Callable[[World], None]) -> Callable[[World], list[Claim]]:
    def make(world: World) -> list[Claim]:
        change(world)
        return [world.claim(world.bundle())]

    return make


def pipe(world: World) -> None:
    world.path.unlink()
    os.mkfifo(world.path, 0o600)


def unreadable(world: World) -> None:
    world.file.path = world.path.with_name("x" * 300)


def signed_by_another(world: World) -> None:
    world.owner = OTHER
    world.publish()


def malformed(world: World) -> None:
    real = world.path.read_bytes().split(b".")
    header, payload = real[0], real[1][:-4]
    signed = header + b"." + payload
    files.replace(world.path, signed + b"." + verifier.keys.b64(world.owner.sign(signed)).encode())


def nobody(world: World) -> list[Claim]:
    world.publish_all(Allowlist(NOW * NS, 60, {}))
    return [world.claim(world.bundle())]


def revoked(world: World) -> list[Claim]:
    bundle = world.bundle()
    world.publish(revoked_keys=frozenset({OTHER.public, bundle.delegate.public}))
    return [world.claim(bundle)]


def before_binding(world: World) -> list[Claim]:
    world.publish(bound_at=NOW * NS)
    return [world.claim(world.bundle(now_s=NOW - 1)), with_certificate(world, not_before=stamp(-0.001))]


def out_of_scope(world: World) -> list[Claim]:
    topics = ((b"#other",), (b"#acme/eng", b"#_inbox/alice"), (b"#_agents",), (b"#acme",) * 7 + (b"#ac",))
    return [world.claim(world.bundle(), *topic) for topic in topics]


def not_delegating(world: World) -> list[Claim]:
    world.publish(bind_authority="operator")
    return [world.claim(world.bundle())]


def daemon_by_another_name(world: World) -> list[Claim]:
    world.publish(bind_authority="daemon_key_dir")
    return [world.claim(world.bundle())]


def badly_certified(world: World) -> list[Claim]:
    bundle = world.bundle()
    stranger = Bundle.make(AGENT, OTHER, HUB, NOW, 3600)
    certificate = Certificate.decode(bundle.certificate)
    longer = replace(certificate, not_after=stamp(7200)).encode()
    scalar = bytes(32) + b"\xff" * 32
    return [
        world.claim(stranger),
        world.claim(replace(bundle, certificate=longer)),
        world.claim(replace(bundle, certificate=replace(certificate, signature=bytes(64)).encode())),
        world.claim(replace(bundle, certificate=replace(certificate, signature=scalar).encode())),
    ]


def empty_windows(world: World) -> list[Claim]:
    return [
        with_certificate(world, not_before=stamp(10), not_after=stamp(10)),
        with_certificate(world, not_before=stamp(20), not_after=stamp(10)),
    ]


def long_windows(world: World) -> list[Claim]:
    return [
        with_certificate(world, not_after=stamp(43_201)),
        with_certificate(world, not_after=stamp(43_200.001)),
        with_certificate(world, not_after="9999-12-31T23:59:59Z"),
    ]


def early_windows(world: World) -> list[Claim]:
    return [
        with_certificate(world, not_before=stamp(31), not_after=stamp(60)),
        with_certificate(world, not_before=stamp(30.001), not_after=stamp(60)),
        world.claim(world.bundle(now_s=NOW + 7200)),
    ]


def late_windows(world: World) -> list[Claim]:
    world.publish(bound_at=0)
    return [world.claim(world.bundle(now_s=NOW - 60, ttl_s=60)), world.claim(world.bundle(now_s=NOW - 43_200))]


def bad_hellos(world: World) -> list[Claim]:
    claim = world.claim(world.bundle(), b"#acme")
    return [
        replace(claim, signature=bytes(64)),
        replace(claim, signature=b"\xff" * 64),
        replace(claim, nonce=bytes(32)),
        replace(claim, topics=()),
        replace(claim, topics=(b"#acme", b"#acme")),
        replace(claim, topics=(b"#acme/eng",)),
        replace(claim, signature=claim.signature[:-1] + bytes([claim.signature[-1] ^ 1])),
    ]


REFUSALS: list[tuple[str, Callable[[World], list[Claim]]]] = [
    ("bad_id", bad_ids),
    ("bad_certificate", bad_certificates),
    ("principal_mismatch", other_principals),
    ("hub_mismatch", other_hubs),
    ("key_mismatch", other_keys),
    ("allowlist_absent", unusable_allowlist(lambda world: world.path.unlink())),
    ("allowlist_unreadable", unusable_allowlist(unreadable)),
    ("allowlist_unsafe", unusable_allowlist(pipe)),
    ("allowlist_unsigned", unusable_allowlist(lambda world: files.replace(world.path, b""))),
    ("allowlist_bad_signature", unusable_allowlist(signed_by_another)),
    ("allowlist_malformed", unusable_allowlist(malformed)),
    ("allowlist_stale", unusable_allowlist(lambda world: world.publish(at_s=NOW - 60))),
    ("allowlist_future", unusable_allowlist(lambda world: world.publish(at_s=NOW + 31))),
    ("unknown_agent", nobody),
    ("revoked_key", revoked),
    ("before_binding", before_binding),
    ("topic", out_of_scope),
    ("bind_authority", not_delegating),
    ("bind_authority", daemon_by_another_name),
    ("certificate_signature", badly_certified),
    ("window_empty", empty_windows),
    ("window_too_long", long_windows),
    ("window_not_yet", early_windows),
    ("window_expired", late_windows),
    ("transcript_signature", bad_hellos),
]


@pytest.mark.parametrize(("label", "claims"), REFUSALS)
def test_each_refusal_has_its_label_and_costs_two_verifications(
    world: World, verifications: list[bool], label: str, claims: Callable[[World], list[Claim]]
) -> None:
    made = claims(world)
    for _ in range(2):  # the second time with whatever was remembered
        for claim in made:
            verifications.clear()
            assert world.verifier.verify(claim, NOW) == Denied(label)
            assert len(verifications) == 2


def test_the_table_of_labels_is_complete() -> None:
    documented = re.findall(r"^\| ([a-z_, …]+) \|", verifier.__doc__ or "", re.MULTILINE)
    labels = {name.replace("…", "allowlist_") for row in documented for name in row.split(", ")} - {"label"}
    assert labels == {label for label, _ in REFUSALS} | {"no_owner_key"}


def test_a_refusal_after_a_proven_certificate_costs_two_as_well(world: World, verifications: list[bool]) -> None:
    bundle = world.bundle()
    assert isinstance(world.verifier.verify(world.claim(bundle), NOW), Identity)
    claim = replace(world.claim(bundle), nonce=bytes(32))
    verifications.clear()
    assert world.verifier.verify(claim, NOW) == Denied("transcript_signature")
    assert len(verifications) == 2
    verifications.clear()
    world.publish(at_s=NOW + 3600)
    assert world.verifier.verify(world.claim(bundle), NOW + 3600) == Denied("window_expired")
    assert len(verifications) == 2


def test_an_agent_that_is_not_there_is_judged_like_one_that_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: the same verifications of messages of the same size, and the same looks at topics."""
    work: list[tuple[str, int]] = []
    real_verify, real_may_hold = verifier.keys.verify, verifier.may_hold

    def verify(public: bytes, message: bytes, signature: bytes) -> bool:
        work.append(("verify", len(message)))
        return real_verify(public, message, signature)

    def may_hold(agent_id: str, prefixes: tuple[str, ...], topic: bytes) -> bool:
        work.append(("may_hold", len(topic)))
        return real_may_hold(agent_id, prefixes, topic)

    monkeypatch.setattr(verifier.keys, "verify", verify)
    monkeypatch.setattr(verifier, "may_hold", may_hold)
    spent = []
    for name in (AGENT, AGENT.replace("bob", "eve")):
        topics = (b"#other", b"#_inbox/" + name.encode(), b"#acme")
        claim = world.claim(Bundle.make(name, OTHER, HUB, NOW, 3600), *topics)
        work.clear()
        assert isinstance(world.verifier.verify(claim, NOW), Denied)
        spent.append(list(work))
    assert spent[0] == spent[1]
    assert [what for what, _ in spent[0]] == ["may_hold"] * 3 + ["verify"] * 2


def test_the_checks_run_in_their_order(world: World) -> None:
    """Take a hello with every fault at once and mend one after the other: the labels come in the documented order."""
    bundle = world.bundle()
    certificate = replace(
        Certificate.decode(bundle.certificate),
        principal="alice",
        hub_id="other",
        delegate_key=OTHER.public,
        not_before=stamp(-60.5),
        not_after=stamp(86_400),
        signature=bytes(64),
    )
    world.publish(
        agent_id="alice",
        revoked_keys=frozenset({bundle.delegate.public}),
        bound_at=NOW * NS,
        bind_authority="operator",
    )
    world.path.unlink()
    claim = replace(world.claim(bundle, b"#other"), agent_id="", certificate=b"", signature=bytes(64))
    seen = []

    def judge() -> None:
        denied = world.verifier.verify(claim, NOW)
        assert isinstance(denied, Denied)
        seen.append(denied.label)

    def mend(**changes: object) -> None:
        nonlocal certificate, claim
        certificate = replace(certificate, **changes)
        claim = replace(claim, certificate=certificate.encode())
        judge()

    judge()
    claim = replace(claim, agent_id=AGENT)
    judge()
    mend()
    mend(principal=AGENT)
    mend(hub_id=HUB)
    mend(delegate_key=bundle.delegate.public)
    for changes in ({}, {"agent_id": AGENT}, {"revoked_keys": frozenset()}, {"bound_at": (NOW - 61) * NS}):
        world.publish(**changes)
        judge()
    claim = replace(claim, topics=(b"#acme",))
    judge()
    world.publish(bind_authority="possession_proof")
    judge()
    mend(signature=world.agent.sign(certificate.signed_bytes()))
    certificate = replace(certificate, not_after=stamp(3600))
    mend(signature=world.agent.sign(certificate.signed_bytes()))
    assert seen == [
        "bad_id",
        "bad_certificate",
        "principal_mismatch",
        "hub_mismatch",
        "key_mismatch",
        "allowlist_absent",
        "unknown_agent",
        "revoked_key",
        "before_binding",
        "topic",
        "bind_authority",
        "certificate_signature",
        "window_too_long",
        "transcript_signature",
    ]


# --- the edges of the window and of the binding ---


@pytest.mark.parametrize(
    ("begin", "end", "now_s"),
    [
        (0, 3600, 0),
        (0, 3600, 0.999),
        (0, 3600, 3599.999),
        (0, 43_200, 0),
        (30, 60, 0),
        (30, 60, 0.999),
        (0, 43_200, -30),
        (0.5, 43_200.5, 0),
        (0, 0.001, 0.999),
    ],
)
def test_inside_the_window(world: World, begin: float, end: float, now_s: float) -> None:
    world.publish(at_s=NOW + now_s)
    claim = with_certificate(world, not_before=stamp(begin), not_after=stamp(end))
    assert isinstance(world.verifier.verify(claim, NOW + now_s), Identity)


@pytest.mark.parametrize(
    ("begin", "end", "now_s", "label"),
    [
        (0, 3600, 3600, "window_expired"),
        (0, 3600.001, 3601, "window_expired"),
        (31, 60, 0.999, "window_not_yet"),
        (30.001, 60, 0, "window_not_yet"),
        (0, 43_201, 0, "window_too_long"),
        (0, 0, 0, "window_empty"),
    ],
)
def test_outside_the_window(world: World, begin: float, end: float, now_s: float, label: str) -> None:
    world.publish(at_s=NOW + now_s)
    claim = with_certificate(world, not_before=stamp(begin), not_after=stamp(end))
    assert world.verifier.verify(claim, NOW + now_s) == Denied(label)


@given(st.integers(-100, 100), st.integers(-100, 100), st.integers(-100_000, 100_000))
def test_the_window_is_what_the_specification_says(begin: int, length: int, milliseconds: int) -> None:
    certificate = Certificate("bob", "a2a-hub", bytes(32), HUB, stamp(begin), stamp(begin + length), bytes(64))
    now_s = NOW + milliseconds / 1000
    floored = milliseconds // 1000
    fits = length > 0 and begin - 30 <= floored < begin + length
    assert (verifier.window_fault(certificate.window(), now_s) == "") == fits


@pytest.mark.parametrize(("bound_ns", "begin"), [(0, 0), (999_999_999, 0), (0, 0.999)])
def test_a_certificate_of_the_second_of_its_binding_is_taken(world: World, bound_ns: int, begin: float) -> None:
    entry = replace(world.entry, bound_at=NOW * NS + bound_ns)
    world.verifier._allowlist = type("Fixed", (), {"current": lambda *_: Allowlist(NOW * NS, 60, {AGENT: entry})})()
    assert isinstance(world.verifier.verify(with_certificate(world, not_before=stamp(begin)), NOW), Identity)


def test_a_clock_two_seconds_back_after_minting_is_no_reason(world: World) -> None:
    """F75."""
    claim = world.claim(world.bundle())
    assert isinstance(world.verifier.verify(claim, NOW - 2), Identity)
    world.publish(at_s=NOW - 7200, bound_at=(NOW - 9000) * NS)
    assert world.verifier.verify(claim, NOW - 7200) == Denied("window_not_yet")


# --- no byte may be changed ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_changed_certificate_is_refused(world: World, at: int, change: int) -> None:
    claim = world.claim(world.bundle())
    wire = bytearray(claim.certificate)
    wire[at % len(wire)] ^= change
    assert isinstance(world.verifier.verify(replace(claim, certificate=bytes(wire)), NOW), Denied)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=8), st.binary(max_size=40), st.binary(max_size=70), st.binary(max_size=390), st.binary(max_size=40)
)
def test_rubbish_is_denied_and_never_fails(
    world: World, agent_id: str, key: bytes, signature: bytes, certificate: bytes, nonce: bytes
) -> None:
    claim = Claim(agent_id, key, signature, certificate, (), nonce)
    assert isinstance(world.verifier.verify(claim, NOW), Denied)


def test_a_certificate_for_another_purpose_is_no_certificate(world: World) -> None:
    """Bytes that the agent signed for something else, dressed up: the domain string keeps them apart."""
    bundle = world.bundle()
    found = Certificate.decode(bundle.certificate)
    message = signed_bytes(
        found.principal, found.scope, found.delegate_key, found.hub_id, found.not_before, found.not_after
    ).replace(b"a2a-hub-join/v1", b"a2a-hub-join/v2")
    wire = replace(found, signature=world.agent.sign(message)).encode()
    assert world.verifier.verify(world.claim(replace(bundle, certificate=wire)), NOW) == Denied("certificate_signature")


# --- what is remembered ---


def test_only_successes_are_remembered_and_only_under_their_key(world: World, verifications: list[bool]) -> None:
    bundle = world.bundle()
    identity = world.verifier.verify(world.claim(bundle), NOW)
    assert isinstance(identity, Identity)
    world.publish(public=OTHER.public)
    assert world.verifier.verify(world.claim(bundle), NOW) == Denied("certificate_signature")
    assert world.verifier.revalidation(NOW)(identity) == Denied("certificate_signature")
    world.publish(public=world.agent.public)
    verifications.clear()
    assert isinstance(world.verifier.verify(world.claim(bundle), NOW), Identity)
    assert verifications == [True]


def test_what_is_remembered_is_bounded_and_the_oldest_use_goes_first(
    world: World, verifications: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CERTIFICATE_CACHE_ENTRIES >= 256
    monkeypatch.setattr(verifier, "CERTIFICATE_CACHE_ENTRIES", 3)
    bundles = [world.bundle() for _ in range(4)]
    for bundle in (*bundles[:3], bundles[0], bundles[3]):
        world.verifier.verify(world.claim(bundle), NOW)
    costs = []
    for bundle in (bundles[0], bundles[3], bundles[2], bundles[1]):
        verifications.clear()
        world.verifier.verify(world.claim(bundle), NOW)
        costs.append(len(verifications))
    assert costs == [1, 1, 1, 2]


# --- revalidation ---


@pytest.fixture
def identity(world: World) -> Identity:
    found = world.verifier.verify(world.claim(world.bundle()), NOW)
    assert isinstance(found, Identity)
    return found


def test_an_identity_that_holds_costs_no_signature(world: World, identity: Identity, verifications: list[bool]) -> None:
    assert world.verifier.revalidation(NOW + 1)(identity) == identity
    assert verifications == []


def test_prefixes_are_those_of_now(world: World, identity: Identity) -> None:
    world.publish(prefixes=("acme",))
    assert world.verifier.revalidation(NOW)(identity) == replace(identity, prefixes=("acme",))


@pytest.mark.parametrize(
    ("label", "change"),
    [
        ("unknown_agent", lambda world, _: world.publish_all(Allowlist(NOW * NS, 60, {}))),
        ("revoked_key", lambda world, identity: world.publish(revoked_keys=frozenset({identity.key}))),
        ("before_binding", lambda world, _: world.publish(bound_at=(NOW + 1) * NS)),
        ("bind_authority", lambda world, _: world.publish(bind_authority="operator")),
        ("certificate_signature", lambda world, _: world.publish(public=OTHER.public)),
        ("allowlist_absent", lambda world, _: world.path.unlink()),
        ("allowlist_unreadable", lambda world, _: unreadable(world)),
        ("allowlist_unsafe", lambda world, _: world.path.chmod(0o644)),
        ("allowlist_unsigned", lambda world, _: files.replace(world.path, b"")),
        ("allowlist_bad_signature", lambda world, _: signed_by_another(world)),
        ("allowlist_malformed", lambda world, _: malformed(world)),
        ("allowlist_future", lambda world, _: world.publish(at_s=NOW + 31)),
    ],
)
def test_an_identity_ends_with_its_reason(
    world: World, identity: Identity, label: str, change: Callable[[World, Identity], None]
) -> None:
    change(world, identity)
    assert world.verifier.revalidation(NOW)(identity) == Denied(label)


def test_an_identity_ends_with_its_window(world: World, identity: Identity) -> None:
    world.publish(at_s=NOW + 3600)
    assert world.verifier.revalidation(NOW + 3599.999)(identity) == identity
    assert world.verifier.revalidation(NOW + 3600)(identity) == Denied("window_expired")


def test_an_identity_that_was_never_proven_is_proven_then(
    world: World, identity: Identity, verifications: list[bool]
) -> None:
    fresh = World(world.path).verifier
    assert fresh.revalidation(NOW)(identity) == identity
    assert verifications == [True]


def test_only_an_allowlist_that_is_merely_stale_earns_the_grace(world: World, identity: Identity) -> None:
    assert world.verifier.revalidation(NOW + 59)(identity) == identity
    assert world.verifier.revalidation(NOW + 60)(identity) == Stale()
    assert world.verifier.revalidation(NOW + 3600)(identity) == Denied("window_expired")
    world.publish(at_s=NOW - 100, revoked_keys=frozenset({identity.key}), bound_at=0)
    assert world.verifier.revalidation(NOW)(identity) == Denied("revoked_key")
    world.publish_all(Allowlist((NOW - 100) * NS, 60, {"alice": Entry("alice", b"\7" * 32, "possession_proof", 0)}))
    assert world.verifier.revalidation(NOW)(identity) == Denied("unknown_agent")


# --- without an owner key ---


def test_without_an_owner_key_nobody_is_admitted(world: World, identity: Identity) -> None:
    closed = DenyAllVerifier()
    assert closed.verify(world.claim(world.bundle()), NOW) == Denied("no_owner_key")
    assert closed.revalidation(NOW)(identity) == Denied("no_owner_key")


def test_nothing_of_a_claim_that_could_be_replayed_is_shown(world: World, identity: Identity) -> None:
    claim = world.claim(world.bundle())
    for secret in (claim.signature, claim.certificate, claim.nonce):
        assert repr(secret) not in repr(claim)
    assert repr(identity.certificate) not in repr(identity)
