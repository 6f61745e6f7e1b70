"""Calls step by step, with a clock of their own: no server, and no waiting."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from select_service_client import Backoff, ConnectionFailed, Overloaded, Retry, _core
from select_service_client._core import Core, Options
from select_service_client._plan import Answer, Failure, Plan, Request, Sleep, Wait

UNSENT = Failure(httpx.ConnectError("refused"), sent=False)
LOST = Failure(httpx.ReadTimeout("nothing"), sent=True)
BOOKED = Answer(201, b'{"worker_id":1}')


class Clock:
    """Time that passes when a plan sleeps, or lets an attempt time out."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(random, "uniform", lambda a, b: b)
    return clock


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core(Options("http://localhost:9"))
    yield core
    core.background.close()


def steps(plan: Plan[Any], clock: Clock, replies: Any) -> list[Any]:
    """Drives a plan to its end and returns what it wanted done."""
    done: list[Any] = []
    step: Any = next(plan)
    try:
        while True:
            done.append(step)
            reply = None
            if isinstance(step, Sleep):
                clock.now += step.seconds
            elif isinstance(step, Request):
                reply = replies(step)
                if reply is LOST and step.timeout is not None:
                    clock.now += step.timeout
            else:
                reply = True
            step = plan.send(reply)
    except StopIteration:
        return done


def losing(timeouts: list[Any]) -> Callable[[Request], Failure]:
    """Loses every request and notes how long it would have waited."""

    def reply(request: Request) -> Failure:
        timeouts.append(request.timeout)
        return LOST

    return reply


def test_deadline_bounds_each_attempt(clock: Clock) -> None:
    core = Core(Options("http://localhost:9", retry=Retry(deadline=10), timeout=6))
    asked: list[Any] = []
    with pytest.raises(ConnectionFailed):
        steps(core.call(core.request("GET", "/loads")), clock, losing(asked))
    assert asked == [6, pytest.approx(10 - 6 - 0.2)]
    assert clock.now <= 10


def test_free_of_a_lease_is_bounded(core: Core, clock: Clock) -> None:
    with pytest.raises(ConnectionFailed):
        steps(core.free("r", limit=5), clock, lambda _: LOST)
    assert clock.now <= 5


def test_renewal_is_bounded(core: Core, clock: Clock) -> None:
    """A third of the lease in all, and two attempts in it."""
    asked: list[Any] = []
    with pytest.raises(ConnectionFailed):
        steps(core.renew("r", 10), clock, losing(asked))
    assert asked[0] == 5
    assert len(asked) == 2
    assert clock.now <= 10


def test_backoff_has_no_end() -> None:
    """Attempts beyond the range of a float's exponent wait the cap."""
    assert Backoff(attempts=10**9, cap=5).wait(5000) == 5
    assert Backoff(attempts=10**9, base=0, jitter=0).wait(5000) == 0


def test_retry_after_is_capped(core: Core, clock: Clock) -> None:
    busy = Answer(503, b'{"error":"e","type":"service_unavailable"}', retry_after=3600)
    with pytest.raises(Overloaded):
        steps(core.call(core.request("GET", "/loads")), clock, lambda _: busy)
    assert clock.now == 4 * 60


def test_rescue_takes_its_time(core: Core, clock: Clock) -> None:
    """A booking that is late is freed when it comes, within five seconds."""
    missing = Answer(404, b'{"error":"reservation r not found"}')
    core.hold("r")
    core._doubtful.add("r")
    done = steps(core._rescue("r", core.lanes.enter_last("r")), clock, lambda _: missing)
    assert len([step for step in done if isinstance(step, Request)]) >= 7
    assert clock.now == pytest.approx(5)
    assert core.held() == set()

    core.hold("r")
    core._doubtful.add("r")
    replies = iter([missing, LOST, Answer(200, b"")])
    done = steps(core._rescue("r", core.lanes.enter_last("r")), clock, lambda _: next(replies))
    assert isinstance(done[-1], Request)


