"""Plays a history to an engine's cache and to a service, and compares the two."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

from history import (
    Compare,
    Drain,
    History,
    Lose,
    Prompt,
    Register,
    Reset,
    RestartEngine,
    RestartService,
    Step,
    Submit,
)
from outlet import PATIENCE, Marker, Outlet
from relay import Relay

IGNORED = 2.0  # seconds until markers that a service may ignore count as ignored

_numbers = itertools.count(1)


class Cache(Protocol):
    """What an engine's rank does, whichever engine it is."""

    @property
    def busy(self) -> bool: ...
    def restart(self) -> None: ...
    def submit(self, arrival: Submit) -> None: ...
    def step(self) -> list[Any]: ...
    def reset(self) -> list[Any]: ...
    def hit(self, prompt: Prompt) -> int: ...
    def beyond(self, prompt: Prompt) -> tuple[int, int]: ...
    def marker(self, name: int) -> Marker: ...
    def block(self, prompt: Prompt, start: int, size: int) -> tuple[tuple[Any, ...], Any]:
        """The tokens of a prompt's block and its other keys, as events have them."""


class Service(Protocol):
    """Who says what engines have cached: a process, or a model of one."""

    @property
    def immediate(self) -> bool: ...
    def register(self, worker: int, model: str, record: dict[str, Any]) -> None: ...
    def delete(self, worker: int) -> None: ...
    def restart(self) -> None: ...
    def started(self, rank: int, block: Callable[[Prompt, int, int], Any]) -> None: ...
    def hear(self, rank: int, event: Any) -> None: ...
    def tokens(self, worker: int, model: str, prompt: Prompt, block_size: int) -> dict[int, int]: ...
    def beyond(self, worker: int, model: str, prompt: Prompt, block_size: int) -> dict[int, tuple[int, int]]: ...
    def select(self, model: str, prompt: Prompt, block_size: int) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Engine:
    """How a scenario's ranks are made."""

    events: ModuleType  # the engine's kv_events
    cache: Callable[[], Cache]
    block_size: int
    ranks: int = 1
    ring: int = 10_000
    offloads: bool = False  # host and disk are compared too
    lossy: bool = False  # between engine and service is a network that may lose messages
    record: dict[str, Any] = field(default_factory=dict)  # of the worker's registration


@dataclass(frozen=True)
class Difference:
    """A prompt of which the service says other than the engine."""

    place: int  # of the comparison in the history
    prompt: Prompt
    rank: int
    engine: int  # tokens
    service: int
    route: str


@dataclass
class Outcome:
    compared: int = 0
    equal: int = 0
    over: int = 0
    under: int = 0
    hits: int = 0  # tokens that the engine hit, over all comparisons
    differences: list[Difference] = field(default_factory=list)

    def add(self, difference: Difference) -> None:
        self.compared += 1
        self.hits += difference.engine
        if difference.service == difference.engine:
            self.equal += 1
            return
        if difference.service > difference.engine:
            self.over += 1
        else:
            self.under += 1
        self.differences.append(difference)


class _Rank:
    """One data-parallel rank: a cache and its publisher."""

    def __init__(self, engine: Engine, rank: int, log: Callable[[int, Any], None]):
        self.cache = engine.cache()
        self.outlet = Outlet(engine.events, rank, engine.ring)
        self.relay = Relay(self.outlet.events) if engine.lossy else None
        self._rank = rank
        self._log = log

    def publish(self, events: list[Any]) -> None:
        if not events:
            return
        for event in events:
            self._log(self._rank, event)
        self.outlet.publish(events)

    def step(self) -> None:
        self.publish(self.cache.step())

    def drain(self) -> None:
        for _ in range(20_000):
            if not self.cache.busy:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    @property
    def events(self) -> str:
        """The endpoint to register for live events."""
        return self.relay.events if self.relay else self.outlet.events

    def restart(self) -> None:
        self.cache.restart()
        self.outlet.restart()

    def close(self) -> None:
        if self.relay:
            self.relay.close()
        self.outlet.close()


