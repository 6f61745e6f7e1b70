"""Every route of the service, through both clients and in both dialects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import MakeClient
from select_service_client import (
    BadRequest,
    Conflict,
    NotFound,
    SelectServiceError,
    ServerError,
    Unavailable,
)
from select_service_client._core import Core
from select_service_client._plan import Request
from server import Server, eventually, free_port

TOP = 2**64 - 1
DESCRIPTION = Path(__file__).parents[3] / "api" / "openapi.yaml"

made: set[tuple[str, str]] = set()


@pytest.fixture(scope="module", autouse=True)
def recorded() -> Iterator[None]:
    """Notes every request that a client makes in this module."""
    original = Core.request

    def request(self: Core, method: str, path: str, *args: Any, **options: Any) -> Request:
        made.add((method, path))
        return original(self, method, path, *args, **options)

    Core.request = request  # type: ignore[method-assign]
    yield
    Core.request = original  # type: ignore[method-assign]


@pytest.fixture(params=["1.3", "1.6"])
def dialect(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_catalog(make: MakeClient, fleet: Server, dialect: str) -> None:
    client = make(fleet.url, dialect=dialect)
    tenant = "tenant_id" if dialect == "1.3" else "routing_group"
    # The other dialect's name of the tenant is translated, integer ranks are made strings.
    record = client.put_worker(
        worker_id=TOP,
        model_name="m",
        **{"routing_group" if dialect == "1.3" else "tenant_id": "t"},
        endpoint="http://e",
        block_size=4,
        kv_events_endpoints={0: "tcp://127.0.0.1:9"},
    )
    assert record["worker_id"] == TOP
    assert record[tenant] == "t"
    assert record["lifecycle"] == "schedulable"
    assert record["kv_events_endpoints"] == {"0": "tcp://127.0.0.1:9"}
    report = {"running": 1, "kv_tokens_used": 0, "waiting": None}
    assert client.report_load(TOP, {0: report}) is None
    with pytest.raises(NotFound, match=f"worker {TOP} has no dp_rank 1"):
        client.report_load(TOP, {0: report, 1: report})
    with pytest.raises(BadRequest, match="unknown field"):
        client.report_load(TOP, {0: {"runing": 1}})
    assert client.patch_worker(TOP, load_endpoints={0: ""})["load_endpoints"] == {"0": ""}
    assert client.patch_worker(TOP, total_kv_blocks=7, taints={"a"})["taints"] == ["a"]
    assert [row["worker_id"] for row in client.list_workers()] == [1, 2, TOP]
    assert [row["worker_id"] for row in client.list_workers(model_name="m", tenant="t")] == [TOP]
    assert client.list_workers(tenant="nobody") == []
    assert client.drain_worker(TOP)["drain"] == {}
    drained = client.drain_worker(TOP, deadline_seconds=600)
    assert drained["lifecycle"] == "draining"
    assert "T" in drained["drain"]["deadline"]
    assert drained["not_schedulable_reasons"] == ["drained over the API"]
    assert "drain" not in client.undrain_worker(TOP)
    assert client.delete_worker(TOP)["lifecycle"] == "unschedulable"
    with pytest.raises(NotFound, match=f"worker {TOP} not found") as error:
        client.delete_worker(TOP)
    assert error.value.status == 404


def test_reconcile(make: MakeClient, fleet: Server, dialect: str) -> None:
    client = make(fleet.url, dialect=dialect)
    wanted = [
        {"worker_id": 1, "endpoint": "http://engine-1", "block_size": 4},
        {
            "worker_id": TOP,
            "endpoint": "http://new",
            "block_size": 4,
            "kv_events_endpoints": {0: "tcp://h:1"},
        },
    ]
    assert client.reconcile_workers(wanted) == {"added": [TOP], "changed": [], "removed": [2], "unchanged": 1}
    assert client.reconcile_workers([], model_name="other", tenant="t")["removed"] == []
    with pytest.raises(BadRequest, match=r"workers\[1\]"):
        client.reconcile_workers([wanted[0], {"worker_id": 3, "data_parallel_size": 5000}])


def test_operation(make: MakeClient, fleet: Server) -> None:
    client = make(fleet.url)
    client.health()
    assert client.ready()["schedulable_workers"] == 2
    assert "select_service_" in client.metrics()
    assert "\nopenapi: 3.1" in "\n" + client.openapi()
    client.reconcile_workers([])
    assert client.ready()["ready"] is False


def test_selection(make: MakeClient, fleet: Server, dialect: str) -> None:
    client = make(fleet.url, dialect=dialect)
    chosen = client.select(token_ids=range(10), allowed_worker_ids={2}, policy_class="default")
    assert chosen["worker_id"] == 2
    good, bad = client.select_batch([{"token_ids": [1]}, {"token_ids": [-1]}], policy_class="default")
    with pytest.raises(ValueError, match="whole batch"):
        client.select_batch([{"token_ids": [1], "policy_class": "default"}])
    assert good["worker_id"] in (1, 2)
    assert isinstance(bad, BadRequest)
    booked = client.select_and_reserve(
        token_ids=[1, 2, 3, 4, 5], pinned_worker={"worker_id": 1, "dp_rank": 0}
    )
    booking = client.booking_id(booked)
    assert booked["worker_id"] == 1
    assert len(booking) == 36
    if dialect == "1.6":
        assert booked["isl_tokens"] == 5
        assert -(2**63) <= booked["sequence_hashes"][0] < 2**63
    load = client.potential_loads(token_ids=[9] * 4)
    assert {row["potential_prefill_tokens"] for row in load} == {4, 9}
    assert client.overlap_scores(token_ids=[1, 2, 3, 4])["num_blocks"] == 1
    assert client.diagnose(token_ids=[1, 2, 3, 4])["num_blocks"] == 1
    client.prefill_complete(booking)
    assert client.output_block(booking, decay_fraction=0.5) is True
    row = client.loads(model_name="default", tenant="default")[0]["loads"][0]
    assert (row["potential_prefill_tokens"], row["active_requests"]) == (0, 1)
    client.free(booking)
    with pytest.raises(NotFound):
        client.free(booking)
    assert fleet.is_idle()


def test_reservations(make: MakeClient, fleet: Server, dialect: str) -> None:
    client = make(fleet.url, dialect=dialect)
    request = {
        "reservation_id": "a/b ü%2F..",
        "worker_id": 1,
        "sequence_hashes": [-5, 2**64 - 6],
        "isl_tokens": 9,
        "lease_seconds": 60,
    }
    booked = client.create_reservation(**request)
    assert client.booking_id(booked) == request["reservation_id"]
    assert booked["lease_seconds"] == 60
    with pytest.raises(Conflict):
        client.create_reservation(**request)
    assert client.create_reservation(**request, if_exists="return") == booked
    client.renew(request["reservation_id"])
    client.free(request["reservation_id"])
    unleased = client.create_reservation(worker_id=2, token_ids=[1])
    with pytest.raises(Conflict, match="has no lease"):
        client.renew(client.booking_id(unleased))
    client.free(client.booking_id(unleased))
    for id_ in (".", ".."):
        client.free(
            client.booking_id(client.create_reservation(worker_id=2, token_ids=[1], selection_id=id_))
        )
    with pytest.raises(ValueError, match="empty"):
        client.free("")
    assert fleet.is_idle()


def test_pair(make: MakeClient, fleet: Server, dialect: str) -> None:
    client = make(fleet.url, dialect=dialect)
    engine: dict[str, Any] = {"model_name": "p", "endpoint": "http://e", "block_size": 4, "kv_events": False}
    client.put_worker(worker_id=1, role="prefill", **engine)
    client.put_worker(worker_id=2, role="decode", **engine)
    name = "reservation_id" if dialect == "1.3" else "selection_id"
    pair: dict[str, Any] = client.select_pair(
        model_name="p",
        token_ids=[1, 2, 3, 4],
        prefill={"allowed_worker_ids": [1]},
        conditional={"max_uncached_tokens": 2},
        lease_seconds=9,
    )
    assert pair["reason"] == "pair"
    assert pair["prefill"]["worker_id"] == 1
    assert pair["decode"][name] == pair[name] + ".decode"
    client.prefill_complete(pair[name])
    client.renew(pair[name])
    with pytest.raises(NotFound):
        client.free(pair[name] + ".prefill")
    client.free(pair[name])
    with pytest.raises(NotFound):
        client.free(pair[name])
    for worker in (1, 2):
        client.delete_worker(worker)


def test_kept_selection(make: MakeClient, fleet: Server) -> None:
    client = make(fleet.url)
    client.select(selection_id="kept", token_ids=[1, 2, 3, 4])
    assert client.create_reservation(selection_id="kept")["worker_id"] in (1, 2)
    client.free("kept")
    advice = client.select(token_ids=[1], advisory=True, session_id="s")
    assert advice["worker_load"]["active_prefill_tokens"] == 0


def test_affinity_target(make: MakeClient, fleet: Server) -> None:
    """It decides where it can; where it cannot the choice is the usual one."""
    client = make(fleet.url)
    for id_ in (1, 2):
        for rank in ({}, {"dp_rank": 0}, {"dp_rank": None}):
            for _ in range(8):  # without it the choice among equal workers is a random one
                chosen = client.select(token_ids=[1], affinity_target={"worker_id": id_, **rank})
                assert chosen["worker_id"] == id_
        booked = client.select_and_reserve(token_ids=[1], affinity_target={"worker_id": id_})
        assert booked["worker_id"] == id_
        client.free(client.booking_id(booked))
        with client.lease(token_ids=[1], affinity_target={"worker_id": id_}) as lease:
            assert lease.worker_id == id_
    for target in ({"worker_id": TOP}, {"worker_id": 1, "dp_rank": 7}):
        assert client.select(token_ids=[1], affinity_target=target)["worker_id"] in (1, 2)
    away = client.select(token_ids=[1], affinity_target={"worker_id": 1}, allowed_worker_ids=[2])
    assert away["worker_id"] == 2
    with pytest.raises(BadRequest, match="dp_rank"):
        client.select(token_ids=[1], affinity_target={"worker_id": 1, "dp_rank": -1})


def test_tokenize(make: MakeClient, fleet: Server, dialect: str) -> None:
    """A server without a tokenizer says so."""
    client = make(fleet.url, dialect=dialect)
    with pytest.raises(ServerError, match="No tokenizer is configured"):
        client.tokenize(request={"prompt": "a b"})


def test_explanations(make: MakeClient, fleet: Server, dialect: str) -> None:
    client = make(fleet.url, dialect=dialect)
    asked = client.explain(token_ids=[1, 2, 3, 4], allowed_worker_ids=[2], explain=True)
    assert asked["chosen"] == {"worker_id": 2, "dp_rank": 0, "rank_header": "global", "local_dp_rank": 0}
    assert {row["reason"] for row in asked["excluded"]} == {"not_allowed"}
    assert client.explain(token_ids=[1], allowed_worker_ids=[])["refusal"]
    booked = client.select_and_reserve(token_ids=[1, 2, 3, 4], explain=True)
    why = booked["explanation"]
    assert why["chosen"]["worker_id"] == booked["worker_id"]
    assert min(row["cost"] for row in why["candidates"]) > 0
    client.prefill_complete(client.booking_id(booked))
    client.free(client.booking_id(booked))
    (kept,) = client.decisions(model_name="default", limit=1)
    (brief,) = client.decisions(time=kept["time"], reasons=False)
    assert brief == kept | {"candidates": [], "excluded": [], "shadows": []}
    assert kept["reservation_id"] == client.booking_id(booked)
    assert kept["outcome"]["state"] == "freed"
    assert kept["outcome"]["ttft_seconds"] > 0
    assert [scope["policy"] for scope in client.policies()] == ["default"]
    assert client.fairness(by="program") == {"consumers": [], "total": 0, "classes": []}
    assert client.sessions(worker_id=2, limit=1) == {"sessions": [], "total": 0}
    assert client.kubernetes() == {"enabled": False}
    # The view is renewed once a second, and may be from before the workers were added.
    eventually(lambda: {row["worker_id"] for row in client.fleet()["rows"]} >= {1, 2})
    view = client.fleet()
    assert view["full"]
    assert not client.fleet(since=view["version"], model_name="default")["full"]
    assert client.doctor(model_name="default")["checks"]
    assert client.replicas()["enabled"] is False
    assert client.replica_status()["contract"] in ("1.3", "1.6")
    assert client.prefixes(limit=5)["truncated"] is False
    assert client.history(seconds=60)["interval_seconds"] == 5
    assert client.history(worker_id=1)["interval_seconds"] == 60


def test_policies(make: MakeClient, fleet: Server) -> None:
    client = make(fleet.url)
    changed = client.set_policies({"aggregated": "p", "instances": [{"name": "p", "type": "lmetric"}]})
    assert {scope["policy"] for scope in changed["policies"]} == {"p"}
    assert {scope["policy"] for scope in client.clear_policies()["policies"]} == {"default"}


def test_thresholds(make: MakeClient, fleet: Server) -> None:
    client = make(fleet.url)
    set_ = client.set_busy_threshold(model="default", active_prefill_tokens_threshold=TOP)
    assert set_["active_prefill_tokens_threshold"] == TOP
    assert client.busy_thresholds() == [set_]
    left = client.clear_busy_threshold("default", "active_prefill_tokens_threshold")
    assert left["active_prefill_tokens_threshold"] is None
    client.clear_busy_threshold("default")
    with pytest.raises(NotFound):
        client.clear_busy_threshold("nobody's")


def test_dump(make: MakeClient, fleet: Server) -> None:
    client = make(fleet.url)
    assert client.dump()["default:default"]["block_size"] == 4
    with client.dump_stream() as chunks:
        assert json.loads(b"".join(chunks)) == client.dump()


def test_replicas(make: MakeClient) -> None:
    server = Server("--replica-sync-port", str(free_port()))
    try:
        client = make(server.url)
        client.register_peer("tcp://127.0.0.1:9")
        client.slots.register_peer("tcp://127.0.0.1:10")
        assert client.peers() == client.slots.peers() == ["tcp://127.0.0.1:10", "tcp://127.0.0.1:9"]
        client.deregister_peer("tcp://127.0.0.1:9")
        client.slots.deregister_peer("tcp://127.0.0.1:10")
        assert client.peers() == []
        assert client.snapshot(limit=10)["bookings"] == []
    finally:
        server.stop()


def test_slots(make: MakeClient, fleet: Server, dialect: str) -> None:
    slots = make(fleet.url, dialect=dialect).slots
    slots.health()
    slots.register(worker_id=TOP, model_name="s", tenant_id="t", block_size=4, dp_start=0, dp_size=1)
    assert slots.workers(model_name="s", tenant="t")[0]["worker_id"] == TOP
    slots.add(
        model_name="s",
        tenant_id="t",
        request_id="r",
        worker_id=TOP,
        dp_rank=0,
        sequence_hashes=[-1],
        new_isl_tokens=4,
    )
    assert slots.loads(model_name="s")[0]["active_prefill_tokens"] == 4
    slots.prefill_complete("s", "r", tenant="t")
    assert slots.potential_loads("s", [2], new_isl_tokens=4, tenant="t")[0]["potential_decode_blocks"] == 2
    slots.free("s", "r", tenant="t")
    slots.unregister(worker_id=TOP, model_name="s", tenant_id="t")
    with pytest.raises(NotFound):
        slots.unregister(worker_id=TOP, model_name="s", tenant_id="t")


def test_conductor(make: MakeClient, fleet: Server) -> None:
    conductor = make(fleet.url).conductor
    conductor.health()
    publisher = {"type": "vLLM", "modelname": "c", "instance_id": "i", "block_size": 4, "dp_rank": 0}
    assert conductor.register(endpoint="tcp://127.0.0.1:9", **publisher)["instance_id"] == "i"
    assert (
        conductor.query(model="c", block_size=4, token_ids=[1, 2, 3, 4])["default"]["i"]["longest_matched"]
        == 0
    )
    assert conductor.query_by_hash(model="c", block_size=4, seq_hashes=[TOP])["default"]["i"]["DP"] == {
        "0": 0
    }
    assert conductor.diagnose(model="c", block_size=4, token_ids=[1, 2, 3, 4])["num_blocks"] == 1
    assert len(conductor.services()["services"]) == 1
    assert conductor.unregister(instance_id="i") == ["i|default|0"]
    with pytest.raises(NotFound):
        conductor.unregister(instance_id="i")


def test_errors(make: MakeClient, fleet: Server, dialect: str) -> None:
    client = make(fleet.url, dialect=dialect)
    with pytest.raises(BadRequest, match="block_hashes is required") as error:
        client.select()
    assert (error.value.status, error.value.kind) == (400, "bad_request")
    with pytest.raises(BadRequest):
        client.select(token_ids=["a"])
    with pytest.raises(Unavailable, match="no schedulable workers for model=z") as unavailable:
        client.select(model_name="z", token_ids=[1])
    assert (unavailable.value.status, unavailable.value.kind) == (503, "not_ready")
    elsewhere = make(fleet.url, prefix="/nowhere")
    with pytest.raises(SelectServiceError, match="route not found"):
        elsewhere.loads()


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, -1, 2**64])
def test_worker_ids_are_exact(make: MakeClient, fleet: Server, wrong: object) -> None:
    client = make(fleet.url)
    with pytest.raises((TypeError, ValueError)):
        client.delete_worker(wrong)
    with pytest.raises((TypeError, ValueError)):
        client.select(token_ids=[1], allowed_worker_ids=[wrong])


def test_all_routes_were_called() -> None:
    """Of this module's tests, taken together: what the description has is all there is."""
    text = DESCRIPTION.read_text()
    paths = re.split(r"\n  (/\S+):\n", text[text.index("\npaths:") : text.index("\ncomponents:")])
    described = {
        (method.upper(), path)
        for path, text in zip(paths[1::2], paths[2::2], strict=True)
        if not path.startswith("/v1.")
        for method in re.findall(r"^    (get|put|post|patch|delete):$", text, re.MULTILINE)
    }
    assert len(described) > 40
    missing = {
        (method, path)
        for method, path in described
        if not any(
            m == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), p.split("?")[0]) for m, p in made
        )
    }
    assert missing == set()
