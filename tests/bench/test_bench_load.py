"""The load client's orders, and what they cost; what each does is tried with every system in test_bench_systems."""

from wakehub.bench.load import ORDERS, Cost, Load


def test_cost_counts_this_process():
    with Cost([]) as cost:
        sum(range(200_000))
    assert cost.client_ns > 0
    assert cost.wall_ns > 0
    assert cost.server_ns == 0


def test_orders_are_the_methods_there_are():
    assert all(callable(getattr(Load, name)) for name in ORDERS)
    assert set(ORDERS) == {name for name in vars(Load) if not name.startswith("_") and name != "fleet"}
