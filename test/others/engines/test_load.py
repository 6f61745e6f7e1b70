"""What SGLang's publisher says of its load is what the service shows."""

import time

import pytest

from bed import PATIENCE
from engine import BLOCK_SIZE
from load_publisher import LoadPublishers
from ports import free_ports

pytestmark = pytest.mark.engine("sglang")


@pytest.fixture
def loads(publisher):
    if not hasattr(publisher.module, "resolve_load_pub_range"):
        pytest.skip("this release does not publish its load")
    base = free_ports(4) + 2
    opened = LoadPublishers(publisher.wheel, publisher.module, 2, base)
    yield opened, base
    opened.close()


def _reported(service, identity, rank):
    for scope in service.call("GET", "/loads"):
        for row in scope["loads"]:
            if (row["worker_id"], row["dp_rank"]) == (identity, rank):
                return row.get("reported")
    return None


def _await(service, identity, rank, publish, **want) -> None:
    """Publishes until the service shows it: what is sent before a subscription is lost."""
    deadline = time.monotonic() + PATIENCE
    while True:
        publish()
        got = _reported(service, identity, rank) or {}
        if all(got.get(name) == value for name, value in want.items()):
            assert got["source"] == "push"
            return
        assert time.monotonic() < deadline, f"the service shows {got}, want {want}"
        time.sleep(0.05)


def test_load_of_each_rank(bed, loads):
    publishers, base = loads
    worker = bed.register(
        *bed.ranks(2), load_endpoints={str(rank): f"tcp://127.0.0.1:{base + rank}" for rank in range(2)}
    )
    for rank, running in enumerate((3, 11)):
        ticks = iter(range(10**6))

        def publish(rank=rank, running=running, ticks=ticks):
            publishers.publish(
                rank,
                num_running_reqs=running,
                num_waiting_reqs=2,
                num_used_tokens=40 * BLOCK_SIZE,
                max_total_num_tokens=100 * BLOCK_SIZE,
                num_waiting_uncached_tokens=77,
                max_running_requests=64,
                total_prefill_busy_us=next(ticks),  # a change is published at once
            )

        _await(
            bed.service,
            worker.id,
            rank,
            publish,
            running=running,
            waiting=2,
            kv_tokens_used=40 * BLOCK_SIZE,
            kv_tokens_total=100 * BLOCK_SIZE,
            **({"waiting_uncached_tokens": 77, "max_running": 64} if publishers.says_more else {}),
        )
