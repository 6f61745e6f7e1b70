"""Engines are registered by their URL alone, with what their own code says of them."""

import itertools
import json
from pathlib import Path

import pytest

import describing
from bed import Worker
from engine import BLOCK_SIZE, RANKS, Chain

CHAIN = Chain(tuple(range(5000, 5000 + 8 * BLOCK_SIZE)))
_ids = itertools.count(900_001)


def _registered(bed, engines, answers, how) -> Worker:
    """Registers the engine that gives these answers, and waits for its events."""
    identity = next(_ids)
    models = {"data": [{"id": bed.model}, {"id": "sql", "parent": bed.model}]}
    with describing.serving({"/v1/models": models, **answers}) as url:
        record = bed.service.call("POST", "/workers", {"worker_id": identity, "endpoint": url, "describe": how})
    assert record["lifecycle"] == "schedulable", record
    assert (record["model_name"], record["adapters"], record["block_size"]) == (bed.model, ["sql"], BLOCK_SIZE)
    assert record["data_parallel_size"] == len(engines)
    worker = Worker(bed.service, bed.model, identity, engines)
    worker.join()
    return worker


def _follows(bed, worker):
    try:
        for rank, engine in enumerate(worker.engines):
            worker.apply(engine.stored(CHAIN, 0, 3 + rank), rank=rank)
            assert worker.overlap(CHAIN, rank) == (3 + rank,) * 3
    finally:
        bed.service.call("DELETE", f"/workers/{worker.id}")


@pytest.mark.engine("sglang")
@pytest.mark.parametrize("how", [True, "sglang"])
def test_sglang(bed, pytestconfig, how):
    (wheel,) = (Path(w) for w in pytestconfig.getoption("--wheel") if f"/sglang-{bed.publisher.version}-" in w)
    engines = bed.ranks(2)
    events = {"publisher": "zmq", "endpoint": f"tcp://*:{engines[0]._base}", "replay_endpoint": f"tcp://*:{engines[0]._base + RANKS}"}
    arguments = {"kv_events_config": json.dumps(events), "page_size": BLOCK_SIZE, "dcp_size": 1, "dp_size": 2, "attn_dp_size": 1}
    described = describing.sglang_kv_events(wheel, **arguments, load_publish_endpoint=None)
    assert described["dp_size"] == 2
    info = {"version": bed.publisher.version, "page_size": BLOCK_SIZE, "max_total_num_tokens": 1600, "kv_events": described}
    _follows(bed, _registered(bed, engines, {"/server_info": info}, how))


@pytest.mark.engine("vllm")
@pytest.mark.parametrize("how", [True, "vllm"])
def test_vllm(bed, how):
    engines = bed.ranks(2)
    if not hasattr(engines[0]._zmq, "get_publisher_config"):
        pytest.skip("this release does not describe its sockets")
    sources = {str(e.rank): vars(e._zmq.get_publisher_config()) for e in engines}
    info = "".join(f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",engine="{e.rank}",num_gpu_blocks="100"}} 1.0\n' for e in engines)
    answers = {"/metrics": info, "/version": {"version": bed.publisher.version}, "/kv_event_sources": sources}
    _follows(bed, _registered(bed, engines, answers, how))
