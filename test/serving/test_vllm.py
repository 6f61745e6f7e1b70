"""What the service says of two vLLM engines is what they say and find."""

import random
import threading
import time

import fleet
import pytest
import service
import vllm_engine


@pytest.fixture(scope="module")
def engines(pytestconfig):
    with vllm_engine.running(pytestconfig.getoption("--vllm"), 2) as engines:
        yield engines


@pytest.fixture
def router(pytestconfig):
    with service.running([pytestconfig.getoption("--service"), "--listen", "127.0.0.1"], "tenant_id") as router:
        yield router


def test_load_is_reported(engines, router):
    """An engine is registered by its URL alone, and its load is what it has, more than it has room for."""
    engine = engines[0]
    record = {"worker_id": 1, "endpoint": engine.url, "describe": True, "load_metrics": {"interval_seconds": 0.25}}
    registered = router.call("POST", "/workers", record)
    assert registered["lifecycle"] == "schedulable", registered
    assert (registered["model_name"], registered["block_size"]) == (fleet.MODEL, engine.block_size)
    assert registered["kv_events_endpoint"] == engine.record["kv_events_endpoints"]["0"]
    total = engine.record["total_kv_blocks"] * engine.block_size

    def awaited(requests, waiting, blocks):
        """Waits until the engine has so many requests, which nobody has booked, and at least so many wait."""
        deadline = time.monotonic() + fleet.PATIENCE
        while True:
            load = router.call("GET", "/loads")[0]["loads"][0]
            if reported := load.get("reported"):
                assert reported["source"] == "scrape" and reported["kv_tokens_total"] == total
                if (
                    reported["running"] + reported["waiting"] == load["foreign"]["requests"] == requests
                    and reported["waiting"] >= waiting
                    and load["foreign"]["blocks"] >= blocks
                ):
                    return
            assert time.monotonic() < deadline, load
            time.sleep(0.05)

    awaited(0, 0, 0)
    dice, count = random.Random(5), 8
    prompts = [tuple(dice.randrange(3, engine.vocabulary) for _ in range(300)) for _ in range(count)]
    requests = [threading.Thread(target=engine.complete, args=(0, prompt, 300)) for prompt in prompts]
    for request in requests:
        request.start()
    awaited(count, 1, engine.record["total_kv_blocks"] // 2)
    for request in requests:
        request.join()
    awaited(0, 0, 0)


def test_predicted_is_cached(engines, router, pytestconfig):
    dice = random.Random(pytestconfig.getoption("--seed"))
    fleet.play(router, engines, dice, pytestconfig.getoption("--requests"))
