"""What is played, and how far the service may be from the engine.

A scenario is an engine's cache, the requests that it gets, and an expectation.
Each is played as several histories, which differ in their seed alone.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import sglang_cache
import vllm_cache
import vllm_offload
from history import Load
from play import Engine, Outcome


@dataclass(frozen=True)
class Expectation:
    """The shares of comparisons in which the service may differ from the engine.

    Whatever is above 0 has a reason: the engine's line that leaves out of its
    events what would have to be known.
    """

    over: float = 0.0  # the service promises more than the engine has
    under: float = 0.0  # the service promises less
    why: str = ""

    def met(self, outcome: Outcome) -> bool:
        return (
            outcome.hits > 0
            and outcome.over <= self.over * outcome.compared
            and outcome.under <= self.under * outcome.compared
        )


ANYTHING = Expectation(over=1, under=1)
EXACT = Expectation()
NO_CHUNK = Expectation(
    under=0.6,
    why="vllm/v1/kv_cache_interface.py: an event has the size of a sliding window, not that of a chunk",
)
NO_PLACE = Expectation(
    under=0.95,
    why="vllm/v1/core/block_pool.py, cache_full_blocks: an event has the tokens of all blocks, "
    "but no hash of those that are not kept, so that no place is known of those that are",
)
RING = Expectation(
    under=1.0,
    why="vllm/distributed/kv_events.py, _service_replay: what has left the ring is never said again",
)


@dataclass(frozen=True)
class Scenario:
    name: str
    engine: Engine
    load: Load
    expected: Expectation = EXACT
    histories: int = 3

    def shorter(self) -> "Scenario":
        """One history of half the length."""
        return replace(self, histories=1, load=replace(self.load, rounds=self.load.rounds // 2))


def _vllm(
    *specs: Any,
    blocks: int = 200,
    budget: int = 128,
    seats: int = 8,
    retention: int | None = 0,
    record: dict[str, Any] | None = None,
    **engine: Any,
) -> Engine:
    """A vLLM engine with a cache of these groups; the first one's block size is registered."""
    return Engine(
        events=vllm_cache.EVENTS,
        cache=functools.partial(vllm_cache.Cache, specs, blocks, budget, seats, retention),
        block_size=specs[0].block_size,
        # The markers need room, too.
        record={"total_kv_blocks": blocks + 8} | (record or {}),
        **engine,
    )


def _offloading(
    *specs: Any, chunk: int = 1, host: int = 120, disk: int = 300, blocks: int = 72, **engine: Any
) -> Engine:
    """A vLLM engine that offloads in chunks of so many blocks."""
    made = _vllm(*specs, blocks=blocks, **engine)
    offloading = functools.partial(vllm_offload.OffloadingCache, *made.cache.args, chunk=chunk, host=host, disk=disk)
    return replace(made, cache=offloading, offloads=True)


def _sglang(
    *, capacity: int = 1500, budget: int = 128, seats: int = 8, pairs: bool = False, **engine: Any
) -> Engine:
    """An SGLang engine with a radix cache of pages of 16 tokens."""
    return Engine(
        events=sglang_cache.EVENTS,
        cache=functools.partial(sglang_cache.Cache, 16, capacity, budget, seats, pairs),
        block_size=16,
        **engine,
    )


_FULL = vllm_cache.full(16)
_WINDOW = vllm_cache.window(16, 40)
_ONE_BY_ONE = Load(arrivals=(1, 1), steps=(0, 0))
_KEYS = Load(loras=(None, "adapter-1"), salts=(None, "salt-1", "salt-2"), images=0.5)
_UNLIKE = replace(_ONE_BY_ONE, repeats=0.0, aligned=0.0, output=(1, 3))

