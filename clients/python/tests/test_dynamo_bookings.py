"""Whose bookings the adapter's are, and that none of them is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from conftest import QUICK
from select_service_client.dynamo import SelectionService, SelectionServiceError
from server import Server, eventually, relay

STATED = {"worker_id": 1, "dp_rank": 0, "token_ids": [1, 2, 3, 4, 5]}
CHOSEN = {"token_ids": [1, 2, 3, 4, 5]}


@pytest.mark.parametrize("method", ["select_and_reserve", "create_reservation"])
def test_cancelled_with_the_result_there(service: SelectionService, fleet: Server, method: str) -> None:
    """A task that is cancelled between the result and its own turn leaves no booking."""

    async def main() -> None:
        async def wait() -> Any:
            return await booking

        task = asyncio.create_task(wait())  # it awaits the booking before the answer can come
        request = CHOSEN if method == "select_and_reserve" else STATED
        booking = getattr(service, method)({"selection_id": "a", **request})
        booking.add_done_callback(lambda _: task.cancel())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert booking.result()["selection_id"] == "a"
        await asyncio.to_thread(eventually, fleet.is_idle)
        assert not service._bookings

    asyncio.run(main())


def test_taken_by_another(service: SelectionService, fleet: Server) -> None:
    """Of several tasks that await one booking, one is enough to keep it."""

    async def main() -> None:
        async def wait() -> Any:
            return await booking

        tasks = [asyncio.create_task(wait()) for _ in range(3)]  # they await it before its answer can come
        booking = service.select_and_reserve({"selection_id": "a", **CHOSEN})
        booking.add_done_callback(lambda _: [tasks[i].cancel() for i in (0, 2)])
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False, True]
        assert "a" in service._bookings
        await service.prefill_complete("a")
        await service.free_reservation("a")

    asyncio.run(main())


def test_future(service: SelectionService) -> None:
    """What is returned is a future of asyncio's, with all that is done with one."""

    async def main() -> None:
        bookings = [service.select_and_reserve({"selection_id": str(i), **CHOSEN}) for i in range(6)]
        assert all(isinstance(booking, asyncio.Future) for booking in bookings)
        assert asyncio.ensure_future(bookings[0]) is bookings[0]
        gathered = await asyncio.gather(bookings[0], bookings[1])
        waited = await asyncio.wait_for(bookings[2], 10)
        shielded = await asyncio.shield(bookings[3])
        await asyncio.wait([bookings[4]])

        async def wait() -> Any:
            return await bookings[5]

        again = await asyncio.create_task(wait())
        assert await bookings[5] == again  # a second time
        answers = [*gathered, waited, shielded, bookings[4].result(), again]
        assert [answer["selection_id"] for answer in answers] == [str(i) for i in range(6)]
        assert len(service._bookings) == 6
        with pytest.raises(SelectionServiceError, match="already reserved"):
            await service.select_and_reserve({"selection_id": "0", **CHOSEN})
        await asyncio.gather(*(service.free_reservation(str(i)) for i in range(6)))

    asyncio.run(main())


def test_shutdown_frees_what_is_its_own(fleet: Server) -> None:
    """Both kinds of bookings, and none that another process has made."""
    ours, theirs = (SelectionService(url=fleet.url, retry=QUICK) for _ in range(2))

    async def main() -> None:
        await ours.create_reservation({"selection_id": "a", **STATED})
        await ours.select_and_reserve({"selection_id": "b", **CHOSEN})
        for booked in (
            await theirs.create_reservation({"selection_id": "c", **STATED}),
            await theirs.select_and_reserve({"selection_id": "d", **CHOSEN}),
        ):
            told = {name: booked[name] for name in ("selection_id", "worker_id", "dp_rank")}
            await ours.create_reservation({**CHOSEN, **told})
        # Calls that do not book leave what is booked under their id.
        await ours.create_reservation({"selection_id": "a", **STATED})
        with pytest.raises(SelectionServiceError, match="already reserved"):
            await ours.select_and_reserve({"selection_id": "b", **CHOSEN})

    asyncio.run(main())
    assert fleet.requests() == 4
    ours.shutdown()
    assert fleet.requests() == 2
    for left in ("c", "d"):
        assert fleet.send("POST", f"/reservations/{left}/prefill_complete").status_code == 200
    theirs.shutdown()
    assert fleet.is_idle()


def test_end_of_python_frees_what_is_its_own(fleet: Server) -> None:
    code = """
import asyncio, sys
from select_service_client.dynamo import SelectionService
async def main():
    global service
    service = SelectionService(url=sys.argv[1])
    stated = {"worker_id": 1, "dp_rank": 0, "token_ids": [1, 2, 3, 4, 5]}
    for booking in ("mine", "theirs"):
        await service.create_reservation({"selection_id": booking, **stated})
asyncio.run(main())
"""
    theirs = {"selection_id": "theirs", **STATED}
    assert fleet.send("POST", "/v1.6/reservations", theirs).status_code == 201
    subprocess.run([sys.executable, "-c", code, fleet.url], check=True, timeout=60)
    assert fleet.requests() == 1
    assert fleet.send("DELETE", "/reservations/theirs").status_code == 200


