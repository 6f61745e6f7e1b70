"""SelectionService with the methods, answers and errors of Dynamo's class."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any

import httpx

from select_service_client import _exit, _json
from select_service_client._core import Core, Options
from select_service_client._drive import run
from select_service_client._errors import NotFound, SelectServiceError, Unavailable
from select_service_client._lanes import Lanes, Ticket
from select_service_client._lease import LEASE_SECONDS, keep_alive
from select_service_client._plan import Plan, Retry, T, Wait
from select_service_client._routes import readiness, split_headers

from ._errors import SelectionServiceError, translate
from ._handover import Handover

URL = "SELECT_SERVICE_DYNAMO_URL"

# How long a booking is renewed that nobody frees, in seconds: Ray's own limit.
LONGEST = 3600.0

# How many bookings of others are remembered, oldest out first.
MAX_FOREIGN = 65_536

# What install() sets.
defaults: dict[str, Any] = {}

_log = logging.getLogger("select_service_client.dynamo")


class SelectionService:
    """Dynamo's class in front of a service that may be shared.

    Several processes, such as Ray's ingress replicas, may use one service, or
    replicas of it, or one each. Whoever books first owns the booking: the others'
    create_reservation finds it, and what they tell of it is left to the owner.

    Bookings have leases, which this object renews: what it holds is freed when it
    is shut down or Python ends, and ended by the service if the process dies.
    Workers that a restarted service has forgotten are registered again.

    Dynamo's own keywords are for its service inside the process. Here they are
    the server's flags, and ignored.
    """

    def __init__(
        self,
        *,
        indexer_threads: int = 4,
        indexer_peers: list[str] | None = None,
        replica_sync_port: int | None = None,
        replica_sync_peers: list[str] | None = None,
        selection_cache: Any = None,
        session_affinity_ttl_secs: float | None = None,
        url: str | None = None,
        prefix: str | None = None,
        lease_seconds: float | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
    ) -> None:
        given = {
            "url": url,
            "prefix": prefix,
            "lease_seconds": lease_seconds,
            "retry": retry,
            "timeout": timeout,
        }
        settings = {**defaults, **{name: value for name, value in given.items() if value is not None}}
        settings.setdefault("url", os.environ.get(URL))
        if not settings["url"]:
            raise ValueError(f"SelectionService needs the service's URL: set {URL}, or call install(url)")
        theirs = (
            indexer_peers,
            replica_sync_port,
            replica_sync_peers,
            selection_cache,
            session_affinity_ttl_secs,
        )
        if any(value is not None for value in theirs):
            _log.warning("settings of the service are flags of the server, and ignored here")
        self._lease: float = settings.pop("lease_seconds", LEASE_SECONDS)
        self._core = Core(Options(dialect="1.6", **settings))
        self._http = httpx.Client(**self._core.options.http())
        # Calls about one worker are made in order, too.
        self._order = Lanes()
        # Guards all below.
        self._lock = threading.Lock()
        self._workers: dict[int, dict[str, Any]] = {}
        self._bookings: dict[str, tuple[int, Future[None]]] = {}  # worker, renewals
        self._foreign: OrderedDict[str, None] = OrderedDict()
        self._restoring: Future[None] | None = None

    # The catalog

    def upsert_worker(self, worker: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
        """Registers a worker and returns its record."""
        record = self._checked(lambda: self._core.names(worker))
        if "worker_id" not in record:
            raise ValueError("missing field `worker_id`")
        return self._worker_call(record["worker_id"], lambda: self._upsert(record))

    def delete_worker(self, worker_id: int) -> Awaitable[dict[str, Any]]:
        """Removes a worker and returns its last record."""
        worker = self._checked(lambda: _json.worker_id(worker_id))
        return self._worker_call(worker, lambda: self._delete(worker))

    def list_workers(
        self, *, model_name: str | None = None, routing_group: str | None = None
    ) -> list[dict[str, Any]]:
        """Lists records."""
        query = {"model_name": model_name, "routing_group": routing_group}
        rows = self._now(self._core.call(self._core.request("GET", "/workers", query=query)))
        return [_record(row) for row in rows]

    def ready(self) -> dict[str, Any]:
        """Whether a worker can be selected."""
        reply = self._now(readiness(self._core))
        return {**reply, "workers": [_record(row) for row in reply["workers"]]}

    # Selection

    def overlap_scores(self, request: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
        """How much of a prompt every rank has cached."""
        return self._ask("/overlap_scores", request)

    def select(self, request: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
        """Chooses a worker without booking."""
        return self._ask("/select", request)

    def select_and_reserve(self, request: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
        """Chooses a worker and books its load."""
        return self._book("/select_and_reserve", self._checked(lambda: self._core.with_id(request)))

    def create_reservation(self, request: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
        """Books load on a worker; what another process has booked already is its own."""
        body = self._checked(lambda: self._core.names(request))
        if body.get("selection_id") is None:
            raise ValueError("missing field `selection_id`")
        return self._book("/reservations", {"if_exists": "return", **body})

    def loads(
        self, *, model_name: str | None = None, routing_group: str | None = None
    ) -> list[dict[str, Any]]:
        """The active load."""
        query = {"model_name": model_name, "routing_group": routing_group}
        rows: list[dict[str, Any]] = self._now(
            self._core.call(self._core.request("GET", "/loads", query=query))
        )
        return rows

    def potential_loads(self, request: Mapping[str, Any]) -> Awaitable[list[dict[str, Any]]]:
        """The load that every rank would have with a prompt."""
        return self._ask("/potential_loads", request)

    # The life of a booking

    def prefill_complete(self, selection_id: str) -> Awaitable[None]:
        """Ends the prefill load."""
        ticket = self._core.lanes.enter(selection_id)
        return self._start(self._if_own(selection_id, ticket, self._core.prefill_complete), ticket, keep=True)

    def add_output_block(self, selection_id: str, *, decay_fraction: float | None = None) -> None:
        """Adds a generated block, in its turn and in the background."""
        if decay_fraction is not None and not 0 <= decay_fraction <= 1:
            raise ValueError("decay_fraction must be between 0.0 and 1.0")
        ticket = self._core.lanes.enter_late(selection_id)
        if ticket is not None:
            plan = self._if_own(
                selection_id, ticket, lambda id_, place: self._core.output_block(id_, decay_fraction, place)
            )
            self._background(plan, ticket).add_done_callback(_forget)

    def free_reservation(self, selection_id: str) -> Awaitable[None]:
        """Ends a booking; one of this object that the service has lost is no error."""
        ticket = self._core.lanes.enter(selection_id)
        self._core.lanes.close(selection_id)
        return self._start(self._free(selection_id, ticket), ticket, keep=True)

    def shutdown(self) -> None:
        """Frees what is booked and ends the connections; the service goes on."""
        with self._lock:
            bookings, self._bookings = self._bookings, {}
        for _, keeper in bookings.values():
            keeper.cancel()
        _exit.close(self._core)
        self._http.close()

    # Plans

    def _upsert(self, record: dict[str, Any]) -> Plan[dict[str, Any]]:
        reply = yield from self._core.call(self._core.request("POST", "/workers", record))
        with self._lock:
            self._workers[record["worker_id"]] = record
        return _record(reply)

    def _delete(self, worker: int) -> Plan[dict[str, Any]]:
        with self._lock:
            known = self._workers.pop(worker, None)
            gone = [id_ for id_, (on, _) in self._bookings.items() if on == worker]
            keepers = [self._bookings.pop(id_)[1] for id_ in gone]
        for keeper in keepers:  # their load goes with the worker
            keeper.cancel()
        for id_ in gone:
            self._core.release(id_)
        try:
            reply = yield from self._core.call(self._core.request("DELETE", f"/workers/{worker}"))
        except NotFound:
            if known is None:
                raise
            return {**_record(known), "lifecycle": "unschedulable"}  # another process was first
        return _record(reply)

    def _book(self, path: str, request: dict[str, Any]) -> Awaitable[dict[str, Any]]:
        body, headers = split_headers(request)
        body["lease_seconds"] = self._lease
        booking = body["selection_id"]
        ticket = self._core.lanes.enter(booking)
        handover = Handover(lambda: self._withdraw(booking))

        def attempt(ticket: Ticket | None) -> Plan[dict[str, Any]]:
            reply, own = yield from self._core.book(path, body, headers, ticket=ticket, keep=True)
            if path == "/select_and_reserve" and "overlap" not in reply:
                # The first answer is lost and another replica knows the booking only.
                yield from self._core.free(booking)
                reply, own = yield from self._core.book(path, body, headers, keep=True)
            if own or path == "/select_and_reserve":
                self._own(booking, reply["worker_id"])
                handover.made()
            else:
                self._core.release(booking)
                self._remember_foreign(booking)
            reply.pop("lease_seconds", None)  # the service's own addition
            return dict(reply)

        future = self._start(self._restored(attempt, ticket), ticket)
        future.add_done_callback(lambda done: handover.given_up() if done.cancelled() else None)
        return future

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
                missing = [row for id_, row in self._workers.items() if id_ not in present]
            for record in missing:
                _log.warning("the service has lost worker %d: registered again", record["worker_id"])
                yield from self._core.call(self._core.request("POST", "/workers", record))
            return bool(missing)
        finally:
            with self._lock:
                self._restoring = None
            mine.set_result(None)

    def _if_own(self, booking: str, ticket: Ticket, call: Callable[[str, Ticket], Plan[Any]]) -> Plan[None]:
        """Makes a call about a booking, in its turn, unless it is another process's."""
        if not ticket.turn.done():
            yield Wait(ticket.turn)
        with self._lock:
            foreign = booking in self._foreign
        if foreign:
            self._core.lanes.leave(ticket)
        else:
            yield from call(booking, ticket)

    def _free(self, booking: str, ticket: Ticket) -> Plan[None]:
        try:
            yield from self._if_own(booking, ticket, self._core.free)
        except NotFound:
            with self._lock:
                known = booking in self._bookings
            if not known:
                raise
        finally:
            with self._lock:
                self._foreign.pop(booking, None)
                _, keeper = self._bookings.pop(booking, (0, None))
            if keeper is not None:
                keeper.cancel()

    def _own(self, booking: str, worker: int) -> None:
        keeper = keep_alive(self._core, booking, self._lease, LONGEST)
        with self._lock:
            self._foreign.pop(booking, None)
            self._bookings[booking] = (worker, keeper)

    def _withdraw(self, booking: str) -> None:
        """Frees an own booking whose caller does not know that it was made."""
        with self._lock:
            _, keeper = self._bookings.pop(booking, (0, None))
        if keeper is not None:
            keeper.cancel()
            self._core.abandon(booking)

    def _remember_foreign(self, booking: str) -> None:
        with self._lock:
            if booking not in self._bookings:
                self._foreign[booking] = None
                if len(self._foreign) > MAX_FOREIGN:
                    self._foreign.popitem(last=False)

    # Running them

    def _ask(self, path: str, request: Mapping[str, Any]) -> Awaitable[Any]:
        body, headers = split_headers(self._checked(lambda: self._core.names(request)))
        call = self._checked(lambda: self._core.request("POST", path, body, headers=headers))
        return self._start(self._restored(lambda _: self._core.call(call)))

    def _worker_call(self, worker: int, plan: Callable[[], Plan[T]]) -> Awaitable[T]:
        ticket = self._order.enter(str(worker))

        def ordered() -> Plan[T]:
            if not ticket.turn.done():
                yield Wait(ticket.turn)
            return (yield from plan())

        future = self._start(ordered(), keep=True)
        future.add_done_callback(lambda _: self._order.leave(ticket))
        return future

    def _start(self, plan: Plan[T], ticket: Ticket | None = None, *, keep: bool = False) -> asyncio.Future[T]:
        """Runs a plan at once, whether or not it is awaited; keep: even if cancelled."""
        future: asyncio.Future[T] = asyncio.wrap_future(self._background(plan, ticket))
        return asyncio.shield(future) if keep else future

    def _background(self, plan: Plan[T], ticket: Ticket | None) -> Future[T]:
        try:
            return self._core.submit(_translated(plan), ticket)
        except RuntimeError:
            raise SelectionServiceError("selection service is shutting down", "not_ready", 503) from None

    def _now(self, plan: Plan[T]) -> T:
        if self._core.background.closed:
            plan.close()
            raise SelectionServiceError("selection service is shutting down", "not_ready", 503)
        return run(_translated(plan), self._http)

    @staticmethod
    def _checked(convert: Callable[[], T]) -> T:
        try:
            return convert()
        except (TypeError, ValueError) as error:
            raise translate(error) from None


def _translated(plan: Plan[T]) -> Plan[T]:
    try:
        return (yield from plan)
    except SelectServiceError as error:
        raise translate(error) from error


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's record as Dynamo's class has it: ranks are integers."""
    result = dict(row)
    for name in ("kv_events_endpoints", "replay_endpoints"):
        if result.get(name):
            result[name] = {int(rank): endpoint for rank, endpoint in result[name].items()}
    return result


def _forget(future: Future[Any]) -> None:
    """Reads the outcome of what nobody waits for."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("an output block was not counted: %s", error)
