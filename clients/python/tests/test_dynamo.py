"""SelectionService behaves as Dynamo's class does: recorded from ai-dynamo-runtime 1.6.1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from conftest import QUICK
from select_service_client import Client
from select_service_client.dynamo import SelectionService, SelectionServiceError
from server import Server, eventually, free_port

W = 2**63 + 5
PORT = free_port()
WORKER = {
    "worker_id": W,
    "tenant_id": "default",
    "endpoint": "ray://x",
    "block_size": 4,
    "max_num_batched_tokens": 100,
    "data_parallel_start_rank": 0,
    "data_parallel_size": 1,
    "kv_events_endpoints": {0: f"tcp://127.0.0.1:{PORT}"},
    "replay_endpoint": None,
    "total_kv_blocks": 100,
}
RECORD = {
    "worker_id": W,
    "model_name": "default",
    "routing_group": "default",
    "lifecycle": "schedulable",
    "endpoint": "ray://x",
    "kv_events_endpoint": None,
    "kv_events_endpoints": {0: f"tcp://127.0.0.1:{PORT}"},
    "replay_endpoint": None,
    "block_size": 4,
    "data_parallel_start_rank": 0,
    "data_parallel_size": 1,
    "max_num_batched_tokens": 100,
    "total_kv_blocks": 100,
    "stable_routing_id": None,
    "is_eagle": None,
    "taints": [],
    "topology_domains": {},
    "kv_transfer_domain": None,
    "kv_transfer_enforcement": None,
    "kv_transfer_preferred_weight": None,
}
PLACED = {
    "model_name": "default",
    "routing_group": "default",
    "worker_id": W,
    "dp_rank": 0,
    "endpoint": "ray://x",
}
CHOSEN = {
    **PLACED,
    "block_size": 4,
    "overlap": {"longest_matched": 0, "gpu": 0, "dp": {"0": 0}, "cpu": 0, "disk": 0},
    "effective_prefill_tokens": 5,
    "potential_decode_blocks": 2,
}
BOOKED = {**CHOSEN, "sequence_hashes": [-3803038269031200164], "isl_tokens": 5, "track_prefill_tokens": True}
TOKENS = [1, 2, 3, 4, 5]


@pytest.fixture
def service(fleet: Server) -> Iterator[SelectionService]:
    for worker in (1, 2):
        fleet.send("DELETE", f"/workers/{worker}")
    adapter = SelectionService(indexer_threads=2, url=fleet.url, retry=QUICK)
    yield adapter
    adapter.shutdown()
    eventually(fleet.is_idle)


Flow = Callable[[SelectionService], Coroutine[Any, Any, None]]


async def refused(awaitable: Callable[[], Any], kind: str, status: int, text: str) -> None:
    with pytest.raises(SelectionServiceError) as error:
        await awaitable()
    assert (error.value.kind, error.value.status_code, str(error.value)) == (kind, status, text)


def test_answers(service: SelectionService) -> None:
    async def main() -> None:
        assert await service.upsert_worker(WORKER) == RECORD
        assert service.list_workers() == [RECORD]
        assert service.list_workers(model_name="x", routing_group="y") == []
        assert service.ready() == {"ready": True, "schedulable_workers": 1, "workers": [RECORD]}
        assert await service.select({"selection_id": "a", "token_ids": TOKENS}) == {
            "selection_id": "a",
            **CHOSEN,
        }
        booked = await service.select_and_reserve(
            {
                "selection_id": "b",
                "reservation_id": "b",
                "token_ids": TOKENS,
                "allowed_worker_ids": [W],
                "expected_output_tokens": None,
            }
        )
        assert booked == {"selection_id": "b", **BOOKED}
        unnamed = await service.select_and_reserve({"token_ids": tuple(TOKENS)})
        assert len(unnamed["selection_id"]) == 36
        stated = {"worker_id": W, "dp_rank": 0, "sequence_hashes": [-5], "isl_tokens": 5}
        assert await service.create_reservation({"selection_id": "c", **stated}) == {
            "selection_id": "c",
            **PLACED,
        }
        assert await service.create_reservation({"selection_id": "a"}) == {"selection_id": "a", **PLACED}
        assert await service.prefill_complete("b") is None  # type: ignore[func-returns-value]
        assert service.add_output_block("b", decay_fraction=0.5) is None  # type: ignore[func-returns-value]
        eventually(lambda: service.loads()[0]["loads"][0]["potential_decode_blocks"] == 3)
        row = {"worker_id": W, "dp_rank": 0, "potential_prefill_tokens": 15, "potential_decode_blocks": 3}
        row["active_requests"] = 4
        assert service.loads() == [
            {
                "model_name": "default",
                "routing_group": "default",
                "loads": [row],
                "pending_count": 0,
                "pending_isl_tokens": 0,
            }
        ]
        row["potential_prefill_tokens"] = 19
        assert await service.potential_loads({"token_ids": [1, 2, 3, 4]}) == [row]
        scores = await service.overlap_scores({"token_ids": [1, 2, 3, 4]})
        assert set(scores) == {"block_size", "num_blocks", "workers", "shared_cache"}
        for id_ in ("a", "b", "c", unnamed["selection_id"]):
            assert await service.free_reservation(id_) is None  # type: ignore[func-returns-value]
        assert await service.delete_worker(W) == {**RECORD, "lifecycle": "unschedulable"}

    asyncio.run(main())


def test_errors(service: SelectionService) -> None:
    async def main() -> None:
        await service.upsert_worker(WORKER)
        await service.select_and_reserve({"selection_id": "b", "token_ids": TOKENS})
        text = "selection b is already reserved or being reserved"
        await refused(
            lambda: service.select_and_reserve({"selection_id": "b", "token_ids": TOKENS}),
            "conflict",
            409,
            text,
        )
        text = "no pending selection zz for model=default routing_group=default"
        text += " (expired, already used, or never selected)"
        await refused(lambda: service.create_reservation({"selection_id": "zz"}), "not_found", 404, text)
        text = "reservation nope not found"
        await refused(lambda: service.prefill_complete("nope"), "not_found", 404, text)
        await refused(lambda: service.free_reservation("nope"), "not_found", 404, text)
        text = "no schedulable workers for model=q routing_group=default"
        await refused(lambda: service.select({"model_name": "q", "token_ids": [1]}), "not_ready", 503, text)
        text = "pinned worker 1 is not in allowed worker set"
        pinned = {
            "token_ids": [1],
            "allowed_worker_ids": [W],
            "pinned_worker": {"worker_id": 1, "dp_rank": 0},
        }
        await refused(lambda: service.select(pinned), "scheduler", 400, text)
        text = "no endpoints available to route work"
        await refused(
            lambda: service.select({"token_ids": [1], "allowed_worker_ids": []}), "scheduler", 503, text
        )
        await refused(lambda: service.delete_worker(9), "not_found", 404, "worker 9 not found")
        malformed: list[Callable[[], Any]] = [
            lambda: service.create_reservation({"worker_id": "zz"}),
            lambda: service.select({"token_ids": "x"}),
            lambda: service.select({}),
            lambda: service.upsert_worker({"worker_id": 1.0}),
        ]
        for call in malformed:
            with pytest.raises(ValueError, match=r".+"):
                await call()
        with pytest.raises(ValueError, match=r"decay_fraction must be between 0\.0 and 1\.0"):
            service.add_output_block("b", decay_fraction=1.5)
        service.add_output_block("nope")  # silent: it may have been freed
        await service.free_reservation("b")
        service.add_output_block("b")
        service.shutdown()
        service.shutdown()
        text = "selection service is shutting down"
        await refused(lambda: service.select({"token_ids": [1]}), "not_ready", 503, text)

    asyncio.run(main())


def test_shared_service(service: SelectionService, fleet: Server) -> None:
    """Two objects with one service: each booking is counted once, and has one owner."""
    other = SelectionService(url=fleet.url, retry=QUICK)

    async def main() -> None:
        await asyncio.gather(service.upsert_worker(WORKER), other.upsert_worker(WORKER))
        booked = await service.select_and_reserve({"selection_id": "r", "token_ids": TOKENS})
        told = {name: booked[name] for name in ("worker_id", "dp_rank", "sequence_hashes", "isl_tokens")}
        assert await other.create_reservation({"selection_id": "r", **told}) == {
            "selection_id": "r",
            **PLACED,
        }
        for each in (service, other):
            await each.prefill_complete("r")
            each.add_output_block("r")
        eventually(lambda: other.loads()[0]["loads"][0]["potential_decode_blocks"] == 2)
        assert fleet.requests() == 1
        await asyncio.gather(service.free_reservation("r"), other.free_reservation("r"))
        assert fleet.is_idle()
        gone = await asyncio.gather(service.delete_worker(W), other.delete_worker(W))
        assert [row["lifecycle"] for row in gone] == ["unschedulable"] * 2

    asyncio.run(main())
    other.shutdown()


def test_cancelled(service: SelectionService, fleet: Server) -> None:
    """Cancelled bookings are undone, and cancelled frees are done."""

    async def main() -> None:
        await service.upsert_worker(WORKER)
        for turn in range(20):
            booking = service.select_and_reserve({"selection_id": f"r{turn}", "token_ids": TOKENS})
            await asyncio.sleep(0.0005 * turn)
            booking.cancel()
            await asyncio.wait([booking])
            if not booking.cancelled():
                free = service.free_reservation(f"r{turn}")
                free.cancel()
        await asyncio.to_thread(eventually, fleet.is_idle)

    asyncio.run(main())


def test_cancelled_when_booked(service: SelectionService, fleet: Server) -> None:
    """A booking is undone, too, whose answer is on its way to the caller when it is cancelled."""

    async def main() -> None:
        await service.upsert_worker(WORKER)
        stated = {"worker_id": W, "dp_rank": 0, "sequence_hashes": [-5], "isl_tokens": 5}
        bookings = [
            service.select_and_reserve({"selection_id": "a", "token_ids": TOKENS}),
            service.create_reservation({"selection_id": "b", **stated}),
        ]
        eventually(lambda: set(service._bookings) == {"a", "b"})  # the event loop stands still
        for booking in bookings:
            assert booking.cancel()
        await asyncio.wait(bookings)
        await asyncio.to_thread(eventually, fleet.is_idle)
        assert not service._bookings

    asyncio.run(main())


def test_nothing_is_awaited(service: SelectionService, fleet: Server) -> None:
    """Calls begin at once and keep their order, whether or not anybody waits for them."""

    async def main() -> None:
        calls = [
            service.upsert_worker(WORKER),
            service.delete_worker(W),
            service.upsert_worker(WORKER),
        ]
        await calls[-1]
        calls += [service.select_and_reserve({"selection_id": "r", "token_ids": TOKENS})]
        for _ in range(5):
            service.add_output_block("r")
        last = service.free_reservation("r")
        service.add_output_block("r")
        await last
        await asyncio.gather(*calls)

    asyncio.run(main())
    assert fleet.is_idle()


def test_lost_booking(service: SelectionService, fleet: Server) -> None:
    """What the service has lost can be freed once, without an error."""

    async def main() -> None:
        await service.upsert_worker(WORKER)
        await service.select_and_reserve({"selection_id": "r", "token_ids": TOKENS})
        fleet.send("DELETE", "/reservations/r")
        await refused(lambda: service.prefill_complete("r"), "not_found", 404, "reservation r not found")
        await service.free_reservation("r")
        await refused(lambda: service.free_reservation("r"), "not_found", 404, "reservation r not found")

    asyncio.run(main())


def test_restarted_service() -> None:
    """Workers that the service has lost are registered again, by as many calls as want them at once."""
    server = Server()
    service = SelectionService(url=server.url, retry=QUICK)

    async def main() -> None:
        await service.upsert_worker(WORKER)
        await service.upsert_worker({**WORKER, "worker_id": 7})
        await service.delete_worker(7)
        await asyncio.to_thread(server.restart)
        calls = [service.select_and_reserve({"token_ids": TOKENS}) for _ in range(10)]
        assert {booked["worker_id"] for booked in await asyncio.gather(*calls)} == {W}
        assert [row["worker_id"] for row in service.list_workers()] == [W]

    try:
        asyncio.run(main())
        service.shutdown()
        assert server.is_idle()
    finally:
        server.stop()


def test_client_sees_the_same(service: SelectionService, fleet: Server) -> None:
    with Client(fleet.url) as client:
        asyncio.run(_upsert(service))
        assert client.list_workers()[0]["kv_events_endpoints"] == {"0": f"tcp://127.0.0.1:{PORT}"}


async def _upsert(service: SelectionService) -> None:
    await service.upsert_worker(WORKER)