@pytest.mark.parametrize("ending", ["shutdown", "cancelled"])
def test_whose_it_is_is_not_known(fleet: Server, ending: str) -> None:
    """With the answer lost a booking may be another process's: its free is left to its lease."""
    losses: list[str] = []

    def fate(method: str, path: str) -> str:
        if path == "/v1.6/reservations" and not losses:
            losses.append(path)
            return "lose"
        return "pass"

    async def main(service: SelectionService) -> None:
        booking = service.create_reservation({"selection_id": "a", **STATED})
        if ending == "cancelled":
            eventually(lambda: "a" in service._bookings)  # the event loop stands still
            booking.cancel()
            await asyncio.wait([booking])
            assert not service._bookings
        else:
            await booking

    assert fleet.send("POST", "/v1.6/reservations", {"selection_id": "a", **STATED}).status_code == 201
    with relay(fleet, fate) as url:
        service = SelectionService(url=url, retry=QUICK)
        asyncio.run(main(service))
        service.shutdown()
    assert losses
    assert fleet.send("DELETE", "/reservations/a").status_code == 200


def test_booked_anew(service: SelectionService, fleet: Server) -> None:
    """A booking that takes the place of a lost one ends its renewals."""

    async def main() -> None:
        await service.select_and_reserve({"selection_id": "a", **CHOSEN})
        _, earlier = service._bookings["a"]
        fleet.send("DELETE", "/reservations/a")
        await service.select_and_reserve({"selection_id": "a", **CHOSEN})
        assert earlier.cancelled()
        await service.free_reservation("a")

    asyncio.run(main())


def test_deleted_during_a_restore() -> None:
    """A worker that Ray deletes while the lost workers are registered again stays deleted."""
    server = Server()
    deleting: list[Any] = []
    loop = asyncio.new_event_loop()
    restarted = False

    def fate(method: str, path: str) -> str:
        if restarted and not deleting and (method, path) == ("POST", "/v1.6/workers"):
            # The restore has its list, and is about to register the first of it.
            deleting.append(asyncio.run_coroutine_threadsafe(delete(), loop))
            deleting[0].result(10)
        return "pass"

    async def delete() -> str:
        row = await service.delete_worker(3)
        return str(row["lifecycle"])

    async def main() -> None:
        nonlocal restarted
        for worker in (1, 2, 3):
            await service.upsert_worker({"worker_id": worker, "endpoint": "http://a", "block_size": 4})
        await asyncio.to_thread(server.restart)
        restarted = True
        await service.select(CHOSEN)
        assert deleting[0].result() == "unschedulable"
        assert [row["worker_id"] for row in service.list_workers()] == [1, 2]

    try:
        with relay(server, fate) as url:
            service = SelectionService(url=url, retry=QUICK)
            loop.run_until_complete(main())
            service.shutdown()
    finally:
        loop.close()
        server.stop()


def test_cancelled_worker_call(service: SelectionService, fleet: Server) -> None:
    """A worker's calls keep their order although the one before was cancelled."""

    async def main() -> None:
        for turn in range(20):
            service.upsert_worker({"worker_id": 3, "endpoint": f"http://{turn}", "block_size": 4}).cancel()
            await service.delete_worker(3)
        assert [row["worker_id"] for row in service.list_workers()] == [1, 2]

    asyncio.run(main())


FORK = """
import asyncio, os, signal, sys, threading
from concurrent.futures import Future
from select_service_client import Client
from select_service_client.dynamo import SelectionService
service = SelectionService(url=sys.argv[1])
async def prepare():
    await service.upsert_worker({"worker_id": 7, "endpoint": "http://e", "block_size": 4})
    await service.select_and_reserve({"selection_id": "a", "token_ids": [1]})
asyncio.run(prepare())
Client(sys.argv[1]).delete_worker(7)
# What other threads may be at.
service._order.enter("7")
service._restoring = Future()
holder = threading.Thread(target=service._lock.acquire)
holder.start()
holder.join()
child = os.fork()
if child == 0:
    signal.alarm(60)
    async def use():
        assert (await service.select({"token_ids": [1]}))["worker_id"] == 7
        assert service._bookings == {}
    asyncio.run(use())
    sys.exit(0)
os._exit(os.waitpid(child, 0)[1] != 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_during_a_restore(fleet: Server) -> None:
    """The child does not wait for threads that it does not have, and registers the worker itself."""
    for worker in (1, 2):
        fleet.send("DELETE", f"/workers/{worker}")
    process = subprocess.run(
        [sys.executable, "-c", FORK, fleet.url], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
