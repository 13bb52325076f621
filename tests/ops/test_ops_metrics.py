"""The hub's counters as JSON: every sample of the text, and nothing else (awh1.md §7)."""

from wakehub.ops import metrics
from wakehub.ops.metrics import Sample, samples

TEXT = """# TYPE a counter
a_total{cause="x",label="say \\"no\\", and\\nmore \\\\"} 3
# TYPE b gauge
b 1.5
# EOF
"""


def test_names_labels_and_values() -> None:
    assert list(samples(TEXT)) == [
        Sample("a_total", {"cause": "x", "label": 'say "no", and\nmore \\'}, 3),
        Sample("b", {}, 1.5),
    ]


def test_what_is_no_sample_is_passed_over() -> None:
    assert list(samples("# EOF\nrubbish\n\nname one\n")) == []
    assert metrics.to_json("") == {"samples": []}
