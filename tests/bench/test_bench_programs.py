"""The programs of others, against their real servers where both are installed; and rows in a real record."""

from importlib.util import find_spec

import pytest

from wakehub.bench import peers
from wakehub.bench.ends import Hearer, Sayer, took_ns
from wakehub.bench.instance import Instance
from wakehub.inbox.sqlite import SqliteInbox

FOUND = {peer.name: peer for peer in peers.installed()[0]}


def usable(name):
    missing = [what for what, there in ((f"the server of {name}", name in FOUND), (f"the package {name}", find_spec(name))) if not there]  # fmt: skip  # noqa: E501
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}"))


@pytest.mark.parametrize("name", [usable("redis"), usable("nats")])
def test_others_are_measured_by_their_own_clients(stage, name):
    served = FOUND[name].serve(stage, 2, ())
    address = served.address if isinstance(served.address, str) else f"nats://127.0.0.1:{served.address[1]}"
    hearer = Hearer(stage, ["hear", name, address, "program"], {})
    sayer = Sayer(stage, ["say", name, address], {})
    took = took_ns(sayer, hearer, ["program"], 5, 1)
    assert len(took) == 5
    assert all(each > 0 for each in took)
    sayer.end()
    hearer.end()


def test_rows_are_stored_each_in_a_transaction_of_its_own(stage):
    instance = Instance(stage)
    sayer = Sayer(stage, ["store", "-"], instance.environ)
    numbers, said = sayer.say(["nobody"], 4, 1)
    assert len(said["took_ns"]) == 4
    with SqliteInbox.open(instance.config.paths.record) as inbox:
        rows = inbox.unread("nobody", limit=10)
        assert [int(row.body.split()[0]) for row in rows] == list(numbers)
    sayer.end()
