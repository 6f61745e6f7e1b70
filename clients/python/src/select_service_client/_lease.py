"""Bookings that cannot leak: freed when their block ends, however it ends."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any

from . import _json
from ._core import Core
from ._drive import arun
from ._errors import Conflict, NotFound, RouteNotFound, SelectServiceError
from ._operation import AsyncCaller, Caller, SyncCaller, operation
from ._plan import Plan
from ._routes import split_headers
from ._types import Selection

LEASE_SECONDS = 30.0

# How long the end of a block may try to free its booking, in seconds.
FREE_SECONDS = 5.0

_log = logging.getLogger("select_service_client")


def keep_alive(core: Core, booking: str, seconds: float, longest: float | None = None) -> Future[None]:
    """Renews a lease, each third of it, until the future is cancelled.

    It ends by itself when the server has no such booking any more, or after
    longest seconds.
    """
    return core.background.start(_keep(core, booking, seconds, longest))


async def _keep(core: Core, booking: str, seconds: float, longest: float | None) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    end = None if longest is None else due + longest
    while end is None or loop.time() < end:
        due = max(due + seconds / 3, loop.time())
        await asyncio.sleep(due - loop.time())
        try:
            # One that hangs ends when the next is due, with a third of the lease left.
            await arun(core.renew(booking, limit=seconds / 3), core.background.http)
        except RouteNotFound:
            _log.warning("the server knows no leases: %s lasts until it is freed", booking)
            await asyncio.sleep(math.inf if end is None else end - loop.time())
            return
        except (NotFound, Conflict) as error:
            _log.warning("the booking %s is lost: %s", booking, error)
            return
        except SelectServiceError as error:
            _log.warning("the lease of %s is not renewed: %s", booking, error)


class LeaseBase(Caller):
    """A booking with a lease: what the two kinds of leases share.

    selection is the service's answer, while the block runs.
    """

    selection: Selection

    def __init__(self, core: Core, request: Mapping[str, Any]) -> None:
        super().__init__(core)
        self._request, self._headers = split_headers(core.with_id(request))
        if self._request.get("lease_seconds") is None:
            self._request["lease_seconds"] = LEASE_SECONDS
        if not float(self._request["lease_seconds"]) > 0:
            raise ValueError(f"lease_seconds must be positive, got {self._request['lease_seconds']!r}")
        self._keeper: Future[None] | None = None
        self._pid = os.getpid()

    @property
    def id(self) -> str:
        """The id of the booking."""
        value: str = self._request[self._core.booking_id]
        return value

    @property
    def worker_id(self) -> int:
        """The chosen worker."""
        return self.selection["worker_id"]

    @property
    def dp_rank(self) -> int:
        """The chosen rank of it."""
        return self.selection["dp_rank"]

    @property
    def endpoint(self) -> str:
        """Where the worker takes requests."""
        return self.selection["endpoint"]

    @property
    def alive(self) -> bool:
        """Whether the lease is being renewed: False once the server has lost the booking."""
        return self._keeper is not None and not self._keeper.done() and self._pid == os.getpid()

    @operation
    def prefill_complete(self) -> Plan[None]:
        """Takes the prefill tokens off the load: the first token is there."""
        yield from self._core.prefill_complete(self.id)

    @operation
    def output_block(self, *, decay_fraction: float | None = None) -> Plan[bool]:
        """Adds a generated block. False: the booking has ended, which is no error."""
        return (yield from self._core.output_block(self.id, decay_fraction))

    @operation
    def renew(self) -> Plan[None]:
        """Starts the lease anew, which happens by itself, too."""
        yield from self._core.renew(self.id)

    def post_output_block(self, *, decay_fraction: float | None = None) -> None:
        """Adds a generated block in the background: it neither waits nor raises."""
        self._core.post_output_block(self.id, decay_fraction)

    def _begin(self) -> Plan[None]:
        path = "/select_and_reserve"
        if self._request.get("worker_id") is not None:
            path = "/reservations"
            _json.worker_id(self._request["worker_id"])
        if self._keeper is not None:
            raise RuntimeError("a lease is for one block")
        self.selection, _ = yield from self._core.book(path, self._request, self._headers, keep=True)
        self._core.hold(self.id)  # also what if_exists has found: it ends with the block
        self._keeper = keep_alive(self._core, self.id, float(self._request["lease_seconds"]))

    def _end(self) -> Plan[None]:
        if self._keeper is None or self._pid != os.getpid():  # a fork's parent frees it
            return
        self._keeper.cancel()
        if self._core.background.closed:  # with the client, which freed it
            return
        try:
            yield from self._core.free(self.id, limit=FREE_SECONDS)
        except NotFound:
            pass  # it has ended already
        except SelectServiceError as error:
            self._core.release(self.id)
            _log.warning("the booking %s is left to its lease: %s", self.id, error)


class Lease(LeaseBase, SyncCaller):
    """A booking for the time of a with block."""

    def __enter__(self) -> Lease:
        self._run(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._end())


class AsyncLease(LeaseBase, AsyncCaller):
    """A booking for the time of an async with block."""

    async def __aenter__(self) -> AsyncLease:
        await self._run(self._begin())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # In the background, where neither a second cancellation nor the end of the
        # event loop reaches it.
        with suppress(RuntimeError):
            end = asyncio.wrap_future(self._core.submit(self._end()))
            await asyncio.wait({end})
            if not end.cancelled():  # by a client that closes, which frees it then
                end.result()
