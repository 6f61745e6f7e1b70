"""What the clients share: the server, its dialect, lanes, leases, and what runs behind."""

from __future__ import annotations

import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from . import _json, _msgpack
from ._background import Background
from ._errors import Conflict, ConnectionFailed, NotFound, SelectServiceError, UnexpectedAnswer
from ._lanes import Lanes, Ticket
from ._options import Options as Options
from ._options import check_headers
from ._plan import Answer, Backoff, Exchange, Plan, Request, Sleep, T, Wait

# How fast and for how long, in seconds, a booking that may have been made unnoticed
# is freed, beyond which its lease or the server's age limit ends it. The server may
# still be about to make it when the first attempts come.
_RESCUE = Backoff(base=0.1, jitter=0.1, cap=1.0)
_RESCUE_TIME = 5.0

# How long a free waits for an output block that is on its way, in seconds: one that
# hangs must not keep the load.
OVERTAKE = 2.5

# The selections, which may wait in the server's queue.
_QUEUED = ("/select", "/select_and_reserve", "/select_pair", "/select_batch")

# The calls about a prompt, which is long: sent in msgpack.
_PROMPTS = (
    "/select",
    "/select_and_reserve",
    "/select_pair",
    "/reservations",
    "/overlap_scores",
    "/potential_loads",
    "/explain",
)

# Every core that is alive, for the end of the interpreter; see _exit.py.
cores: weakref.WeakSet[Core] = weakref.WeakSet()

# What a forked child has of its parent. It is kept: an end would reach the parent's
# connections and its event loop.
_inherited: list[object] = []


