"""What the garbage collector ends, wherever it runs, and what it leaves."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import QUICK
from select_service_client import Client, _background, _lanes
from select_service_client._core import Core, Options
from select_service_client._lanes import Lanes
from server import Server, eventually, free_port


def in_time(work: Callable[[], None]) -> None:
    """Does it in a thread, where a deadlock is a failure and not the end of the tests."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "deadlock"
    assert errors == []


def threads() -> int:
    return sum(thread.name == "select-service-client" for thread in threading.enumerate())


class Cycle:
    """Garbage that only the collector finds; it holds what is to be ended."""

    def __init__(self, held: Any) -> None:
        self.held, self.me = held, self


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_leave_inside_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped call of the same lane leaves while the next one is entering it."""

    class Collecting(deque[Any]):
        def append(self, item: Any) -> None:
            gc.collect()
            super().append(item)

    lanes = Lanes()
    monkeypatch.setattr(_lanes, "deque", Collecting)

    def call() -> Iterator[None]:
        ticket = lanes.enter("r")
        try:
            yield
        finally:
            lanes.leave(ticket)
            lanes.close("r")

    def work() -> None:
        for _ in range(3):
            plan = call()
            next(plan)
            Cycle(plan)
            del plan
            ticket = lanes.enter("r")
            assert ticket.turn.done()
            lanes.leave(ticket)
            assert lanes._lanes == {}
            lanes.open("r")

    in_time(work)


@pytest.mark.usefixtures("no_collection")
def test_booking_that_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is freed in the background, also if that is only just being started."""
    made = _background._Worker

    def worker(*args: Any) -> Any:
        gc.collect()
        return made(*args)

    monkeypatch.setattr(_background, "_Worker", worker)
    core = Core(Options(f"http://127.0.0.1:{free_port()}", retry=QUICK))

    def work() -> None:
        plan = core.book("/reservations", {"selection_id": "r"})
        next(plan)
        Cycle(plan)
        del plan
        core.post_output_block("other")
        assert core.held() == {"r"}
        [worker] = core.background._workers.values()
        assert worker.thread.is_alive()
        core.background.close(timeout=0)

    in_time(work)


def test_interrupted_change() -> None:
    """A change that an interrupt ends half way is made by the next one."""
    lanes = Lanes()

    class Interrupting(deque[Any]):
        def remove(self, item: Any) -> None:
            super().remove(item)
            raise KeyboardInterrupt

    first = lanes.enter("r")
    second = lanes.enter("r")
    lanes._lanes["r"] = Interrupting(lanes._lanes["r"])
    with pytest.raises(KeyboardInterrupt):
        lanes.leave(first)
    lanes.leave(lanes.enter("other"))
    assert second.turn.done()


def test_dropped_clients_leave_nothing(fleet: Server) -> None:
    """Neither threads nor open files, of clients that nobody closes."""
    gc.collect()
    before = threads(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(10):
        with Client(fleet.url).lease(token_ids=[1]) as lease:
            lease.post_output_block()
    del lease

    def gone() -> bool:
        gc.collect()
        files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        return (threads(), files) <= before and files <= before[1]

    eventually(gone)
    assert fleet.is_idle()


def test_thread_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is submitted from elsewhere meanwhile ends all the same."""
    core = Core(Options(f"http://127.0.0.1:{free_port()}", retry=QUICK))
    start = threading.Thread.start
    others: list[Any] = []

    async def work() -> str:
        return "done"

    def failing(thread: threading.Thread) -> None:
        if others or thread.name != "select-service-client":
            return start(thread)
        others.append(None)
        others[0] = core.background.start(work())
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", failing)
    try:
        with pytest.raises(RuntimeError, match="new thread"):
            core.background.start(work())
        assert others[0].result(60) == "done"
        assert core.background.start(work()).result(60) == "done"
    finally:
        core.background.close()
