"""Calls about one booking arrive in the order of their calling."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest

from conftest import MakeClient
from select_service_client import AsyncClient, Client, NotFound, _core
from select_service_client._lanes import MAX_FREED, MAX_WAITING, Lanes
from server import Server, eventually, relay


class Slow:
    """Holds requests back, each for another time, and notes them as they arrive."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._random = random.Random(1)

    def __call__(self, method: str, path: str) -> str:
        self.seen.append(f"{method} {path.removeprefix('/v1.6/reservations')}")
        time.sleep(self._random.uniform(0, 0.03))
        return "pass"


def test_output_blocks_do_not_overtake_the_free(make: MakeClient, fleet: Server) -> None:
    """However many there are, those that are made come before the free; it drops the others."""
    fate = Slow()
    with relay(fleet, fate) as url:
        client = make(url)
        for id_ in ("a", "b"):
            client.create_reservation(selection_id=id_, worker_id=1, token_ids=[1])
        for _ in range(10):
            client.post_output_block("a", decay_fraction=0.5)
            client.post_output_block("b")
        client.free("a")
        client.post_output_block("a")  # late
        assert client.output_block("a") is False
        client.free("b")
    assert fleet.is_idle()
    for id_ in ("a", "b"):
        *blocks, free = [call for call in fate.seen if f"/{id_}" in call]
        assert free == f"DELETE /{id_}"
        assert blocks == [f"POST /{id_}/output_block"] * len(blocks)
        assert len(blocks) <= 10


def test_threads(fleet: Server) -> None:
    """Threads that race with the free get no error, and leave nothing behind."""
    with Client(fleet.url) as client:
        for turn in range(20):
            id_ = f"r{turn}"
            client.create_reservation(selection_id=id_, worker_id=1, token_ids=[1])
            errors: list[BaseException] = []

            def report(id_: str = id_, errors: list[BaseException] = errors) -> None:
                try:
                    for _ in range(5):
                        client.output_block(id_)
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=report) for _ in range(4)]
            for thread in threads:
                thread.start()
            client.free(id_)
            for thread in threads:
                thread.join()
            assert errors == []
    assert fleet.is_idle()


def test_tasks(fleet: Server) -> None:
    async def main() -> None:
        async with AsyncClient(fleet.url) as client:
            for turn in range(20):
                id_ = f"r{turn}"
                await client.create_reservation(selection_id=id_, worker_id=1, token_ids=[1])
                blocks = [asyncio.create_task(client.output_block(id_)) for _ in range(8)]
                await asyncio.sleep(0.002 * (turn % 3))
                await client.free(id_)
                await asyncio.gather(*blocks)

    asyncio.run(main())
    assert fleet.is_idle()


@pytest.mark.parametrize("brief", ["output_block", "prefill_complete"])
def test_free_does_not_wait_for_what_hangs(
    make: MakeClient, fleet: Server, monkeypatch: pytest.MonkeyPatch, brief: str
) -> None:
    """The end of a block overtakes a call without an answer, and drops the blocks behind it."""
    monkeypatch.setattr(_core, "OVERTAKE", 0.2)
    seen: list[str] = []
    arrived = threading.Event()

    def fate(method: str, path: str) -> str:
        seen.append(path.rsplit("/", 1)[1] if method == "POST" else method)
        if path.endswith(brief):
            arrived.set()
            return "hang"
        return "pass"

    with relay(fleet, fate) as url:
        client = make(url, timeout=60)  # the relay ends what hangs
        with client.lease(token_ids=[1] * 9, lease_seconds=600) as lease:
            core = client._core
            first = core.submit(getattr(core, brief)(lease.id))
            arrived.wait()
            for _ in range(8):
                lease.post_output_block()
            waiting = core.submit(core.output_block(lease.id))
            eventually(lambda: len(core.lanes._lanes[lease.id]) == 10)
        assert fleet.is_idle()
        assert waiting.result(60) is False
        assert not first.done()
        assert seen == ["select_and_reserve", brief, "DELETE"]


def test_id_is_used_again(make: MakeClient, fleet: Server) -> None:
    """Once booked anew, an id counts blocks again."""
    client = make(fleet.url)
    for _ in range(2):
        client.create_reservation(selection_id="r", worker_id=1, token_ids=[1])
        assert client.output_block("r") is True
        client.free("r")
        assert client.output_block("r") is False
        with pytest.raises(NotFound):
            client.prefill_complete("r")


def test_booking_and_free_at_once(make: MakeClient, fleet: Server) -> None:
    """The free of a booking that is on its way waits for it."""
    arrived = threading.Event()

    def fate(method: str, path: str) -> str:
        if method == "POST":
            arrived.set()
            eventually(lambda: len(client._core.lanes._lanes["r"]) == 2)
        return "pass"

    with relay(fleet, fate) as url, Client(url) as client:
        booking = threading.Thread(
            target=lambda: client.create_reservation(selection_id="r", worker_id=1, token_ids=[1])
        )
        booking.start()
        arrived.wait()
        client.free("r")
        booking.join()
    assert fleet.is_idle()


@pytest.mark.parametrize(("wrong", "error"), [("", ValueError), (5, TypeError), (None, TypeError)])
def test_wrong_ids_take_no_place(make: MakeClient, fleet: Server, wrong: Any, error: type[Exception]) -> None:
    """The second call is refused as the first one is, instead of waiting for it."""
    client = make(fleet.url)
    for call in (client.free, client.output_block, client.prefill_complete, client.renew, client.free):
        with pytest.raises(error, match="id of a reservation"):
            call(wrong)
    assert client._core.lanes._lanes == {}
    with pytest.raises(TypeError, match="id of a reservation"):
        client.select_and_reserve(selection_id=5, token_ids=[1])


def test_bounds() -> None:
    """Neither what waits nor what is remembered grows without limit."""
    lanes = Lanes()
    tickets = [lanes.enter_late("r") for _ in range(MAX_WAITING + 10)]
    assert tickets.count(None) == lanes.dropped == 10
    free = lanes.enter("r")  # never refused
    for ticket in tickets:
        if ticket is not None:
            assert ticket.turn.done()
            lanes.leave(ticket)
            lanes.leave(ticket)
    assert free.turn.done()
    lanes.leave(free)
    for id_ in range(MAX_FREED + 10):
        lanes.close(str(id_))
    assert lanes.enter_late("10") is None
    remembered = lanes.enter_late("9")
    assert remembered is not None
    lanes.leave(remembered)
    assert lanes._lanes == {}
