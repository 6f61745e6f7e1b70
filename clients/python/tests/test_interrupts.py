"""Calls that are interrupted at any place, overtaken, or refused: lanes go on, and nothing leaks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from conftest import MakeClient
from select_service_client import (
    Client,
    ConnectionFailed,
    NotFound,
    ServerError,
    _core,
    _exit,
    _json,
    _lanes,
    _plan,
)
from select_service_client._core import Core, Options
from select_service_client._lanes import Lanes
from select_service_client._plan import Answer, Failure, Plan, Request, Sleep, Wait
from server import Server, eventually, relay

LOST = Failure(httpx.ReadTimeout("nothing"), sent=True)
BOOKED = Answer(201, b'{"worker_id":1}')


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core(Options("http://localhost:9"))
    yield core
    core.background.close()


@pytest.fixture
def rescues(core: Core, monkeypatch: pytest.MonkeyPatch) -> list[Plan[None]]:
    """What would be freed in the background, and is not."""
    plans: list[Plan[None]] = []
    monkeypatch.setattr(core, "submit", lambda plan, _: plans.append(plan))
    return plans


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The next call of a function ends in Ctrl-C, after its work is done."""
    real = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


def lanes_in_use(core: Core) -> dict[str, Any]:
    """The lanes, once the next change has made those that were interrupted."""
    core.lanes.leave(core.lanes.enter("other"))
    return core.lanes._lanes


def ended(plan: Plan[Any], reply: object) -> Any:
    """The result of a plan that has to end with this reply, without another request."""
    with pytest.raises(StopIteration) as done:
        plan.send(reply)
    return done.value.value


# Wrong ids


def test_posted_block_of_a_wrong_id(make: MakeClient, fleet: Server) -> None:
    """It is refused, and hinders no other call."""
    client = make(fleet.url)
    with client.lease(token_ids=[1]) as lease:
        with pytest.raises(TypeError, match="id of a reservation"):
            client.post_output_block({"selection_id": lease.id})
        lease.prefill_complete()
    assert fleet.is_idle()


def test_faulty_change_is_dropped() -> None:
    """A change that fails would fail again: the next ones are made without it."""
    lanes = Lanes()
    unhashable: Any = {}
    for _ in range(2):
        with pytest.raises(TypeError):
            lanes.enter_late(unhashable)
    ticket = lanes.enter("r")
    assert ticket.turn.done()
    lanes.leave(ticket)
    assert lanes._lanes == {}


# Interrupts


@pytest.mark.parametrize(
    ("owner", "name"),
    [(_core, "_booking"), (_plan, "is_overload"), (_json, "decode"), (Lanes, "leave"), (Core, "release")],
)
def test_interrupt_behind_the_answer(
    fleet: Server, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """The server has booked, and the caller does not get to know it."""
    with Client(fleet.url) as client:
        interrupt_once(monkeypatch, owner, name)
        with pytest.raises(KeyboardInterrupt):
            client.select_and_reserve(token_ids=[1] * 9)
        eventually(fleet.is_idle)
        eventually(lambda: client._core.held() == set())
        assert lanes_in_use(client._core) == {}


def test_interrupt_behind_a_refusal(core: Core, rescues: list[Plan[None]]) -> None:
    """The server has not booked: there is nothing to free."""
    busy = Answer(503, b'{"error":"e","type":"service_unavailable"}')
    plan = core.book("/select_and_reserve", {"selection_id": "r"})
    assert isinstance(next(plan), Request)
    assert isinstance(plan.send(busy), Sleep)
    with pytest.raises(KeyboardInterrupt):
        plan.throw(KeyboardInterrupt())
    assert (rescues, core.held()) == ([], set())


@pytest.mark.parametrize("name", ["_come", "_do", "take"])
@pytest.mark.parametrize(
    "call",
    [
        lambda core: core.prefill_complete("r"),
        lambda core: core.output_block("r"),
        lambda core: core.free("r"),
        lambda core: core.book("/reservations", {"selection_id": "r"}),
    ],
    ids=["prefill_complete", "output_block", "free", "book"],
)
@pytest.mark.usefixtures("rescues")
def test_interrupt_at_the_entrance(
    core: Core, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[Core], Plan[Any]]
) -> None:
    """Ctrl-C while a place is being taken leaves none behind."""
    interrupt_once(monkeypatch, _lanes if name == "_come" else Lanes, name)
    with pytest.raises(KeyboardInterrupt):
        next(call(core))
    assert lanes_in_use(core) == {}
    assert core.lanes.enter("r").turn.done()


# Overtaking


def test_free_overtakes_a_free(core: Core) -> None:
    """One that hangs is not waited for, and is not repeated behind the other one."""
    first, second = core.free("r"), core.free("r")
    assert isinstance(next(first), Request)
    assert isinstance(next(second), Wait)
    assert isinstance(second.send(False), Request)
    assert isinstance(first.send(LOST), Sleep)
    with pytest.raises(ConnectionFailed):
        first.send(None)
    ended(second, Answer(200, b""))
    assert core.lanes._lanes == {}


