"""`--posture`, `--health` and `metrics` as commands."""

import json

from daemon_process import until
from open_metrics import parse

from wakehub.errors import Exit
from wakehub.ops import health, metrics, posture


def test_health_without_a_hub(wakehub):
    found = wakehub("--health")
    assert found.status == Exit.UNREACHABLE
    assert "missing" in found.out
    assert "next: systemctl --user start wakehub.service" in found.out, "a unit is installed for this home"
    as_json = wakehub("--health", "--json")
    assert as_json.status == Exit.UNREACHABLE
    assert tuple(json.loads(as_json.out)) == health.JSON_KEYS


def test_health_of_a_running_hub(process, up):
    found = process("--health", "--json")
    assert found.status == 0
    assert json.loads(found.out)["state"] == "answers"
    other = process("--health", "--hub-id", "ai-memory-wake-hub")
    assert other.status == Exit.UNREACHABLE
    assert "other_hub" in other.out


def test_health_of_the_socket_that_was_named(process, up, wakehub, monkeypatch):
    monkeypatch.setenv("WAKEHUB_HOME", "/nowhere")
    assert wakehub("--health", "--socket", str(up / "run/hub.sock")).status == 0


def test_posture_of_nothing(wakehub, home):
    assert wakehub("--posture").status == 0
    assert wakehub("--posture", "--require-admits").status == Exit.NOTHING
    assert not home.exists()


def test_posture_of_a_running_instance(process, up, wakehub):
    assert process("--posture", "--require-admits").status == Exit.NOTHING
    process("listen", "--as", "alice", "--once")
    until(lambda: process("--posture", "--require-admits").status == Exit.DONE, "the allowlist shows the new name")
    found = process("--posture", "--require-admits", "--json")
    assert found.status == 0
    keys = json.loads(found.out)
    assert tuple(keys) == posture.JSON_KEYS
    assert (keys["admits"], keys["allowlist"]["agents"]) == (True, ["alice"])
    assert keys["supervisor"].startswith("wakehub up")


def test_an_unsafe_instance(wakehub, home):
    wakehub("init")
    (home / "run").chmod(0o755)
    found = wakehub("--posture")
    assert found.status == Exit.FAILED
    assert f"next: chmod 700 {home}/run" in found.out


def test_a_configuration_that_cannot_be_read_is_a_finding(wakehub, home):
    wakehub("init")
    (home / "config.toml").chmod(0o644)
    found = wakehub("--posture", "--json", "--require-admits")
    assert found.status == Exit.FAILED
    assert tuple(json.loads(found.out)) == posture.JSON_KEYS
    assert wakehub("--health").status == Exit.PERMISSION


def test_metrics(process, up):
    found = process("metrics")
    assert found.status == 0
    assert found.out.endswith("# EOF\n")
    assert "wakehub_recipients 1\n" in found.out


def test_metrics_without_a_hub(wakehub):
    found = wakehub("metrics")
    assert found.status == Exit.UNAVAILABLE
    assert "systemctl --user start wakehub.service" in found.err


def test_metrics_as_json(process, up):
    found = process("metrics", "--json")
    assert found.status == 0
    told = json.loads(found.out)
    assert tuple(told) == metrics.JSON_KEYS
    assert {"name": "wakehub_recipients", "labels": {}, "value": 1} in told["samples"]
    families = parse(process("metrics").out)
    assert len(told["samples"]) == sum(len(family.samples) for family in families.values())


def test_a_repair_takes_no_flag_of_the_diagnosis(wakehub):
    found = wakehub("doctor", "--repair", "--fail-on-warn")
    assert found.status == Exit.USAGE
    assert "--fail-on-warn" in found.err
