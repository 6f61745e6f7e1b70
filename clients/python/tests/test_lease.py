"""Leases end with their block, however it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest

from conftest import QUICK, MakeClient
from select_service_client import AsyncClient, Client, Unavailable
from server import Server, eventually, relay


def test_life(make: MakeClient, fleet: Server) -> None:
    client = make(fleet.url)
    with client.lease(token_ids=[1] * 9, expected_output_tokens=4) as lease:
        assert lease.worker_id in (1, 2)
        assert (lease.dp_rank, lease.endpoint) == (0, f"http://engine-{lease.worker_id}")
        assert lease.selection["lease_seconds"] == 30
        assert lease.alive
        lease.prefill_complete()
        assert lease.output_block(decay_fraction=0.5)
        lease.post_output_block()
        lease.renew()
        assert fleet.requests() == 1
    assert not lease.alive
    assert lease.output_block() is False
    assert fleet.is_idle()


def test_of_a_rank(make: MakeClient, fleet: Server) -> None:
    with make(fleet.url).lease(worker_id=2, token_ids=[1] * 9, lease_seconds=5) as lease:
        assert (lease.worker_id, lease.selection["lease_seconds"]) == (2, 5)
    assert fleet.is_idle()


def test_exceptions_pass(make: MakeClient, fleet: Server) -> None:
    with pytest.raises(ZeroDivisionError), make(fleet.url).lease(token_ids=[1] * 9):
        assert 1 / 0
    assert fleet.is_idle()
    with pytest.raises(Unavailable), make(fleet.url).lease(token_ids=[1], model_name="nobody's"):
        pytest.fail("the block runs without a worker")


def test_freed_inside_the_block(make: MakeClient, fleet: Server) -> None:
    client = make(fleet.url)
    with client.lease(token_ids=[1]) as lease:
        client.free(lease.id)
    assert fleet.is_idle()


def test_closed_inside_the_block(make: MakeClient, fleet: Server) -> None:
    """Closing the client frees what it holds."""
    with Client(fleet.url) as client, client.lease(token_ids=[1] * 9):
        client.close()
        assert fleet.is_idle()


def test_is_renewed(make: MakeClient, fleet: Server) -> None:
    """A booking outlives its lease by far while its block runs, and not much afterwards."""
    renewals: list[str] = []

    def fate(method: str, path: str) -> str:
        if path.endswith("/renew"):
            renewals.append(path)
        return "refuse" if method == "DELETE" else "pass"

    with relay(fleet, fate) as url:
        client = make(url)
        with client.lease(token_ids=[1] * 9, lease_seconds=3) as lease:
            begun = time.monotonic()
            eventually(lambda: len(renewals) > 3 and time.monotonic() - begun > 1.5 * 3)
            assert fleet.requests() == 1
            assert lease.alive
        # The free does not get through: the server ends the lease.
        eventually(fleet.is_idle)


def test_lost(make: MakeClient, fleet: Server) -> None:
    """Who looks sees that the server has ended the booking."""
    with make(fleet.url).lease(token_ids=[1], lease_seconds=3) as lease:
        assert fleet.send("DELETE", f"/reservations/{lease.id}").status_code == 200
        eventually(lambda: not lease.alive)


def test_renewal_that_hangs(make: MakeClient, fleet: Server) -> None:
    """A renewal without an answer is given up in time for another one."""
    seen: list[str] = []

    def fate(method: str, path: str) -> str:
        if path.endswith("/renew"):
            seen.append(path)
            return "hang" if len(seen) == 1 else "pass"
        return "pass"

    with relay(fleet, fate) as url, make(url).lease(token_ids=[1] * 9, lease_seconds=6) as lease:
        eventually(lambda: len(seen) > 3)
        assert lease.alive
        assert fleet.requests() == 1


def test_server_without_leases(
    make: MakeClient, fleet: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Dynamo's own service has no route to renew: the booking lasts until it is freed."""
    client = make(fleet.url)
    core = client._core
    monkeypatch.setattr(core, "renew", lambda *_, **__: core.call(core.request("POST", "/nowhere", {})))
    with client.lease(token_ids=[1] * 9, lease_seconds=1) as lease:
        eventually(lambda: "knows no leases" in caplog.text)
        assert lease.alive
    assert fleet.is_idle()


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), "soon"])
def test_wrong_lease(make: MakeClient, fleet: Server, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"lease_seconds|could not convert"):
        make(fleet.url).lease(token_ids=[1], lease_seconds=wrong)


