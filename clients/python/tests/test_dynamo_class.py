"""The adapter has the methods and takes the arguments of Dynamo's class."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import QUICK
from select_service_client.dynamo import SelectionService, SelectionServiceError
from server import Server, free_port

# The text signatures of ai-dynamo-runtime 1.6.1, which test/others/peers holds against it.
SIGNATURES: dict[str, str] = json.loads((Path(__file__).parent / "dynamo_1_6_1.json").read_text())

# It is done by the server as it starts; see docs/start/ray.md.
MISSING = {"recover_indexer_from_peers"}

TOKENS = [1, 2, 3, 4, 5]


def text_signature(method: Any) -> str:
    """The signature as an extension module states it: no types, $self."""
    signature = inspect.signature(method)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    arguments = str(inspect.Signature(plain))[1:-1]
    return f"($self, {arguments})" if arguments else "($self)"


def test_methods() -> None:
    """The same names with the same parameters; what is missing is told in docs/start/ray.md."""
    ours = {name for name in dir(SelectionService) if not name.startswith("_")}
    theirs = set(SIGNATURES) - {"__init__"}
    assert ours == theirs - MISSING
    for name in ours:
        assert text_signature(getattr(SelectionService, name)) == SIGNATURES[name], name
    assert text_signature(SelectionService).startswith("($self, " + SIGNATURES["__init__"][1:-1])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda s: s.delete_worker("7"),
            TypeError,
            "argument 'worker_id': 'str' object cannot be interpreted as an integer",
        ),
        (
            lambda s: s.patch_worker(1.0, {}),
            TypeError,
            "argument 'worker_id': 'float' object cannot be interpreted as an integer",
        ),
        (lambda s: s.delete_worker(-1), OverflowError, "can't convert negative int to unsigned"),
        (lambda s: s.patch_worker(2**64, {}), OverflowError, "int too big to convert"),
        (
            lambda s: s.add_output_block(5),
            TypeError,
            "argument 'selection_id': 'int' object cannot be converted to 'PyString'",
        ),
        (
            lambda s: s.add_output_block("a", decay_fraction="0.5"),
            TypeError,
            "argument 'decay_fraction': must be real number, not str",
        ),
        (
            lambda s: s.add_output_block("a", decay_fraction=float("nan")),
            ValueError,
            "decay_fraction must be between 0.0 and 1.0",
        ),
        (
            lambda s: s.prefill_complete(b"a"),
            TypeError,
            "argument 'selection_id': 'bytes' object cannot be converted to 'PyString'",
        ),
        (
            lambda s: s.free_reservation(None),
            TypeError,
            "argument 'selection_id': 'NoneType' object cannot be converted to 'PyString'",
        ),
        (
            lambda s: s.list_workers(model_name=4),
            TypeError,
            "argument 'model_name': 'int' object cannot be converted to 'PyString'",
        ),
        (
            lambda s: s.loads(routing_group=4),
            TypeError,
            "argument 'routing_group': 'int' object cannot be converted to 'PyString'",
        ),
        (
            lambda s: s.register_replica_peer(4),
            TypeError,
            "argument 'endpoint': 'int' object cannot be converted to 'PyString'",
        ),
    ],
)
def test_arguments(
    service: SelectionService, call: Callable[[Any], Any], error: type[Exception], text: str
) -> None:
    """Recorded from 1.6.1: what is refused at once, without an event loop, and how."""
    with pytest.raises(error) as refusal:
        call(service)
    assert (refusal.type, str(refusal.value)) == (error, text)


def test_no_event_loop(service: SelectionService, fleet: Server) -> None:
    """Without a loop for the future nothing is done, and what comes later is not held up."""
    stated = {"selection_id": "b", "worker_id": 1, "dp_rank": 0, "token_ids": TOKENS}
    calls: list[Callable[[], Any]] = [
        lambda: service.select_and_reserve({"selection_id": "a", "token_ids": TOKENS}),
        lambda: service.create_reservation(stated),
        lambda: service.select({"token_ids": TOKENS}),
        lambda: service.upsert_worker({"worker_id": 1, "endpoint": "http://changed", "block_size": 4}),
        lambda: service.patch_worker(1, {"endpoint": "http://changed"}),
        lambda: service.delete_worker(1),
        lambda: service.prefill_complete("a"),
        lambda: service.free_reservation("a"),
        lambda: service.indexer_snapshot(),
        lambda: service.register_replica_peer("tcp://127.0.0.1:1"),
        lambda: service.shutdown_async(),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="no running event loop"):
            call()

    async def main() -> None:
        # Behind whatever those have begun.
        await service.patch_worker(2, {"stable_routing_id": "two"})
        await service.select_and_reserve({"selection_id": "a", "token_ids": TOKENS})
        assert fleet.requests() == 1
        await service.free_reservation("a")
        await service.patch_worker(1, {"stable_routing_id": "one"})
        assert [row["endpoint"] for row in service.list_workers()] == ["http://engine-1", "http://engine-2"]

    asyncio.run(main())
    assert service._core.lanes._lanes == {}
    assert service._order._lanes == {}


def test_patch(service: SelectionService) -> None:
    """A patch is answered with the whole record; identities and None change nothing."""

    async def main() -> None:
        record = await service.upsert_worker({"worker_id": 3, "endpoint": "http://a", "block_size": 4})
        patch = {
            "worker_id": 9,
            "model_name": "other",
            "endpoint": None,
            "kv_events_endpoints": {0: f"tcp://127.0.0.1:{free_port()}"},
        }
        expected = {**record, "kv_events_endpoints": patch["kv_events_endpoints"]}
        assert await service.patch_worker(3, patch) == expected
        assert await service.patch_worker(3, {}) == expected
        with pytest.raises(SelectionServiceError, match="worker 8 not found"):
            await service.patch_worker(8, {"endpoint": "http://b"})
        malformed: list[Any] = [None, {"block_size": "x"}]
        for bad in malformed:
            with pytest.raises(ValueError, match=r".+"):
                await service.patch_worker(3, bad)
        await service.delete_worker(3)

    asyncio.run(main())


def test_patch_is_restored() -> None:
    """What was patched is registered again with a restarted service, and can be patched there."""
    server = Server()
    service = SelectionService(url=server.url, retry=QUICK)

    async def main() -> None:
        await service.upsert_worker({"worker_id": 1, "endpoint": "http://a", "block_size": 4})
        await service.patch_worker(1, {"endpoint": "http://b"})
        await asyncio.to_thread(server.restart)
        assert (await service.select({"token_ids": TOKENS}))["endpoint"] == "http://b"
        await asyncio.to_thread(server.restart)
        record = await service.patch_worker(1, {"stable_routing_id": "one"})
        assert (record["endpoint"], record["stable_routing_id"]) == ("http://b", "one")

    try:
        asyncio.run(main())
        service.shutdown()
    finally:
        server.stop()


def test_replica_peers() -> None:
    """Membership, and whether a call changed it."""
    server = Server("--replica-sync-port", str(free_port()))
    service = SelectionService(url=server.url, retry=QUICK)
    peer = f"tcp://127.0.0.1:{free_port()}"

    async def main() -> None:
        assert service.list_replica_peers() == []
        assert [await service.register_replica_peer(peer) for _ in range(2)] == [True, False]
        assert service.list_replica_peers() == [peer]
        assert [await service.deregister_replica_peer(peer) for _ in range(2)] == [True, False]
        assert service.list_replica_peers() == []
        with pytest.raises(ValueError, match="missing scheme"):
            await service.register_replica_peer("foo")

    try:
        asyncio.run(main())
        service.shutdown()
    finally:
        server.stop()


def test_replica_peers_off(service: SelectionService) -> None:
    async def main() -> None:
        assert service.list_replica_peers() == []
        for call in (service.register_replica_peer, service.deregister_replica_peer):
            with pytest.raises(SelectionServiceError, match="replica sync is disabled"):
                await call("tcp://127.0.0.1:1")

    asyncio.run(main())


def test_indexer_snapshot(service: SelectionService, fleet: Server) -> None:
    async def main() -> None:
        assert await service.indexer_snapshot() == {"default:default": {"block_size": 4, "events": []}}

    asyncio.run(main())


def test_shutdown_async(service: SelectionService, fleet: Server) -> None:
    """It frees what is booked while the loop runs on, once more does nothing, and no call comes after."""

    async def main() -> None:
        await service.select_and_reserve({"selection_id": "a", "token_ids": TOKENS})
        abandoned = service.shutdown_async()
        abandoned.cancel()
        await service.shutdown_async()
        assert fleet.is_idle()
        with pytest.raises(SelectionServiceError, match="selection service is shutting down"):
            await service.patch_worker(1, {})

    asyncio.run(main())