class _Player:
    def __init__(self, engine: Engine, service: Service, strict: bool, log: Callable[[int, Any], None]):
        self._engine = engine
        self._service = service
        self._strict = strict
        self._number = next(_numbers)
        self._model = f"oracle-{self._number}"

        def hear(rank: int, event: Any) -> None:
            service.hear(rank, event)
            log(rank, event)

        self._ranks = [_Rank(engine, rank, hear) for rank in range(engine.ranks)]
        for i, rank in enumerate(self._ranks):
            service.started(i, rank.cache.block)
        self._markers: dict[int, Marker] = {}  # each rank's last
        self._marker_names = itertools.count(1 << 32)
        self._registered = False
        self._deaf: set[int] = set()  # ranks of which not even a marker was found
        self.outcome = Outcome()

    def play(self, history: History) -> None:
        for place, operation in enumerate(history):
            match operation:
                case Submit(rank=rank):
                    self._ranks[rank].cache.submit(operation)
                case Step(count=count, rank=rank):
                    for _ in range(count):
                        if self._ranks[rank].cache.busy:
                            self._ranks[rank].step()
                case Drain(rank=rank):
                    self._ranks[rank].drain()
                case Reset(rank=rank):
                    self._ranks[rank].publish(self._ranks[rank].cache.reset())
                case RestartEngine(rank=rank):
                    self._ranks[rank].restart()
                    self._service.started(rank, self._ranks[rank].cache.block)
                    self._markers.pop(rank, None)
                    if self._registered:
                        self._await_rank(rank, live=False)
                case Lose(count=count, rank=rank):
                    if relay := self._ranks[rank].relay:
                        relay.lose(count)
                case Register():
                    self._register()
                case RestartService():
                    if self._registered:
                        self._service.restart()
                        self._register()
                case Compare(prompts=prompts):
                    if self._registered:
                        self._compare(place, prompts)

    def close(self) -> None:
        if self._registered:
            self._service.delete(self._number)
        for rank in self._ranks:
            rank.close()

    def _register(self) -> None:
        replays = [rank.outlet.replay for rank in self._ranks]
        self._service.register(
            self._number,
            self._model,
            {
                "block_size": self._engine.block_size,
                "max_num_batched_tokens": 8192,
                "data_parallel_size": len(self._ranks),
                "kv_events_endpoints": {str(i): rank.events for i, rank in enumerate(self._ranks)},
                "replay_endpoints": {str(i): replay for i, replay in enumerate(replays)},
            }
            | ({"replay_endpoint": replays[0]} if len(replays) == 1 else {})
            | self._engine.record,
        )
        self._registered = True
        for rank in range(len(self._ranks)):
            self._await_rank(rank, live=False)

    def _compare(self, place: int, prompts: tuple[Prompt, ...]) -> None:
        for rank in range(len(self._ranks)):
            self._await_rank(rank, live=not self._engine.lossy)
        for prompt in prompts:
            truth = [rank.cache.hit(prompt) for rank in self._ranks]
            rows = self._service.tokens(self._number, self._model, prompt, self._engine.block_size)
            for rank, tokens in enumerate(truth):
                self._note(place, prompt, rank, tokens, rows.get(rank, 0), "/overlap_scores")
            if self._engine.offloads:
                self._compare_beyond(place, prompt)
            rank, found = self._service.select(self._model, prompt, self._engine.block_size)
            self._note(place, prompt, rank, truth[rank], found, "/select")

    def _compare_beyond(self, place: int, prompt: Prompt) -> None:
        rows = self._service.beyond(self._number, self._model, prompt, self._engine.block_size)
        for rank, cache in enumerate(rank.cache for rank in self._ranks):
            said = rows.get(rank, (0, 0))
            for i, tokens in enumerate(cache.beyond(prompt)):
                self._note(place, prompt, rank, tokens, said[i], f"/overlap_scores, {('host', 'disk')[i]}")

    def _note(self, place: int, prompt: Prompt, rank: int, engine: int, service: int, route: str) -> None:
        self.outcome.add(Difference(place, prompt, rank, engine, service, route))

    def _await_rank(self, rank: int, live: bool) -> None:
        """Waits until the service has applied all that the rank has published.

        A stream is applied in order, so a marker at its end tells. Where the
        subscription may still be on its way, or the network loses messages (live:
        neither), markers are repeated.
        """
        if self._service.immediate:
            return
        patience = 0.1 if rank in self._deaf else PATIENCE if self._strict else IGNORED
        deadline = time.monotonic() + patience
        markers: list[Marker] = []
        while not any(self._known(rank, marker) for marker in markers):
            if time.monotonic() > deadline:
                assert not self._strict, "the service does not apply what the engine publishes"
                self._deaf.add(rank)
                return
            if not markers or not live:
                markers.append(self._mark(rank))
            time.sleep(0.002 if live else 0.03)
        self._deaf.discard(rank)

    def _mark(self, rank: int) -> Marker:
        """Publishes a marker in the place of the rank's last one."""
        marker = self._ranks[rank].cache.marker(next(self._marker_names))
        last = self._markers.get(rank)
        self._ranks[rank].outlet.publish((last.removed if last else []) + marker.stored)
        self._markers[rank] = marker
        return marker

    def _known(self, rank: int, marker: Marker) -> bool:
        size = self._engine.block_size
        return self._service.tokens(self._number, self._model, marker.prompt, size).get(rank, 0) > 0


def play(
    engine: Engine,
    history: History,
    service: Service,
    *,
    strict: bool = True,
    log: Callable[[int, Any], None] = lambda _rank, _event: None,
) -> Outcome:
    """Plays a history to a new worker of the service; log gets each rank's events.

    A service that does not take a rank's events is an error, unless it is measured
    without being strict: then it is asked all the same.
    """
    player = _Player(engine, service, strict, log)
    try:
        player.play(history)
    finally:
        player.close()
    return player.outcome


def shortest(history: History, fails: Callable[[History], bool]) -> History:
    """A history of which nothing more can be left out while it still fails.

    Halves, quarters, ... are tried first, then single operations, and last single
    prompts of the comparisons (delta debugging).
    """
    chunk = max(len(history) // 2, 1)
    while True:
        start, shrunk = 0, False
        while start < len(history):
            shorter = history[:start] + history[start + chunk :]
            if fails(shorter):
                history, shrunk = shorter, True
            else:
                start += chunk
        if chunk == 1 and not shrunk:
            return history
        chunk = max(chunk // 2, 1)


def narrowed(history: History, difference: Difference) -> History:
    """The history up to a difference, with its prompt as the only comparison."""

    def kept() -> Iterator[Any]:
        for operation in history[: difference.place]:
            if not isinstance(operation, Compare):
                yield operation
        yield Compare((difference.prompt,))

    return tuple(kept())
