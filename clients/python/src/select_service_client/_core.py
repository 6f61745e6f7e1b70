"""What the clients share: the server, its dialect, lanes, leases, and what runs behind."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from . import _json
from ._background import Background
from ._errors import Conflict, NotFound, SelectServiceError, UnexpectedAnswer, error_of
from ._lanes import Lanes, Ticket
from ._plan import Answer, Backoff, Exchange, Plan, Request, Retry, Sleep, T, Wait
from ._types import Dialect

# How often and how fast a booking that may have been made unnoticed is freed,
# beyond which its lease or the server's age limit ends it. The server may still
# be about to make it when the first attempt comes.
_RESCUE = Backoff(attempts=4, base=0.1, jitter=0.1, cap=1.0)


@dataclass(frozen=True, slots=True)
class Options:
    """How the server is spoken to.

    prefix goes before every path: "" suits Dynamo's own services and the names
    that a server was started with, None the dialect's prefix.
    """

    url: str
    dialect: Dialect = "1.6"
    prefix: str | None = None
    timeout: float = 30.0
    connect_timeout: float = 2.0
    retry: Retry = field(default_factory=Retry)
    headers: Mapping[str, str] = field(default_factory=dict)

    def http(self, read: float | None = None) -> dict[str, Any]:
        """What an HTTP client is made with. Proxies of the environment are not used."""
        timeout = self.timeout if read is None else read
        # Redirects are not followed: with http there is never any TLS to set up.
        tls = {} if self.url.startswith("https:") else {"verify": False}
        return {
            **tls,
            "base_url": self.url,
            "headers": dict(self.headers),
            "timeout": httpx.Timeout(timeout, connect=min(timeout, self.connect_timeout)),
            "limits": httpx.Limits(max_connections=256, max_keepalive_connections=64),
            "trust_env": False,
        }


# Every core that is alive, for the end of the interpreter; see _exit.py.
cores: weakref.WeakSet[Core] = weakref.WeakSet()


class Core:
    """The state of one client. Safe for threads."""

    def __init__(self, options: Options) -> None:
        if options.dialect not in ("1.3", "1.6"):
            raise ValueError(f"dialect must be '1.3' or '1.6', got {options.dialect!r}")
        self.options = options
        self.prefix = f"/v{options.dialect}" if options.prefix is None else options.prefix
        self.lanes = Lanes()
        self.background = Background(options.http())
        # Guards held.
        self._lock = threading.Lock()
        # Ids whose bookings this process has to free before it ends.
        self._held: set[str] = set()
        cores.add(self)

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
        path = (self.prefix if prefixed else "") + path
        given = {name: value for name, value in (query or {}).items() if value is not None}
        if given:
            path += "?" + urlencode(given)
        all_headers = dict(headers or {})
        if body is None:
            return Request(method, path, None, all_headers)
        all_headers["content-type"] = "application/json"
        return Request(method, path, _json.encode(body), all_headers)

    def call(self, request: Request, *, safe: bool = True) -> Plan[Any]:
        """Sends a request and returns the answer's value; safe says it may be repeated."""
        return _value((yield from Exchange(self.options.retry, request, safe=safe).run()))

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
        leaves it held: this process frees it when it ends.
        """
        booking = request[self.booking_id]
        again = {**request, "if_exists": "return"}
        exchange = Exchange(
            self.options.retry,
            self.request("POST", path, request, headers=headers),
            safe=True,
            repeated=self.request("POST", path, again, headers=headers),
        )
        # With if_exists the caller repeats calls and may own an earlier booking.
        mine = request.get("if_exists") != "return"
        ticket = ticket or self.lanes.enter(booking)
        try:
            yield from self._turn(ticket)
            self.lanes.open(booking)
            if mine:
                self.hold(booking)
            answer = yield from exchange.run()
            value = _booking(answer)
        except BaseException as error:  # cancelled, interrupted and dropped, too
            unread = isinstance(error, UnexpectedAnswer) and error.status is None
            if mine and (exchange.doubtful or unread) and not isinstance(error, Conflict):
                self.abandon(booking)
            else:
                self.release(booking)
            raise
        finally:
            self.lanes.leave(ticket)
        if not keep:
            self.release(booking)
        return value, exchange.lost or answer.status == 201

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
        return result

    def lifecycle(
        self, method: str, booking: str, action: str = "", body: Mapping[str, Any] | None = None
    ) -> Request:
        """A request about a booking."""
        if not booking:
            raise ValueError("the id of a reservation must not be empty")
        segment = quote(booking, safe="").replace(".", "%2E")  # "." and ".." are no steps
        return self.request(method, f"/reservations/{segment}{action}", body)

    def prefill_complete(self, booking: str, ticket: Ticket | None = None) -> Plan[None]:
        """Ends the prefill load, in its turn."""
        ticket = ticket or self.lanes.enter(booking)
        try:
            yield from self._turn(ticket)
            yield from self.call(self.lifecycle("POST", booking, "/prefill_complete"))
        finally:
            self.lanes.leave(ticket)

    def output_block(
        self, booking: str, decay_fraction: float | None = None, ticket: Ticket | None = None
    ) -> Plan[bool]:
        """Adds an output block, in its turn. False: there is no such booking any more."""
        ticket = ticket or self.lanes.enter_late(booking)
        if ticket is None:
            return False
        try:
            yield from self._turn(ticket)
            body = {} if decay_fraction is None else {"decay_fraction": decay_fraction}
            yield from self.call(self.lifecycle("POST", booking, "/output_block", body), safe=False)
        except NotFound:
            return False
        finally:
            self.lanes.leave(ticket)
        return True

    def renew(self, booking: str) -> Plan[None]:
        """Starts the lease anew. Not in its turn: a lease must not wait."""
        yield from self.call(self.lifecycle("POST", booking, "/renew"))

    def free(self, booking: str, ticket: Ticket | None = None) -> Plan[None]:
        """Ends the booking, in its turn; what comes after it is late."""
        ticket = ticket or self.lanes.enter(booking)
        self.lanes.close(booking)
        exchange = Exchange(self.options.retry, self.lifecycle("DELETE", booking), safe=True)
        try:
            yield from self._turn(ticket)
            answer = yield from exchange.run()
            self.release(booking)
            if not (answer.status == 404 and exchange.lost):  # freed by the lost attempt
                _value(answer)
        except SelectServiceError:
            raise
        except BaseException:  # cancelled: it is freed all the same
            self.abandon(booking)
            raise
        finally:
            self.lanes.leave(ticket)

    def _turn(self, ticket: Ticket) -> Plan[None]:
        if not ticket.turn.done():
            yield Wait(ticket.turn)

    # What outlives its caller

    def hold(self, booking: str) -> None:
        """From now on this process owes the server the free of a booking."""
        with self._lock:
            self._held.add(booking)

    def release(self, booking: str) -> None:
        """The booking is no longer owed."""
        with self._lock:
            self._held.discard(booking)

    def held(self) -> set[str]:
        """The bookings owed."""
        with self._lock:
            return set(self._held)

    def abandon(self, booking: str) -> None:
        """Frees what may be booked, behind the caller's back; never blocks or raises."""
        self.hold(booking)
        self.lanes.close(booking)
        ticket = self.lanes.enter(booking)
        with suppress(RuntimeError):  # the interpreter ends: _exit.py has it
            self.submit(self._rescue(booking, ticket), ticket)

    def _rescue(self, booking: str, ticket: Ticket) -> Plan[None]:
        request = self.lifecycle("DELETE", booking)
        try:
            yield from self._turn(ticket)
            for attempt in range(1, _RESCUE.attempts + 1):
                reply: object = yield request
                if isinstance(reply, Answer) and reply.status == 200:
                    break
                yield Sleep(_RESCUE.wait(attempt) or 0)
        finally:
            self.lanes.leave(ticket)
            self.release(booking)

    def submit(self, plan: Plan[T], ticket: Ticket | None = None) -> Future[T]:
        """Runs a plan in the background, in the place it was given.

        Raises RuntimeError when it is too late.
        """
        try:
            future = self.background.submit(plan)
        except RuntimeError:
            if ticket is not None:
                self.lanes.leave(ticket)
            raise
        if ticket is not None:  # a plan that is cancelled before it starts leaves nothing
            future.add_done_callback(lambda _: self.lanes.leave(ticket))
        return future

    def post_output_block(self, booking: str, decay_fraction: float | None = None) -> None:
        """Adds an output block in the background: it neither waits nor raises."""
        ticket = self.lanes.enter_late(booking)
        if ticket is not None:
            with suppress(RuntimeError):  # too late
                self.submit(self.output_block(booking, decay_fraction, ticket), ticket)

    def after_fork(self) -> None:
        """Forgets, in a forked child, what is the parent's."""
        self._lock = threading.Lock()
        self._held = set()
        self.lanes = Lanes()
        self.background = Background(self.options.http())


def _booking(answer: Answer) -> Any:
    value = _value(answer)
    if not isinstance(value, dict) or "worker_id" not in value:
        raise UnexpectedAnswer(f"the answer is no booking: {value!r:.200}")
    return value


def _value(answer: Answer) -> Any:
    if not 200 <= answer.status < 300:
        raise error_of(answer.status, answer.content)
    return _json.decode(answer.content) if answer.content else None
