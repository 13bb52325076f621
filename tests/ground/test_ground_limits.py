"""Every number once, and a number that would break another one fails at import."""

import re
from pathlib import Path

import pytest

from wakehub import limits

SOURCE = Path(limits.__file__).read_text()


def test_the_numbers_of_the_specification() -> None:
    """awh1.md; a change here is a change of the protocol."""
    assert limits.MAX_FRAME_BYTES == 1304
    assert (limits.MAX_ID_BYTES, limits.MAX_TOPIC_BYTES, limits.MAX_TOPICS_PER_LIST) == (128, 64, 8)
    assert (limits.MAX_CERTIFICATE_BYTES, limits.MAX_DELEGATION_SECONDS, limits.CLOCK_LEEWAY_SECONDS) == (
        390,
        43_200,
        30,
    )
    assert (limits.MAX_ALLOWLIST_BYTES, limits.ALLOWLIST_CACHE_SECONDS) == (1_048_576, 2)
    assert (limits.MAX_PREFIXES, limits.MAX_PREFIX_BYTES) == (3, 63)
    assert (limits.MAX_QUEUED_FRAMES, limits.MAX_QUEUED_BYTES, limits.MAX_EGRESS_BYTES) == (256, 65_536, 33_554_432)
    assert (limits.FRAME_RATE_PER_SECOND, limits.FRAME_BURST) == (500, 2_000)
    assert (limits.HANDSHAKE_RATE_PER_SECOND, limits.HANDSHAKE_BURST, limits.HANDSHAKE_DEADLINE_MS) == (4, 8, 5_000)
    assert (limits.MAX_KNOWN_AGENTS, limits.MAX_PENDING_IDS, limits.MAX_TOPICS_PER_SESSION) == (1_024, 64, 32)
    assert (limits.RECONNECT_BASE_MS, limits.RECONNECT_JITTER_MS) == (250, 750)


def test_every_name_is_defined_once_and_final() -> None:
    names = re.findall(r"^([A-Z][A-Z0-9_]*): Final = ", SOURCE, re.MULTILINE)
    assert len(names) == len(set(names))
    assert set(names) == {name for name in vars(limits) if name.isupper() and not name.startswith("_")}
    values = [getattr(limits, name) for name in names]
    assert all(isinstance(value, int | bytes | tuple) or value > 0 for value in values)


@pytest.mark.parametrize(
    "change",
    [
        ("MAX_PAYLOAD_BYTES: Final = 1024", "MAX_PAYLOAD_BYTES: Final = 1023"),
        ("MAX_WAKE_PAYLOAD_BYTES: Final = 256", "MAX_WAKE_PAYLOAD_BYTES: Final = 2048"),
        ("MAX_CERTIFICATE_BYTES: Final = 390", "MAX_CERTIFICATE_BYTES: Final = 364"),
        ("MAX_QUEUED_FRAMES: Final = 256", "MAX_QUEUED_FRAMES: Final = 64"),
        ("MAX_QUEUED_BYTES: Final = 65_536", "MAX_QUEUED_BYTES: Final = 32_768"),
        ("MAX_EGRESS_BYTES: Final = 33_554_432", "MAX_EGRESS_BYTES: Final = 1_048_576"),
        ("MAX_PREFIX_BYTES: Final = 63", "MAX_PREFIX_BYTES: Final = 64"),
        ("MAX_SOCKET_DIRECTORY_BYTES: Final = 87", "MAX_SOCKET_DIRECTORY_BYTES: Final = 90"),
        ("ALLOWLIST_RESIGN_SECONDS: Final = 20", "ALLOWLIST_RESIGN_SECONDS: Final = 30"),
        ("DEFAULT_DELEGATION_SECONDS: Final = 3_600", "DEFAULT_DELEGATION_SECONDS: Final = 50_000"),
        ("LEASE_RENEW_SECONDS: Final = 30", "LEASE_RENEW_SECONDS: Final = 100"),
    ],
)
def test_numbers_that_do_not_fit_together_fail_at_import(change: tuple[str, str]) -> None:
    assert change[0] in SOURCE
    with pytest.raises(AssertionError):
        exec(compile(SOURCE.replace(*change), "limits", "exec"), {})
