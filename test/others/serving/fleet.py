"""A history of requests on engines that the service watches."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from history import Prompt
from service import Router

MODEL = "tiny"
PATIENCE = 60.0  # seconds until something that has to happen counts as missing

Tokens = tuple[int, ...]


class Engine(Protocol):
    """An engine that runs requests, with all of its ranks."""

    ranks: int
    block_size: int
    vocabulary: int
    record: dict[str, Any]  # what a worker's registration says of it

    def complete(self, rank: int, tokens: Tokens, output: int) -> int:
        """Runs a request; the tokens that the engine says it had in its cache."""

    def restart(self) -> None:
        """The process dies; another one publishes on the same ports."""


class Fleet:
    """The engines as workers of the service."""

    def __init__(self, router: Router, engines: list[Engine], dice: random.Random):
        self.router = router
        self.engines = engines
        self.dice = dice
        self.block_size = engines[0].block_size
        self.ranks = [(worker, rank) for worker, engine in enumerate(engines) for rank in range(engine.ranks)]
        self._markers: dict[tuple[int, int], Tokens] = {}  # the newest of each rank
        self._register()
        self.settle(self.ranks)

    def tokens(self, at: tuple[int, int], prompt: Tokens) -> int:
        """The tokens that a rank has of the prompt, as the service says."""
        worker, rank = at
        return self.router.tokens(worker, MODEL, Prompt(prompt), self.block_size)[rank]

    def select(self, prompt: Tokens) -> tuple[tuple[int, int], int]:
        """The rank that the service chooses, and the tokens that it is said to have."""
        body = {"model_name": MODEL, "token_ids": prompt}
        answer = self.router.call("POST", "/select", body)
        rank = answer["dp_rank"]
        return (answer["worker_id"], rank), answer["overlap"]["dp"].get(str(rank), 0)

    def run(self, at: tuple[int, int], prompt: Tokens, output: int) -> int:
        """Runs a request; the tokens that the engine had in its cache."""
        worker, rank = at
        return self.engines[worker].complete(rank, prompt, output)

    def settle(self, ranks: list[tuple[int, int]]) -> None:
        """Waits until all that the ranks have published is applied.

        A stream is applied in order, so a block that only the last request has tells.
        """
        for at in ranks:
            self._markers[at] = self.draw(self.block_size + 1)
            self.run(at, self._markers[at], 1)
        self._await_markers(ranks)

    def restart_service(self) -> None:
        """The service starts without an index; the engines publish nothing meanwhile."""
        self.router.restart()
        self._register()
        self._await_markers(self.ranks)

    def draw(self, count: int) -> Tokens:
        return tuple(self.dice.randrange(3, self.engines[0].vocabulary) for _ in range(count))

    def _register(self) -> None:
        for worker, engine in enumerate(self.engines):
            self.router.register(worker, MODEL, engine.record)

    def _await_markers(self, ranks: list[tuple[int, int]]) -> None:
        deadline = time.monotonic() + PATIENCE
        for at in ranks:
            while self.tokens(at, self._markers[at]) != self.block_size:
                assert time.monotonic() < deadline, f"what {at} publishes is not applied"
                time.sleep(0.005)


def play(router: Router, engines: list[Engine], dice: random.Random, count: int) -> None:
    """Compares what the service predicts with what the engine then finds, count times.

    New prompts go where /select says, others once more to the rank that had them. With
    evictions, requests at once, a restart of an engine and one of the service.
    """
    wrong = []
    hits = evicted = 0
    fleet = Fleet(router, engines, dice)
    size = fleet.block_size
    stems = [fleet.draw(6 * size) for _ in range(6)]
    ran: list[tuple[tuple[int, int], Tokens]] = []  # where, what; since its engine's start
    for step in range(count):
        if step == count // 3:
            engines[0].restart()
            ran = [(at, prompt) for at, prompt in ran if at[0] != 0]
            fleet.settle([at for at in fleet.ranks if at[0] == 0])
        elif step == 2 * count // 3:
            fleet.restart_service()
        elif step % 10 == 9:
            _run_at_once(fleet, stems)

        repeated = bool(ran) and dice.random() < 0.4
        if repeated:
            at, prompt = dice.choice(ran)
            predicted = fleet.tokens(at, prompt)
        else:
            stem = dice.choice(stems)
            prompt = stem[: dice.randrange(len(stem) + 1)] + fleet.draw(dice.randrange(1, 10 * size))
            at, predicted = fleet.select(prompt)
        # An engine computes at least one token of a prompt.
        whole = (len(prompt) - 1) // size * size
        cached = fleet.run(at, prompt, dice.randrange(1, 9))
        if min(predicted, whole) != cached:
            wrong.append(f"request {step} on {at}: {predicted} predicted, {cached} of {whole} cached")
        hits += cached > 0
        evicted += repeated and cached < whole
        ran.append((at, prompt))
        fleet.settle([at])
    print(f"{count} requests, {hits} with a hit, {evicted} repeats of which blocks had been evicted")
    assert not wrong, "\n".join(wrong)
    assert hits > count // 4 and evicted > 0, "the history shows nothing"


def _run_at_once(fleet: Fleet, stems: list[Tokens]) -> None:
    """Requests with equal beginnings that run side by side on every rank."""
    requests = [
        (at, fleet.dice.choice(stems) + fleet.draw(20), fleet.dice.randrange(1, 9))
        for at in fleet.ranks
        for _ in range(3)
    ]
    with ThreadPoolExecutor(len(requests)) as pool:
        list(pool.map(lambda request: fleet.run(*request), requests))
    fleet.settle(fleet.ranks)