VLLM: list[Scenario] = [
    Scenario("one by one, no repeats", _vllm(_FULL, blocks=4000), _UNLIKE),
    Scenario("one by one, exact repeats", _vllm(_FULL, blocks=72), _ONE_BY_ONE),
    Scenario("equal prefixes at once", _vllm(_FULL, blocks=120), Load(arrivals=(2, 5), repeats=0.5)),
    Scenario("eviction by pressure", _vllm(_FULL, blocks=64), Load()),
    Scenario(
        "chunked prefill, decoding, preemption",
        _vllm(_FULL, blocks=48, budget=40, seats=12),
        Load(arrivals=(2, 4), output=(20, 90), steps=(5, 40)),
    ),
    Scenario("resets", _vllm(_FULL, blocks=80), Load(resets=0.1)),
    Scenario("engine restarts", _vllm(_FULL, blocks=80), Load(engine_restarts=0.1)),
    Scenario("lost messages, replayed", _vllm(_FULL, blocks=80, lossy=True), Load(losses=0.3)),
    Scenario(
        "lost messages, a ring of 8",
        _vllm(_FULL, blocks=80, lossy=True, ring=8),
        Load(losses=0.1),
        Expectation(over=0.05, under=1.0, why=RING.why),
    ),
    Scenario("prompts that skip the cache", _vllm(_FULL, blocks=128), Load(skips=0.4)),
    Scenario("late join, full replay", _vllm(_FULL, blocks=96), Load(late=True)),
    Scenario("service restarts, full replay", _vllm(_FULL, blocks=96), Load(service_restarts=0.1)),
    Scenario("three data-parallel ranks", _vllm(_FULL, blocks=96, ranks=3), Load(ranks=3, arrivals=(3, 6))),
    Scenario("adapters", _vllm(_FULL, blocks=128), Load(loras=(None, "adapter-1", "adapter-2"))),
    Scenario(
        "an adapter moved between two paths",
        _vllm(_FULL, blocks=128),
        Load(loras=("adapter-1",), lora_paths=2),
        Expectation(
            over=0.6,
            why="vllm/v1/core/kv_cache_utils.py, _gen_lora_extra_hash_keys: a block's hash has the "
            "adapter's path, its event (block_pool.py, _build_block_stored_event) the name alone",
        ),
    ),
    Scenario("salts", _vllm(_FULL, blocks=128), Load(salts=(None, "salt-1", "salt-2"))),
    Scenario(
        "adapters and salts",
        _vllm(_FULL, blocks=128),
        Load(loras=(None, "adapter-1"), salts=(None, "salt-1")),
    ),
    Scenario(
        "late join, a ring of 60 messages",
        _vllm(_FULL, blocks=96, ring=60),
        Load(late=True, rounds=80),
        RING,
    ),
    Scenario(
        "full report mode, a set",
        _vllm(_FULL, blocks=96, record={"kv_event_copies": "set"}),
        Load(full_reports=0.5),
        Expectation(
            under=0.5,
            why="vllm/v1/core/block_pool.py, emit_cached_block_events: what a hit announces again "
            "looks like another copy, so copies are not counted",
        ),
    ),
    Scenario(
        "full report mode, counted",
        _vllm(_FULL, blocks=96),
        Load(full_reports=0.5),
        Expectation(over=0.3, under=0.7, why="the same; such a worker needs kv_event_copies set"),
    ),
    Scenario("full + window", _vllm(_FULL, _WINDOW, blocks=220), Load()),
    Scenario("full + window, all kept", _vllm(_FULL, _WINDOW, blocks=220, retention=None), Load()),
    Scenario("full + window, one by one", _vllm(_FULL, _WINDOW, blocks=120, retention=None), _ONE_BY_ONE),
    Scenario("window + full", _vllm(_WINDOW, _FULL, blocks=220), Load()),
    Scenario(
        "full + two windows",
        _vllm(_FULL, _WINDOW, vllm_cache.window(16, 100), blocks=300),
        Load(),
    ),
    # As Gemma's layers are grouped: groups hold equally many layers.
    Scenario(
        "full + five windows alike",
        _vllm(_FULL, *[_WINDOW] * 5, blocks=500),
        Load(),
    ),
    Scenario("two full + window", _vllm(_FULL, _FULL, _WINDOW, blocks=300), Load()),
    Scenario("full + Mamba", _vllm(_FULL, vllm_cache.mamba(16), blocks=200), Load()),
    Scenario(
        "full + Mamba, all kept",
        _vllm(_FULL, vllm_cache.mamba(16), blocks=200, retention=None),
        Load(),
    ),
    Scenario("full + window + Mamba", _vllm(_FULL, _WINDOW, vllm_cache.mamba(16), blocks=260), Load()),
    Scenario(
        "full + window, three ranks, resets",
        _vllm(_FULL, _WINDOW, blocks=160, ranks=3),
        Load(ranks=3, arrivals=(3, 6), resets=0.1),
    ),
    Scenario(
        "full + window, service restarts",
        _vllm(_FULL, _WINDOW, blocks=160),
        Load(service_restarts=0.1),
    ),
    Scenario(
        "full + window, engine restarts",
        _vllm(_FULL, _WINDOW, blocks=160),
        Load(engine_restarts=0.1),
    ),
    Scenario(
        "full + window, lost messages, replayed",
        _vllm(_FULL, _WINDOW, blocks=160, lossy=True),
        Load(losses=0.3),
    ),
    Scenario(
        "full + Mamba, late join, full replay",
        _vllm(_FULL, vllm_cache.mamba(16), blocks=160),
        Load(late=True),
    ),
    Scenario(
        "full + window, adapters and salts",
        _vllm(_FULL, _WINDOW, blocks=200),
        Load(loras=(None, "adapter-1"), salts=(None, "salt-1")),
    ),
    Scenario("window only", _vllm(_WINDOW, blocks=96, retention=None), Load()),
    Scenario("two windows only", _vllm(_WINDOW, vllm_cache.window(16, 100), blocks=200, retention=None), Load()),
    Scenario("window only, default retention", _vllm(_WINDOW, blocks=96), Load(), NO_PLACE),
    Scenario(
        "full 32 + window 16",
        _vllm(vllm_cache.full(32), _WINDOW, blocks=180, retention=None),
        Load(align=32),
    ),
    Scenario(
        "full 16 + window 32",
        _vllm(_FULL, vllm_cache.window(32, 70), blocks=180),
        Load(align=32),
    ),
    Scenario(
        "full 16 + Mamba 64",
        _vllm(_FULL, vllm_cache.mamba(64), blocks=160),
        Load(length=(40, 200)),
    ),
    Scenario(
        "full + chunked local",
        _vllm(_FULL, vllm_cache.chunked(16, 64), blocks=200, record={"attention_chunk_size": 64}),
        Load(),
    ),
    Scenario(
        "full + chunked local, size unknown",
        _vllm(_FULL, vllm_cache.chunked(16, 64), blocks=200),
        Load(),
        NO_CHUNK,
    ),
    Scenario("images", _vllm(_FULL, blocks=128), Load(images=0.7)),
    Scenario("offloading, no keys", _offloading(_FULL), Load()),
    Scenario("offloading, salts", _offloading(_FULL), Load(salts=(None, "salt-1", "salt-2"))),
    Scenario("offloading, adapters", _offloading(_FULL), Load(loras=(None, "adapter-1", "adapter-2"))),
    Scenario("offloading, images", _offloading(_FULL), Load(images=0.7)),
    Scenario("offloading, all keys", _offloading(_FULL), _KEYS),
    Scenario("offloading in chunks, all keys", _offloading(_FULL, chunk=3, host=40, disk=100), _KEYS),
    Scenario("offloading, a host of 12 chunks, all keys", _offloading(_FULL, host=12, disk=30), _KEYS),
    Scenario("offloading, engine restarts, all keys", _offloading(_FULL), replace(_KEYS, engine_restarts=0.1)),
    Scenario("offloading, late join, all keys", _offloading(_FULL), replace(_KEYS, late=True)),
    Scenario("offloading, service restarts, all keys", _offloading(_FULL), replace(_KEYS, service_restarts=0.1)),
    Scenario(
        "offloading, lost messages, all keys",
        _offloading(_FULL, lossy=True),
        replace(_KEYS, losses=0.3),
    ),
    Scenario(
        "offloading, late join, a ring of 60",
        _offloading(_FULL, ring=60),
        replace(_KEYS, late=True, rounds=80),
        RING,
    ),
    Scenario(
        "offloading, three ranks, all keys",
        _offloading(_FULL, ranks=3),
        replace(_KEYS, ranks=3, arrivals=(3, 6)),
    ),
    Scenario(
        "offloading, full + window, all keys",
        _offloading(_FULL, _WINDOW, blocks=160),
        _KEYS,
        Expectation(
            under=0.2,
            why="offloading/events.py, _placeholder_stored: of windows on the host only names are said; "
            "a prefix that a window shortens is not continued there",
        ),
    ),
]