class Core:
    """The state of one client. Safe for threads.

    Finalizers of dropped calls use it, too, so it has no lock that a thread may
    hold already: the sets are changed by one operation each, which is atomic.
    """

    def __init__(self, options: Options) -> None:
        options.check()
        self.options = options
        self.prefix = f"/v{options.dialect}" if options.prefix is None else options.prefix
        # The server has refused msgpack: others that speak the contract know only JSON.
        self.only_json = False
        self.lanes = Lanes()
        self.background = Background(options.async_client)
        self._http: httpx.Client | None = None
        self._ahttp: httpx.AsyncClient | None = None
        # Ids whose reservations this process has to free before it ends, and those of
        # them that may be on their way to the server.
        self._held: set[str] = set()
        self._doubtful: set[str] = set()
        cores.add(self)

    # Connections

    @property
    def http(self) -> httpx.Client:
        """What calls that block go through: of this process, also in a forked child."""
        if self._http is None:
            self._http = self.options.client()
        return self._http

    @property
    def ahttp(self) -> httpx.AsyncClient:
        """What calls of the caller's event loop go through."""
        if self._ahttp is None:
            self._ahttp = self.options.async_client()
        return self._ahttp

    # Requests

    @property
    def booking_id(self) -> str:
        """The name of the booking's id in requests and answers."""
        return "reservation_id" if self.options.dialect == "1.3" else "selection_id"

    @property
    def tenant(self) -> str:
        """The name of the tenant in requests and answers."""
        return "tenant_id" if self.options.dialect == "1.3" else "routing_group"

    def names(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request in the words of the dialect, with exact numbers."""
        result = _json.body(request)
        alias = "routing_group" if self.tenant == "tenant_id" else "tenant_id"
        if alias in result and result.setdefault(self.tenant, result[alias]) == result[alias]:
            del result[alias]  # where they differ the server says so
        return result

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        prefixed: bool = True,
    ) -> Request:
        """A request to a route."""
        timeout = self.options.selection_timeout if path in _QUEUED else self.options.timeout
        packed = None if body is None or self.only_json or path not in _PROMPTS else _msgpack.encode(body)
        path = (self.prefix if prefixed else "") + path
        given = {name: value for name, value in (query or {}).items() if value is not None}
        if given:
            path += "?" + urlencode(given)
        all_headers = dict(headers or {})
        check_headers(all_headers)
        if packed is not None:
            content, same = packed
            headers_of = {**all_headers, "content-type": "application/msgpack", "accept": "application/json"}

            def plain() -> Request:
                self.only_json = True
                in_json = {**all_headers, "content-type": "application/json"}
                return Request(method, path, _json.encode(same), in_json, timeout)

            return Request(method, path, content, headers_of, timeout, plain)
        if body is None:
            return Request(method, path, None, all_headers, timeout)
        all_headers["content-type"] = "application/json"
        return Request(method, path, _json.encode(body), all_headers, timeout)

    def call(self, request: Request, *, safe: bool = True) -> Plan[Any]:
        """Sends a request and returns the answer's value; safe says it may be repeated."""
        return (yield from Exchange(self.options.retry, request, safe=safe).run()).value()

    # Bookings

    def book(
        self,
        path: str,
        request: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        *,
        ticket: Ticket | None = None,
        keep: bool = False,
    ) -> Plan[tuple[Any, bool]]:
        """Books in its turn, and says whether it may be this very call that booked.

        What may have been booked without the caller learning of it is freed. keep
        leaves what this call has booked held: this process frees it when it ends.
        """
        if self.background.closed:
            raise RuntimeError("the client is closed")
        booking = _id(request[self.booking_id])
        first, repeated = self._booking_requests(path, request, headers)
        exchange = Exchange(self.options.retry, first, safe=True, repeated=repeated)
        # With if_exists the caller repeats calls and may own an earlier booking.
        mine = request.get("if_exists") != "return"
        held = False
        ticket = ticket or Ticket(booking)
        try:
            try:
                yield from self.turn(ticket)
                self.lanes.open(booking)
                if mine:
                    held = self.hold(booking)
                answer = yield from exchange.run()
                value = _booking(answer)
            finally:
                self.lanes.leave(ticket)
            if keep and answer.status == 201:
                self.hold(booking)
            elif held and not keep:
                self.release(booking)
            return value, exchange.lost or answer.status == 201
        except BaseException as error:  # cancelled, interrupted and dropped, too
            if mine and exchange.doubtful and not isinstance(error, Conflict):
                self.abandon(booking)
            elif held:
                self.release(booking)
            raise

    def _booking_requests(
        self, path: str, request: Mapping[str, Any], headers: Mapping[str, str] | None
    ) -> tuple[Request, Callable[[], Request] | None]:
        """The request of a booking, and what asks for its answer once more."""
        if request.get("if_exists") not in (None, "error"):
            return self.request("POST", path, request, headers=headers), None
        plain = {name: value for name, value in request.items() if name != "if_exists"}
        first = self.request("POST", path, plain, headers=headers)
        return first, lambda: _asking_again(first)

    def with_id(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with an id for the booking, which repetitions need."""
        result = self.names(request)
        if self.options.dialect == "1.6":
            other = result.get("reservation_id")
            if other is not None and result.get("selection_id", other) == other:
                result["selection_id"] = result.pop("reservation_id")
        elif result.get("reservation_id") is None and result.get("selection_id") is not None:
            result["reservation_id"] = result["selection_id"]
        if result.get(self.booking_id) is None:
            result[self.booking_id] = str(uuid.uuid4())
        _id(result[self.booking_id])
        return result

    def lifecycle(
        self, method: str, booking: str, action: str = "", body: Mapping[str, Any] | None = None
    ) -> Request:
        """A request about a booking."""
        segment = quote(_id(booking), safe="").replace(".", "%2E")  # "." and ".." are no steps
        return self.request(method, f"/reservations/{segment}{action}", body)

    def prefill_complete(self, booking: str, ticket: Ticket | None = None) -> Plan[None]:
        """Ends the prefill load, in its turn."""
        request = self.lifecycle("POST", booking, "/prefill_complete")
        ticket = ticket or Ticket(booking, brief=True)
        try:
            yield from self.turn(ticket)
            if not ticket.unwanted:
                yield from self._while_wanted(request, ticket, safe=True)
        except NotFound:
            if not ticket.unwanted:  # else the free has come first
                raise
        finally:
            self.lanes.leave(ticket)

    def output_block(
        self, booking: str, decay_fraction: float | None = None, ticket: Ticket | None = None
    ) -> Plan[bool]:
        """Adds an output block, in its turn. False: there is no such booking any more."""
        body = {} if decay_fraction is None else {"decay_fraction": decay_fraction}
        request = self.lifecycle("POST", booking, "/output_block", body)
        ticket = ticket or Ticket(booking, late=True)
        try:
            yield from self.turn(ticket)
            if ticket.unwanted:
                return False
            yield from self._while_wanted(request, ticket, safe=False)
        except NotFound:
            return False
        except ConnectionFailed:
            if ticket.unwanted:  # meanwhile
                return False
            raise
        finally:
            self.lanes.leave(ticket)
        return True

    def _while_wanted(self, request: Request, ticket: Ticket, *, safe: bool) -> Plan[None]:
        """A call that is not repeated once the free of its booking is under way."""
        exchange = Exchange(self.options.retry, request, safe=safe, wanted=lambda: not ticket.unwanted)
        (yield from exchange.run()).value()

    def renew(self, booking: str, limit: float | None = None) -> Plan[None]:
        """Starts the lease anew, in limit seconds. Not in its turn: a lease must not wait."""
        request, retry = self.lifecycle("POST", booking, "/renew"), self.options.retry
        if limit is not None:  # one attempt that hangs leaves time for another one
            request, retry = request.within(limit / 2), retry.within(limit)
        (yield from Exchange(retry, request, safe=True).run()).value()

    def free(self, booking: str, ticket: Ticket | None = None, *, limit: float | None = None) -> Plan[None]:
        """Ends the booking, in its turn; what comes after it is late.

        limit is the most that the attempts may take in all, in seconds.
        """
        request, retry = self.lifecycle("DELETE", booking), self.options.retry
        if limit is not None:
            request, retry = request.within(limit / 2), retry.within(limit)
        place = ticket or Ticket(booking, last=True)
        # Once another free has overtaken this one, the id may be booked anew.
        exchange = Exchange(retry, request, safe=True, wanted=lambda: not place.unwanted)
        try:
            yield from self.turn(place)
            answer = yield from exchange.run()
            self.settle(booking, answer.status)
            if not (answer.status == 404 and exchange.lost):  # freed by the lost attempt
                answer.value()
        except SelectServiceError:
            raise
        except BaseException:  # cancelled: it is freed all the same
            self.abandon(booking, known=True)
            raise
        finally:
            self.lanes.leave(place)

    def turn(self, ticket: Ticket) -> Plan[None]:
        """Waits for a turn, in a place taken now if need be.

        A free does not wait long for anything but a booking.
        """
        self.lanes.take(ticket)
        limit = OVERTAKE if ticket.last else None
        while not (ticket.turn.done() or (yield Wait(ticket.turn, limit))):
            limit = OVERTAKE if self.lanes.overtake(ticket) else None

    # What outlives its caller

    def hold(self, booking: str) -> bool:
        """From now on this process owes the server the free of a booking. False: as before."""
        before = booking in self._held
        self._held.add(booking)
        return not before

    def release(self, booking: str) -> None:
        """The booking is no longer owed."""
        self._held.discard(booking)
        self._doubtful.discard(booking)

    def held(self) -> set[str]:
        """The reservations owed."""
        return set(self._held)

    def settle(self, booking: str, status: int) -> bool:
        """Whether an answer to a free has ended the booking, which is then no longer owed.

        One that may reach the server after its free is not ended by a 404.
        """
        ended = status == 200 or (status == 404 and booking not in self._doubtful)
        if ended:
            self.release(booking)
        return ended

    def abandon(self, booking: str, *, known: bool = False) -> None:
        """Frees what may be booked, behind the caller's back; never blocks or raises.

        known: it has reached the server, so that it is gone if the server says so.
        """
        if not known:
            self._doubtful.add(booking)
        self.hold(booking)
        ticket = Ticket(booking, last=True)
        with suppress(RuntimeError):  # the interpreter ends: _exit.py has it
            self.submit(self._rescue(booking, ticket), ticket)

    def _rescue(self, booking: str, ticket: Ticket) -> Plan[None]:
        request = self.lifecycle("DELETE", booking)
        try:
            yield from self.turn(ticket)
            end = time.monotonic() + _RESCUE_TIME
            attempt = 1
            while (left := end - time.monotonic()) > 0:
                reply: object = yield request.within(min(left, _RESCUE_TIME / 2))
                if isinstance(reply, Answer) and self.settle(booking, reply.status):
                    return
                yield Sleep(min(_RESCUE.pause(attempt), left))
                if ticket.unwanted:  # the free that has overtaken it goes on
                    return
                attempt += 1
            self.release(booking)  # if it is cancelled before, _exit.py has it
        finally:
            self.lanes.leave(ticket)

    def submit(self, plan: Plan[T], ticket: Ticket | None = None) -> Future[T]:
        """Runs a plan in the background, in the place it was given.

        Raises RuntimeError when it is too late.
        """
        try:
            if ticket is not None:
                self.lanes.take(ticket)
            future = self.background.submit(plan)
        except BaseException:
            if ticket is not None:
                self.lanes.leave(ticket)
            raise
        if ticket is not None:  # a plan that is cancelled before it starts leaves nothing
            future.add_done_callback(lambda _: self.lanes.leave(ticket))
        return future

    def post_output_block(self, booking: str, decay_fraction: float | None = None) -> None:
        """Adds an output block in the background: it neither waits nor raises."""
        ticket = self.lanes.enter_late(_id(booking))
        if ticket is not None:
            with suppress(RuntimeError):  # too late
                self.submit(self.output_block(booking, decay_fraction, ticket), ticket)

    def after_fork(self) -> None:
        """Forgets, in a forked child, what is the parent's."""
        _inherited.append((self.lanes, self.background, self._http, self._ahttp))
        self._held, self._doubtful = set(), set()
        self.lanes = Lanes()
        closed = self.background.closed
        self.background = Background(self.options.async_client)
        if closed:
            self.background.close()
        else:
            self._http = self._ahttp = None


def _asking_again(request: Request) -> Request:
    """A booking with if_exists: the same text and one member more, for prompts are long."""
    content, plain = request.content or b"", request.plain
    if plain is None:
        return replace(request, content=content[:-1] + b',"if_exists":"return"}')
    in_msgpack = _msgpack.add(content, "if_exists", "return")
    return replace(request, content=in_msgpack, plain=lambda: _asking_again(plain()))


def _id(booking: Any) -> str:
    if not isinstance(booking, str):
        raise TypeError(f"the id of a reservation must be a string, got {booking!r}")
    if not booking:
        raise ValueError("the id of a reservation must not be empty")
    return booking


def _booking(answer: Answer) -> Any:
    value = answer.value()
    if not isinstance(value, dict) or not ("worker_id" in value or "decode" in value):
        raise UnexpectedAnswer(f"the answer is no booking: {value!r:.200}")
    return value
