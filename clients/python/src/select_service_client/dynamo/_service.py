"""SelectionService with the methods, answers and errors of Dynamo's class."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from select_service_client import _exit
from select_service_client._core import Core, Options
from select_service_client._errors import NotFound
from select_service_client._lanes import Ticket
from select_service_client._lease import LEASE_SECONDS, keep_alive
from select_service_client._plan import Plan, Retry
from select_service_client._routes import split_headers

from ._catalog import Catalog
from ._handover import Handed, Handover
from ._runner import checked, fraction, text, texts
from ._settings import URL, defaults

# How long a booking is renewed that nobody frees, in seconds: Ray's own limit.
LONGEST = 3600.0

# How many bookings of others are remembered, oldest out first.
MAX_FOREIGN = 65_536

_log = logging.getLogger("select_service_client.dynamo")


class SelectionService(Catalog):
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
        super().__init__(Core(Options(dialect="1.6", **settings)))
        # Guarded by _lock.
        self._bookings: dict[str, tuple[int, Future[None]]] = {}  # worker, renewals
        self._foreign: OrderedDict[str, None] = OrderedDict()

    def _after_fork(self) -> None:
        super()._after_fork()
        self._bookings = {}

    # Selection

    def overlap_scores(self, request: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """How much of a prompt every rank has cached."""
        return self._ask("/overlap_scores", request)

    def select(self, request: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Chooses a worker without booking."""
        return self._ask("/select", request)

    def select_and_reserve(self, request: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Chooses a worker and books its load."""
        return self._book("/select_and_reserve", checked(lambda: self._core.with_id(request)))

    def create_reservation(self, request: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Books load on a worker; what another process has booked already is its own."""
        body = checked(lambda: self._core.names(request))
        if body.get("selection_id") is None:
            raise ValueError("missing field `selection_id`")
        if not isinstance(body["selection_id"], str):
            raise ValueError("invalid type: selection_id is no string")
        return self._book("/reservations", {"if_exists": "return", **body})

    def loads(
        self, *, model_name: str | None = None, routing_group: str | None = None
    ) -> list[dict[str, Any]]:
        """The active load."""
        query = texts(model_name=model_name, routing_group=routing_group)
        rows: list[dict[str, Any]] = self._now(
            self._core.call(self._core.request("GET", "/loads", query=query))
        )
        return rows

    def potential_loads(self, request: Mapping[str, Any]) -> asyncio.Future[list[dict[str, Any]]]:
        """The load that every rank would have with a prompt."""
        return self._ask("/potential_loads", request)

    # The life of a booking

    def prefill_complete(self, selection_id: str) -> asyncio.Future[None]:
        """Ends the prefill load."""
        booking = text(selection_id, "selection_id")
        asyncio.get_running_loop()
        ticket = self._core.lanes.enter(booking, brief=True)
        return self._start_kept(self._if_own(booking, ticket, self._core.prefill_complete), ticket)

    def add_output_block(self, selection_id: str, *, decay_fraction: float | None = None) -> None:
        """Adds a generated block, in its turn and in the background."""
        booking = text(selection_id, "selection_id")
        decay = None if decay_fraction is None else fraction(decay_fraction, "decay_fraction")
        ticket = self._core.lanes.enter_late(booking)
        if ticket is not None:
            plan = self._if_own(
                booking, ticket, lambda id_, place: self._core.output_block(id_, decay, place)
            )
            self._background(plan, ticket).add_done_callback(_forget)

    def free_reservation(self, selection_id: str) -> asyncio.Future[None]:
        """Ends a booking; one of this object that the service has lost is no error."""
        booking = text(selection_id, "selection_id")
        asyncio.get_running_loop()
        ticket = self._core.lanes.enter_last(booking)
        return self._start_kept(self._free(booking, ticket), ticket)

    def shutdown(self) -> None:
        """Frees what is booked and ends the connections; the service goes on."""
        with self._lock:
            bookings, self._bookings = self._bookings, {}
        for _, keeper in bookings.values():
            keeper.cancel()
        try:
            _exit.close(self._core)
        finally:
            self._core.http.close()

    def shutdown_async(self) -> asyncio.Future[None]:
        """The same, without blocking the event loop."""
        return asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.shutdown))

    # Plans

    def _ask(self, path: str, request: Mapping[str, Any]) -> asyncio.Future[Any]:
        body, headers = split_headers(checked(lambda: self._core.names(request)))
        call = checked(lambda: self._core.request("POST", path, body, headers=headers))
        return self._start(self._restored(lambda _: self._core.call(call)))

    def _book(self, path: str, request: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        body, headers = split_headers(request)
        body["lease_seconds"] = self._lease
        loop = asyncio.get_running_loop()
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
                self._remember_foreign(booking)
            reply.pop("lease_seconds", None)  # the service's own addition
            return dict(reply)

        call = self._background(self._restored(attempt, ticket), ticket)
        return Handed(call, loop, handover.given_up)

    def _if_own(self, booking: str, ticket: Ticket, call: Callable[[str, Ticket], Plan[Any]]) -> Plan[None]:
        """Makes a call about a booking, in its turn, unless it is another process's."""
        yield from self._core.turn(ticket)
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
                _, keeper = self._bookings.pop(booking, _NONE)
            if keeper is not None:
                keeper.cancel()

    # Whose bookings are whose

    def _own(self, booking: str, worker: int) -> None:
        """From now on the booking is renewed. The core frees it with this object or Python."""
        keeper = keep_alive(self._core, booking, self._lease, LONGEST)
        with self._lock:
            self._foreign.pop(booking, None)
            _, earlier = self._bookings.get(booking, _NONE)
            self._bookings[booking] = (worker, keeper)
        if earlier is not None:  # of a booking under this id that the service has lost
            earlier.cancel()

    def _withdraw(self, booking: str) -> None:
        """Frees an own booking whose caller does not know that it was made."""
        with self._lock:
            _, keeper = self._bookings.pop(booking, _NONE)
        if keeper is not None:
            keeper.cancel()
            if booking in self._core.held():  # surely of this process
                self._core.abandon(booking)

    def _drop_bookings(self, worker: int) -> None:
        with self._lock:
            gone = [id_ for id_, (on, _) in self._bookings.items() if on == worker]
            keepers = [self._bookings.pop(id_)[1] for id_ in gone]
        for keeper in keepers:
            keeper.cancel()
        for id_ in gone:
            self._core.release(id_)

    def _remember_foreign(self, booking: str) -> None:
        with self._lock:
            if booking not in self._bookings:
                self._foreign[booking] = None
                if len(self._foreign) > MAX_FOREIGN:
                    self._foreign.popitem(last=False)


_NONE: tuple[int, Future[None] | None] = (0, None)


def _forget(future: Future[Any]) -> None:
    """Reads the outcome of what nobody waits for."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("an output block was not counted: %s", error)
