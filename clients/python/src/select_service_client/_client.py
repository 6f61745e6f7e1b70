"""The two clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import httpx

from . import _exit
from ._core import Core, Options
from ._credentials import Credentials
from ._errors import ConnectionFailed, error_of
from ._lease import AsyncLease, Lease
from ._operation import AsyncCaller, SyncCaller
from ._others import AsyncConductor, AsyncSlots, Conductor, Slots
from ._plan import Retry
from ._routes import OverloadRoutes, ReplicaRoutes, ReservationRoutes, SelectionRoutes, WorkerRoutes
from ._types import Dialect, LeaseRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Routes(WorkerRoutes, SelectionRoutes, ReservationRoutes, OverloadRoutes, ReplicaRoutes):
    """All routes of the selection service."""

    def __init__(
        self,
        url: str = "http://localhost:8092",
        *,
        dialect: Dialect = "1.6",
        prefix: str | None = None,
        timeout: float = 30.0,
        selection_timeout: float | None = None,
        retry: Retry = Retry(),  # noqa: B008  immutable
        headers: Mapping[str, str] | None = None,
        credentials: Credentials = Credentials(),  # noqa: B008  immutable
    ) -> None:
        """Connects with the first call.

        dialect decides on the names (tenant_id and reservation_id in "1.3",
        routing_group and selection_id in "1.6") and is spoken under /v1.3 or
        /v1.6, whatever the server was started with. prefix="" speaks it without,
        to servers without these paths. timeout is in seconds and for one attempt.
        selection_timeout is that of select, select_and_reserve and lease, which
        may wait in the server's queue: by default as long as the server lets them,
        because a repetition would lose its place. retry has the attempts. headers
        go with every request. credentials are for TLS and tokens.
        """
        super().__init__(
            Core(
                Options(
                    url,
                    dialect,
                    prefix,
                    timeout,
                    selection_timeout=selection_timeout,
                    retry=retry,
                    headers=dict(headers or {}),
                    credentials=credentials.or_environment(),
                )
            )
        )

    @property
    def dropped_output_blocks(self) -> int:
        """How many output blocks were dropped because too many waited for one booking."""
        return self._core.lanes.dropped


class Client(Routes, SyncCaller):
    """Calls block. Safe to share between threads."""

    @property
    def slots(self) -> Slots:
        """The slot tracker's routes."""
        return Slots(self._core)

    @property
    def conductor(self) -> Conductor:
        """The Conductor's routes."""
        return Conductor(self._core)

    def lease(self, **request: Unpack[LeaseRequest]) -> Lease:
        """A booking for the time of a with block, freed however the block ends.

        It is renewed meanwhile. If this process dies, or the server cannot be
        reached, the server ends it after lease_seconds (30).
        """
        return Lease(self._core, request)

    @contextmanager
    def dump_stream(self) -> Iterator[Iterator[bytes]]:
        """The index as chunks of JSON text, as they come."""
        path = self._core.request("GET", "/dump").path
        with _failures(path):
            http = self._core.http
            answer = http.send(http.build_request("GET", path), stream=True)
        try:
            with _failures(path):
                if answer.status_code != 200:
                    raise error_of(answer.status_code, answer.read())
            yield _chunks(answer, path)
        finally:
            answer.close()

    def close(self) -> None:
        """Frees the leases that are still open, and ends threads and connections."""
        try:
            _exit.close(self._core)
        finally:
            self._core.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Routes, AsyncCaller):
    """Calls are awaited. For one event loop."""

    @property
    def slots(self) -> AsyncSlots:
        """The slot tracker's routes."""
        return AsyncSlots(self._core)

    @property
    def conductor(self) -> AsyncConductor:
        """The Conductor's routes."""
        return AsyncConductor(self._core)

    def lease(self, **request: Unpack[LeaseRequest]) -> AsyncLease:
        """A booking for the time of an async with block, freed however the block ends.

        Cancellation ends it like any other exception, and cannot interrupt the
        free. See Client.lease for the rest.
        """
        return AsyncLease(self._core, request)

    @asynccontextmanager
    async def dump_stream(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """The index as chunks of JSON text, as they come."""
        path = self._core.request("GET", "/dump").path
        with _failures(path):
            http = self._core.ahttp
            answer = await http.send(http.build_request("GET", path), stream=True)
        try:
            with _failures(path):
                if answer.status_code != 200:
                    raise error_of(answer.status_code, await answer.aread())
            yield _achunks(answer, path)
        finally:
            await answer.aclose()

    async def aclose(self) -> None:
        """Frees the leases that are still open, and ends threads and connections."""
        try:
            await asyncio.to_thread(_exit.close, self._core)
        finally:
            await self._core.ahttp.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """Failures of the connection, and of nothing else, are the client's errors."""
    try:
        yield
    except httpx.RequestError as error:
        raise ConnectionFailed(f"GET {path}: {type(error).__name__}: {error}") from error


def _chunks(answer: httpx.Response, path: str) -> Iterator[bytes]:
    with _failures(path):
        yield from answer.iter_bytes()


async def _achunks(answer: httpx.Response, path: str) -> AsyncIterator[bytes]:
    with _failures(path):
        async for chunk in answer.aiter_bytes():
            yield chunk
