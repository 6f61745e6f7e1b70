"""The methods about workers, replicas and the index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from select_service_client._core import Core
from select_service_client._errors import NotFound, Unavailable, error_of
from select_service_client._lanes import Lanes, Ticket
from select_service_client._plan import Exchange, Plan, T, Wait
from select_service_client._routes import readiness

from ._runner import Runner, checked, text, texts, worker_number

_log = logging.getLogger("select_service_client.dynamo")

# What a record is filed under, which a patch leaves alone.
_IDENTITY = ("worker_id", "model_name", "routing_group")


class Catalog(Runner):
    """Knows what this process registered, and registers it again where it is lost."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        # Calls about one worker are made in order, too.
        self._order = Lanes()
        # Guarded by _lock.
        self._workers: dict[int, dict[str, Any]] = {}
        self._restoring: Future[None] | None = None

    def _after_fork(self) -> None:
        super()._after_fork()
        self._order, self._restoring = Lanes(), None

    def upsert_worker(self, worker: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Registers a worker and returns its record."""
        record = checked(lambda: self._core.names(worker))
        if "worker_id" not in record:
            raise ValueError("missing field `worker_id`")
        return self._worker_call(record["worker_id"], lambda: self._upsert(record))

    def patch_worker(self, worker_id: int, patch: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Changes members of a worker's record, and returns it; None leaves one as it is."""
        worker = worker_number(worker_id)
        changes = checked(lambda: self._core.names(patch))
        return self._worker_call(worker, lambda: self._patch(worker, changes))

    def delete_worker(self, worker_id: int) -> asyncio.Future[dict[str, Any]]:
        """Removes a worker and returns its last record."""
        worker = worker_number(worker_id)
        return self._worker_call(worker, lambda: self._delete(worker))

    def list_workers(
        self, *, model_name: str | None = None, routing_group: str | None = None
    ) -> list[dict[str, Any]]:
        """Lists records."""
        query = texts(model_name=model_name, routing_group=routing_group)
        rows = self._now(self._core.call(self._core.request("GET", "/workers", query=query)))
        return [_record(row) for row in rows]

    def ready(self) -> dict[str, Any]:
        """Whether a worker can be selected."""
        reply = self._now(readiness(self._core))
        return {**reply, "workers": [_record(row) for row in reply["workers"]]}

    def list_replica_peers(self) -> list[str]:
        """The endpoints of the replicas that the service shares bookings with."""
        peers: list[str] = self._now(self._core.call(self._core.request("GET", "/replica_sync/peers")))
        return peers

    def register_replica_peer(self, endpoint: str) -> asyncio.Future[bool]:
        """Adds a replica to the service's; says whether it was none before."""
        peer = text(endpoint, "endpoint")
        return self._start_kept(self._change_peers("register_peer", peer, changed=201, unchanged=200))

    def deregister_replica_peer(self, endpoint: str) -> asyncio.Future[bool]:
        """Takes a replica from the service's; says whether it was one."""
        peer = text(endpoint, "endpoint")
        return self._start_kept(self._change_peers("deregister_peer", peer, changed=200, unchanged=404))

    def indexer_snapshot(self) -> asyncio.Future[dict[str, Any]]:
        """The index in the form of /dump."""
        return self._start(self._core.call(self._core.request("GET", "/dump")))

    # Plans

    def _upsert(self, record: dict[str, Any]) -> Plan[dict[str, Any]]:
        reply = yield from self._core.call(self._core.request("POST", "/workers", record))
        with self._lock:
            self._workers[record["worker_id"]] = record
        return _record(reply)

    def _patch(self, worker: int, changes: dict[str, Any]) -> Plan[dict[str, Any]]:
        call = self._core.request("PATCH", f"/workers/{worker}", changes)
        try:
            reply = yield from self._core.call(call)
        except NotFound:
            with self._lock:
                known = self._workers.get(worker)
            if known is None:
                raise
            yield from self._upsert(known)  # a restarted service has lost it
            reply = yield from self._core.call(call)
        given = {
            name: value for name, value in changes.items() if value is not None and name not in _IDENTITY
        }
        with self._lock:
            if worker in self._workers:
                self._workers[worker] = {**self._workers[worker], **given}
        return _record(reply)

    def _delete(self, worker: int) -> Plan[dict[str, Any]]:
        with self._lock:
            known = self._workers.pop(worker, None)
        self._drop_bookings(worker)
        try:
            reply = yield from self._core.call(self._core.request("DELETE", f"/workers/{worker}"))
        except NotFound:
            if known is None:
                raise
            return {**_record(known), "lifecycle": "unschedulable"}  # another process was first
        return _record(reply)

    def _drop_bookings(self, worker: int) -> None:
        """Forgets the bookings of a worker, whose load goes with it."""
        raise NotImplementedError

    def _change_peers(self, action: str, endpoint: str, *, changed: int, unchanged: int) -> Plan[bool]:
        """Changes the membership; changed and unchanged are the statuses that tell."""
        request = self._core.request("POST", f"/replica_sync/{action}", {"endpoint": endpoint})
        exchange = Exchange(self._core.options.retry, request, safe=True)
        answer = yield from exchange.run()
        if answer.status not in (changed, unchanged):
            raise error_of(answer.status, answer.content)
        return answer.status == changed or exchange.lost  # by the attempt without an answer

    def _restored(self, attempt: Callable[[Ticket | None], Plan[T]], ticket: Ticket | None = None) -> Plan[T]:
        """Tries once more after the workers were registered with a service that lost them."""
        try:
            return (yield from attempt(ticket))
        except (NotFound, Unavailable):
            if not (yield from self._restore()):
                raise
        return (yield from attempt(None))

    def _restore(self) -> Plan[bool]:
        with self._lock:
            running = self._restoring
            if running is None:
                mine = self._restoring = Future()
        if running is not None:
            yield Wait(running)
            return True
        try:
            listed = yield from self._core.call(self._core.request("GET", "/workers"))
            present = {row["worker_id"] for row in listed}
            with self._lock:
                missing = [id_ for id_ in self._workers if id_ not in present]
            for worker in missing:
                yield from self._register_again(worker)
            return bool(missing)
        finally:
            with self._lock:
                self._restoring = None
            mine.set_result(None)

    def _register_again(self, worker: int) -> Plan[None]:
        # In its turn, and as the record is then: it may be deleted or changed meanwhile.
        ticket = self._order.enter(str(worker))
        try:
            yield Wait(ticket.turn)
            with self._lock:
                record = self._workers.get(worker)
            if record is not None:
                _log.warning("the service has lost worker %d: registered again", worker)
                yield from self._core.call(self._core.request("POST", "/workers", record))
        finally:
            self._order.leave(ticket)

    def _worker_call(self, worker: int, plan: Callable[[], Plan[T]]) -> asyncio.Future[T]:
        asyncio.get_running_loop()
        ticket = self._order.enter(str(worker))

        def ordered() -> Plan[T]:
            yield Wait(ticket.turn)
            return (yield from plan())

        try:
            call = self._background(ordered())
        except BaseException:
            self._order.leave(ticket)
            raise
        # Not with the future that is returned: cancelled, it ends before the call.
        call.add_done_callback(lambda _: self._order.leave(ticket))
        return asyncio.shield(asyncio.wrap_future(call))


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's record as Dynamo's class has it: ranks are integers."""
    result = dict(row)
    for name in ("kv_events_endpoints", "replay_endpoints"):
        if result.get(name):
            result[name] = {int(rank): endpoint for rank, endpoint in result[name].items()}
    return result