@pytest.mark.parametrize("booked", [False, True])
def test_booking_that_may_exist(make: MakeClient, fleet: Server, booked: bool) -> None:
    """With if_exists, a call's own booking is held if that is wanted, and another one's is not."""
    client = make(fleet.url)
    request = {"selection_id": "r", "worker_id": 1, "token_ids": [1]}
    if booked:
        assert fleet.send("POST", "/v1.6/reservations", request).status_code == 201
    core = client._core
    plan = core.book("/reservations", {**request, "if_exists": "return"}, keep=True)
    _, own = core.submit(plan).result(60)
    assert own is not booked
    assert core.held() == (set() if booked else {"r"})
    # A call that owes nothing leaves what is owed alone.
    client.create_reservation(**request, if_exists="return")
    assert core.held() == (set() if booked else {"r"})
    with client.lease(**request, if_exists="return", lease_seconds=60):
        assert core.held() == {"r"}
    assert core.held() == set()
    assert fleet.is_idle()


def test_cancelled_close(fleet: Server) -> None:
    """The connections are closed all the same."""

    async def main() -> None:
        client = AsyncClient(fleet.url)
        await client.health()
        closing = asyncio.create_task(client.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert client._core.ahttp.is_closed

    asyncio.run(main())


class Cancelled(Generator[Any, Any, Any]):
    """Awaits a coroutine and has its task cancelled at some of its suspensions."""

    def __init__(self, flow: Coroutine[Any, Any, Any], *counts: int) -> None:
        self._flow, self._counts, self.seen = flow.__await__(), counts, 0

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any) -> Any:
        return self._suspended(self._flow.send(value))

    def throw(self, *error: Any) -> Any:
        return self._suspended(self._flow.throw(*error))

    def _suspended(self, pending: Any) -> Any:
        self.seen += 1
        task = asyncio.current_task()
        if self.seen in self._counts and task is not None:
            asyncio.get_running_loop().call_soon(task.cancel)  # as others do, from outside
        return pending


async def suspensions(flow: Cancelled) -> int:
    with suppress(asyncio.CancelledError):
        await flow
    return flow.seen


@pytest.mark.parametrize("again", [None, 0, 1, 3])
def test_cancelled_at_every_await(server: Server, again: int | None) -> None:
    """Wherever a task is cancelled, and once more at a later await, no booking stays.

    Bookings have a long lease, so that nothing but the client can have freed them.
    """
    server.add_workers(1, 2)

    async def flow(client: AsyncClient) -> None:
        async with client.lease(token_ids=[1] * 9, lease_seconds=600) as lease:
            await lease.prefill_complete()
            await lease.output_block()
            lease.post_output_block()
            await asyncio.sleep(0)
        id_ = client.booking_id(await client.select_and_reserve(token_ids=[1] * 9, lease_seconds=600))
        await client.free(id_)

    async def main() -> int:
        count = 0
        async with AsyncClient(server.url, retry=QUICK) as client:
            while True:
                count += 1
                later = [] if again is None else [count + 1 + again]
                if await asyncio.create_task(suspensions(Cancelled(flow(client), count, *later))) < count:
                    return count

    assert asyncio.run(main()) > 6
    eventually(server.is_idle)


def test_end_of_the_event_loop(fleet: Server) -> None:
    """asyncio.run cancels what is left, and bookings do not survive it."""

    async def main() -> None:
        client = AsyncClient(fleet.url)
        entered = asyncio.Event()

        async def hold() -> None:
            async with client.lease(token_ids=[1] * 9, lease_seconds=600):
                entered.set()
                await asyncio.sleep(60)

        main.task = asyncio.create_task(hold())  # type: ignore[attr-defined]
        await entered.wait()
        assert fleet.requests() == 1

    asyncio.run(main())
    eventually(fleet.is_idle)


def test_timeout(fleet: Server) -> None:
    """wait_for around a booking, at the moment when it is answered or not."""

    async def main() -> None:
        async with AsyncClient(fleet.url) as client:
            for step in range(20):
                try:
                    async with client.lease(token_ids=[1] * 9, lease_seconds=600):
                        await asyncio.wait_for(
                            client.select_and_reserve(token_ids=[1], lease_seconds=1), step / 2000
                        )
                except asyncio.TimeoutError:
                    pass

    asyncio.run(main())
    eventually(fleet.is_idle)


def test_closed_while_a_block_ends(fleet: Server) -> None:
    """The client gives up the free that hangs and makes its own; the task is not cancelled by that."""
    deletes: list[str] = []

    def fate(method: str, path: str) -> str:
        if method == "DELETE":
            deletes.append(path)
        return "hang" if method == "DELETE" and len(deletes) == 1 else "pass"

    async def main(url: str) -> None:
        client = AsyncClient(url, retry=QUICK)

        async def work() -> str:
            async with client.lease(token_ids=[1] * 9, lease_seconds=600):
                pass
            return "done"

        task = asyncio.create_task(work())
        await asyncio.to_thread(eventually, lambda: deletes)
        await client.aclose()
        assert await task == "done"

    with relay(fleet, fate) as url:
        asyncio.run(main(url))
    eventually(fleet.is_idle)
