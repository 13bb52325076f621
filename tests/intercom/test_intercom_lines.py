"""Lines of an inbox (intercom.md §4): whole ones only, however long what others wrote is, and known again."""

import io
from dataclasses import replace

import pytest

from wakehub.intercom import ndjson
from wakehub.intercom.lines import digest, ended, lies_in
from wakehub.limits import MAX_MESH_LINE_BYTES

LONGEST = b"x" * (MAX_MESH_LINE_BYTES - 1) + b"\n"


@pytest.mark.parametrize("tail", [b"", b"torn", b"x" * (2 * MAX_MESH_LINE_BYTES)])
def test_ended_lines_are_given_and_one_that_is_too_long_by_its_length(tail):
    longer, longest = b"x" + LONGEST, b"x" * (3 * MAX_MESH_LINE_BYTES) + b"\n"
    found = list(ended(io.BytesIO(b"1\n\n" + LONGEST + longer + longest + b"2\n" + tail)))
    assert found == [
        (b"1\n", 2),
        (b"\n", 1),
        (LONGEST, len(LONGEST)),
        (None, len(longer)),
        (None, len(longest)),
        (b"2\n", 2),
    ]


def test_the_same_message_is_known_in_another_form_and_another_one_under_its_id_is_not():
    one = ndjson.chat("ann", "bob", "1", "room")
    asked, other = replace(one, extra={"receipt": True}), replace(one, payload={"text": "2"})
    assert digest(one) == digest(asked) != digest(other)
    quoting = ndjson.chat("ann", "bob", f'"{one.id}"', "room")
    data = b"torn\n" + quoting.line() + other.line() + asked.line()
    assert lies_in(data, one.line())
    assert lies_in(data, other.line())
    assert not lies_in(data, ndjson.chat("ann", "bob", "1", "room").line())
    assert not lies_in(data[:-1], one.line()), "a line without its end is not there"