SGLANG: list[Scenario] = [
    Scenario("one by one", _sglang(), _ONE_BY_ONE),
    Scenario("equal prefixes at once", _sglang(capacity=2000), Load(arrivals=(2, 5), repeats=0.5)),
    Scenario("eviction by pressure", _sglang(capacity=1000), Load()),
    Scenario(
        "chunked prefill, decoding, retraction",
        _sglang(capacity=800, budget=40, seats=12),
        Load(arrivals=(2, 4), output=(20, 90), steps=(5, 40)),
    ),
    Scenario("resets", _sglang(), Load(resets=0.1)),
    Scenario("engine restarts", _sglang(), Load(engine_restarts=0.1)),
    Scenario("late join, full replay", _sglang(), Load(late=True)),
    Scenario("service restarts, full replay", _sglang(), Load(service_restarts=0.1)),
    Scenario("three data-parallel ranks", _sglang(ranks=3), Load(ranks=3, arrivals=(3, 6))),
    Scenario("adapters", _sglang(), Load(loras=(None, "adapter-1", "adapter-2"))),
    Scenario("salts", _sglang(), Load(salts=(None, "salt-1", "salt-2"))),
    Scenario("adapters and salts", _sglang(), Load(loras=(None, "adapter-1"), salts=(None, "salt-1"))),
    Scenario("pairs of tokens (EAGLE)", _sglang(pairs=True, record={"is_eagle": True}), Load()),
]

SCENARIOS: dict[str, list[Scenario]] = {"vllm": VLLM, "sglang": SGLANG}