def test_end_of_a_block_behind_a_free_that_hangs(fleet: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "OVERTAKE", 0.2)
    deletes: list[str] = []

    def fate(method: str, path: str) -> str:
        if method == "DELETE":
            deletes.append(path)
        return "hang" if method == "DELETE" and len(deletes) == 1 else "pass"

    def free(client: Client, booking: str) -> None:
        with pytest.raises(ConnectionFailed):
            client.free(booking)

    with relay(fleet, fate) as url:
        client = Client(url, timeout=60)
        with client.lease(token_ids=[1]) as lease:
            hanging = threading.Thread(target=free, args=(client, lease.id), daemon=True)
            hanging.start()
            eventually(lambda: deletes)
        assert hanging.is_alive()
        assert fleet.is_idle()
    hanging.join(60)
    assert not hanging.is_alive()
    client.close()


def test_frees_behind_a_booking(core: Core) -> None:
    """Both wait for it, and the second one then for the first as long as ever."""
    booking = core.book("/reservations", {"selection_id": "r"})
    next(booking)
    first, second = core.free("r"), core.free("r")
    next(first)
    assert isinstance(next(second), Wait)
    again = second.send(False)
    assert isinstance(again, Wait)
    assert again.seconds == _core.OVERTAKE
    ended(booking, BOOKED)
    assert isinstance(first.send(True), Request)
    assert isinstance(second.send(False), Request)
    first.close()
    second.close()


def test_overtaken_rescue(core: Core) -> None:
    """It leaves the booking to the free, which has not ended it until it says so."""
    core.hold("r")
    rescue, free = core._rescue("r", core.lanes.enter_last("r")), core.free("r")
    assert isinstance(next(rescue), Request)
    next(free)
    assert isinstance(free.send(False), Request)
    assert isinstance(rescue.send(LOST), Sleep)
    ended(rescue, None)
    assert core.held() == {"r"}
    ended(free, Answer(200, b""))
    assert core.held() == set()


@pytest.mark.parametrize("ahead", ["output_block", "prefill_complete", "booking"])
def test_what_waits_is_not_made_behind_the_free(core: Core, ahead: str) -> None:
    """Calls that are overtaken before their turn end quietly, and are never sent."""
    booking = core.book("/reservations", {"selection_id": "r"})
    first = booking if ahead == "booking" else getattr(core, ahead)("r")
    assert isinstance(next(first), Request)
    prefill, block, free = core.prefill_complete("r"), core.output_block("r"), core.free("r")
    waits = [next(plan) for plan in (prefill, block, free)]
    step = free.send(False)
    assert isinstance(step, Wait if ahead == "booking" else Request)
    for wait in waits[:2]:
        assert isinstance(wait, Wait)
        assert wait.future.done()
    assert ended(prefill, True) is None
    assert ended(block, True) is False
    first.close()
    free.close()


def test_turn_of_what_is_overtaken() -> None:
    """Whoever is woken by it finds that it is unwanted, however fast its thread is."""
    lanes = Lanes()
    tickets = [lanes.enter("r", brief=True) for _ in range(3)]
    free = lanes.enter_last("r")
    woken: list[bool] = []
    for ticket in tickets[1:]:
        ticket.turn.add_done_callback(lambda _, ticket=ticket: woken.append(ticket.unwanted))  # type: ignore[misc]
    lanes.overtake(free)
    assert woken == [True, True]
    assert free.turn.done()
    lanes.leave(free)
    assert lanes._lanes == {}


def test_prefill_complete_that_comes_late(core: Core) -> None:
    """The free that has overtaken it may have arrived first."""
    prefill, free = core.prefill_complete("r"), core.free("r")
    next(prefill)
    next(free)
    free.send(False)
    assert ended(prefill, Answer(404, b'{"error":"reservation r not found"}')) is None
    free.close()


# Refusals


def exit_with(monkeypatch: pytest.MonkeyPatch, core: Core, statuses: Iterator[int]) -> int:
    """Ends a client whose frees are answered so; returns how many there were."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        return httpx.Response(next(statuses))

    def client(self: Options, read: float | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, transport=httpx.MockTransport(answer))

    monkeypatch.setattr(Options, "client", client)
    monkeypatch.setattr(_exit, "BUDGET", 20)
    monkeypatch.setattr(_exit, "PAUSE", 0)
    _exit.close(core)
    return len(asked)


@pytest.mark.parametrize("doubtful", [False, True])
@pytest.mark.parametrize("last", [200, 404])
def test_exit_goes_on_after_errors(
    core: Core, monkeypatch: pytest.MonkeyPatch, last: int, doubtful: bool
) -> None:
    """A server that is in trouble has freed nothing; a 404 ends what is not on its way."""
    core.hold("r")
    if doubtful:
        core._doubtful.add("r")
    asked = exit_with(monkeypatch, core, iter([500, 502, 503, last, 200]))
    assert asked == (5 if doubtful and last == 404 else 4)
    assert core.held() == set()


def test_exit_gives_up_in_time(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that only fails holds the end up until the deadline."""
    now = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    core.hold("r")
    assert exit_with(monkeypatch, core, iter([500] * 1000)) == 20
    assert core.held() == {"r"}


@pytest.mark.parametrize(
    ("status", "doubtful", "owed"),
    [(200, False, False), (200, True, False), (404, False, False), (404, True, True), (500, False, True)],
)
def test_free_that_is_refused_is_owed(core: Core, status: int, doubtful: bool, owed: bool) -> None:
    core.hold("r")
    if doubtful:
        core._doubtful.add("r")
    plan = core.free("r")
    next(plan)
    error = {200: StopIteration, 404: NotFound, 500: ServerError}[status]
    with pytest.raises(error):
        plan.send(Answer(status, b'{"error":"e"}'))
    assert core.held() == ({"r"} if owed else set())
