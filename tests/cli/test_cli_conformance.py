"""`wakehub conformance`: words and exits, and that it needs no hub to be listed. The cases have their own tests."""

import json
from pathlib import Path

from wakehub.ops.conformance.report import JSON_KEYS, LISTED_KEYS
from wakehub.ops.conformance.runner import CASES


def test_the_list_needs_no_hub(wakehub):
    found = wakehub("conformance", "--list")
    assert (found.status, found.err) == (0, "")
    assert len(found.out.splitlines()) == len(CASES)
    found = wakehub("conformance", "--list", "--only", "5.8", "--json")
    listed = json.loads(found.out)
    assert all(tuple(case) == LISTED_KEYS and case["section"] == "5.8" for case in listed)


def test_no_hub_is_2_in_words_and_in_json(wakehub, home: Path):
    found = wakehub("conformance")
    assert (found.status, found.out) == (2, "")
    assert "no hub to try at" in found.err
    assert "missing" in found.err
    assert "next: " in found.err
    found = wakehub("conformance", "--json")
    assert (found.status, found.err) == (2, "")
    report = json.loads(found.out)
    assert tuple(report) == JSON_KEYS
    assert report["reachable"] is False
    assert report["socket"] == str(home / "run" / "hub.sock")


def test_words_that_cannot_be_used_are_2(wakehub):
    found = wakehub("conformance", "--only", "nonsense")
    assert found.status == 2
    assert "--list" in found.err
    found = wakehub("conformance", "--bundle", "nowhere.json")
    assert found.status == 2
    assert "wakehub delegate" in found.err


def test_a_bundle_that_others_can_read_is_77(wakehub, tmp_path: Path):
    bundle = tmp_path / "bundle.json"
    bundle.write_text("{}")
    bundle.chmod(0o644)
    assert wakehub("conformance", "--bundle", str(bundle)).status == 77
