"""The words that programs read."""

from typing import get_args

from wakehub.client.receipts import SendRequest, State, WaitFor
from wakehub.limits import DEFAULT_TTL_SECONDS


def test_the_states_are_stable_words_and_none_claims_delivery() -> None:
    assert [state.value for state in State] == [
        "note",
        "stored",
        "spooled",
        "hinted",
        "hint_refused",
        "not_hinted",
        "handed_off",
        "answered",
        "expired",
        "failed",
    ]
    assert set(get_args(WaitFor)) == {"stored", "hinted", "handed-off", "answered"}


def test_a_plain_request_is_kept_for_a_day_and_waits_for_nothing() -> None:
    request = SendRequest("alice", b"hi")
    assert (request.ttl_s, request.row_class, request.wait) == (DEFAULT_TTL_SECONDS, "normal", None)