def test_rescue_of_a_cancelled_free(core: Core, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The booking was made: once the server does not know it, it is gone."""
    rescues: list[Plan[None]] = []
    monkeypatch.setattr(core, "submit", lambda plan, _: rescues.append(plan))
    for call in (core.free("r"), core.book("/reservations", {"selection_id": "s"})):
        next(call)
        call.close()
    asked = [
        len([step for step in steps(plan, clock, lambda _: Answer(404, b"")) if isinstance(step, Request)])
        for plan in rescues
    ]
    assert asked[0] == 1
    assert asked[1] > 1


def test_rescue_that_is_cancelled_owes_its_booking(core: Core) -> None:
    core.hold("r")
    plan = core._rescue("r", core.lanes.enter_last("r"))
    next(plan)
    plan.close()
    assert core.held() == {"r"}
    assert core.lanes._lanes == {}


def test_output_block_is_not_repeated_behind_the_free(core: Core) -> None:
    plan = core.output_block("r")
    assert isinstance(next(plan), Request)
    assert isinstance(plan.send(UNSENT), Sleep)
    free = core.free("r")
    assert next(free) == Wait(core.lanes._lanes["r"][1].turn, _core.OVERTAKE)
    with pytest.raises(StopIteration) as done:
        plan.send(None)
    assert done.value.value is False
    assert isinstance(free.send(True), Request)
    free.close()
    core.background.close()


def test_booking_is_not_overtaken(core: Core) -> None:
    """Its free would find nothing, and the booking would stay."""
    booking = core.book("/reservations", {"selection_id": "r"})
    assert isinstance(next(booking), Request)
    free = core.free("r")
    assert next(free) == Wait(core.lanes._lanes["r"][1].turn, _core.OVERTAKE)
    assert free.send(False) == Wait(core.lanes._lanes["r"][1].turn)
    with pytest.raises(StopIteration):
        booking.send(BOOKED)
    assert isinstance(free.send(True), Request)


def test_wrong_request_is_not_repeated(core: Core) -> None:
    """Nothing was sent, so that there is nothing to free either."""
    plan = core.book("/reservations", {"selection_id": "r"})
    next(plan)
    with pytest.raises(ValueError, match="header"):
        plan.send(Failure(httpx.LocalProtocolError("Illegal header value"), sent=False, wrong=True))
    assert core.held() == set()


def test_prompt_is_encoded_once(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repetition has what the first attempt had, also of an iterator."""
    monkeypatch.setattr(core, "options", Options(core.options.url, retry=Retry(connection=Backoff(2, 0, 0))))
    request = core.with_id({"selection_id": "r", "block_mm_infos": iter([None]), "if_exists": "error"})
    plan = core.book("/select_and_reserve", request)
    first = next(plan)
    assert isinstance(first, Request)
    assert first.content == b'{"selection_id":"r","block_mm_infos":[null]}'
    plan.send(LOST)
    again = plan.send(None)
    assert isinstance(again, Request)
    assert again.content == b'{"selection_id":"r","block_mm_infos":[null],"if_exists":"return"}'
    assert again.headers == first.headers
    with pytest.raises(StopIteration):
        plan.send(BOOKED)


def test_time_of_a_selection(core: Core) -> None:
    """It may wait in the server's queue; nothing else does."""
    timeouts = {path: core.request("POST", path, {}).timeout for path in ("/select", "/reservations")}
    assert timeouts == {"/select": None, "/reservations": 30}
    impatient = Core(Options("http://localhost:9", selection_timeout=7))
    assert impatient.request("POST", "/select_and_reserve", {}).timeout == 7
    # Those that wait do not keep the frees, which they wait for, from a connection.
    assert core.options.http()["limits"].max_connections is None
    assert math.inf > (core.options.client().timeout.read or 0) > 0
