"""What is played, and how far the service may be from the engine.

A scenario is an engine's cache, the requests that it gets, and an expectation.
Each is played as several histories, which differ in their seed alone.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import vllm_cache
from history import Load
from play import Engine, Outcome


@dataclass(frozen=True)
class Expectation:
    """The shares of comparisons in which the service may differ from the engine.

    Whatever is above 0 has a reason: the engine's line that leaves out of its
    events what would have to be known, or what the service does not do yet.
    """

    over: float = 0.0  # the service promises more than the engine has
    under: float = 0.0  # the service promises less
    why: str = ""

    def met(self, outcome: Outcome) -> bool:
        return (
            outcome.compared > 0
            and outcome.hits > 0
            and outcome.over <= self.over * outcome.compared
            and outcome.under <= self.under * outcome.compared
        )


EXACT = Expectation()
# Today's index owns a block or does not; the engine has several copies of it.
SET = Expectation(under=0.7, why="not yet: the copies of equal blocks are not counted")


@dataclass(frozen=True)
class Scenario:
    name: str
    engine: Engine
    load: Load
    expected: Expectation = EXACT
    histories: int = 3


def _vllm(*specs: Any, blocks: int = 200, budget: int = 128, seats: int = 8, **engine: Any) -> Engine:
    main = specs[0].block_size
    return Engine(
        events=vllm_cache.EVENTS,
        cache=functools.partial(vllm_cache.Cache, specs, blocks, budget, seats),
        marker=functools.partial(vllm_cache.marker, block_size=main, groups=len(specs)),
        block_size=main,
        **{"record": {"total_kv_blocks": blocks}} | engine,
    )


_FULL = vllm_cache.full(16)
_ONE_BY_ONE = Load(arrivals=(1, 1), steps=(0, 0))
_UNLIKE = replace(_ONE_BY_ONE, repeats=0.0, aligned=0.0, output=(1, 3))

VLLM: list[Scenario] = [
    Scenario("one by one, no repeats", _vllm(_FULL, blocks=4000), _UNLIKE),
    Scenario("one by one, exact repeats", _vllm(_FULL, blocks=72), _ONE_BY_ONE, SET),
    Scenario("equal prefixes at once", _vllm(_FULL, blocks=120), Load(arrivals=(2, 5), repeats=0.5), SET),
    Scenario("eviction by pressure", _vllm(_FULL, blocks=64), Load(), SET),
    Scenario(
        "chunked prefill, decoding, preemption",
        _vllm(_FULL, blocks=48, budget=40, seats=12),
        Load(arrivals=(2, 4), output=(20, 90), steps=(5, 40)),
        SET,
    ),
    Scenario("resets", _vllm(_FULL, blocks=80), Load(resets=0.1), SET),
    Scenario("engine restarts", _vllm(_FULL, blocks=80), Load(engine_restarts=0.1), SET),
    Scenario("prompts that skip the cache", _vllm(_FULL, blocks=128), Load(skips=0.4), SET),
    Scenario("late join, full replay", _vllm(_FULL, blocks=96), Load(late=True), SET),
    Scenario("service restarts, full replay", _vllm(_FULL, blocks=96), Load(service_restarts=0.1), SET),
    Scenario(
        "three data-parallel ranks", _vllm(_FULL, blocks=96, ranks=3), Load(ranks=3, arrivals=(3, 6)), SET
    ),
    Scenario("adapters", _vllm(_FULL, blocks=128), Load(loras=(None, "adapter-1", "adapter-2")), SET),
    Scenario("salts", _vllm(_FULL, blocks=128), Load(salts=(None, "salt-1", "salt-2")), SET),
    Scenario(
        "adapters and salts",
        _vllm(_FULL, blocks=128),
        Load(loras=(None, "adapter-1"), salts=(None, "salt-1")),
        SET,
    ),
    Scenario("images", _vllm(_FULL, blocks=128), Load(images=0.7), SET),
]

SCENARIOS: dict[str, list[Scenario]] = {"vllm": VLLM}
