"""Fixtures: servers, and both clients under one set of tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from select_service_client import AsyncClient, Backoff, Client, Retry
from select_service_client.dynamo import SelectionService
from server import Server, eventually

# As often as by default, but without the waits.
QUICK = Retry(overload=Backoff(5, 0.01, 0.01, 0.1), connection=Backoff(8, 0.05, 0.05, 0.5))


class Blocking:
    """An AsyncClient, or a part of it, whose calls block: one test suits both clients."""

    def __init__(self, of: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._of, self._loop = of, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._of, name)
        if name in ("slots", "conductor"):
            return Blocking(value, self._loop)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            if inspect.isawaitable(result):
                return self._loop.run_until_complete(_awaited(result))
            return BlockingContext(result, self._loop) if hasattr(result, "__aenter__") else result

        return call


class BlockingContext(Blocking):
    def __enter__(self) -> Any:
        entered = self._loop.run_until_complete(self._of.__aenter__())
        return self if entered is self._of else Chunks(entered, self._loop)

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._of.__aexit__(*error))


class Chunks:
    def __init__(self, of: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._of, self._loop = of, loop

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run_until_complete(_awaited(self._of.__anext__()))
            except StopAsyncIteration:
                return


async def _awaited(value: Any) -> Any:
    return await value


MakeClient = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Makes a client of either kind, for a URL."""
    made: list[Client] = []
    loop = asyncio.new_event_loop()
    others: list[AsyncClient] = []

    def make(url: str, **options: Any) -> Any:
        options.setdefault("retry", QUICK)
        if request.param == "sync":
            made.append(Client(url, **options))
            return made[-1]
        others.append(AsyncClient(url, **options))
        return Blocking(others[-1], loop)

    yield make
    for client in made:
        client.close()
    for other in others:
        loop.run_until_complete(other.aclose())
    loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server without workers."""
    running = Server()
    yield running
    running.stop()


@pytest.fixture
def fleet(server: Server) -> Server:
    """The server with two workers and no load."""
    for worker in server.send("GET", "/workers").json():
        server.send("DELETE", f"/workers/{worker['worker_id']}")
    server.add_workers(1, 2)
    return server


@pytest.fixture
def service(fleet: Server) -> Iterator[SelectionService]:
    """The adapter on that server. What it booked is gone in the end."""
    adapter = SelectionService(url=fleet.url, retry=QUICK)
    yield adapter
    adapter.shutdown()
    eventually(fleet.is_idle)
