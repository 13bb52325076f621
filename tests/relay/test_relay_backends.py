"""What a backend may answer, and how it says that there is nobody left."""

from wakehub.errors import Exit
from wakehub.relay.backends import NotNow, OutputGone, orphan


def test_an_output_that_is_gone_exits_74_and_is_in_doubt_only_when_said() -> None:
    assert OutputGone("gone").exit == Exit.OUTPUT_GONE
    assert not OutputGone("gone").in_doubt
    assert OutputGone("gone", in_doubt=True).in_doubt
    assert "unread messages wait" in str(orphan())


def test_not_now_is_a_failure_without_doubt_unless_said() -> None:
    assert NotNow("later") == NotNow("later", busy=False, in_doubt=False)
