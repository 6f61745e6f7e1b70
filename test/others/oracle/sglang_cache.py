"""An SGLang engine without a model: its own radix cache under a small scheduler.

The scheduler makes the calls of sglang/srt/managers: a request locks the prefix
that it hits; each chunk of its prefill, and at the end all of it, is inserted;
when tokens are short the tree evicts, and then the last request is retracted.
"""

import itertools
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from history import Prompt, Submit
from outlet import Marker
from sglang.srt.disaggregation import kv_events
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

EVENTS = kv_events


class _Slots(list[int]):
    """Places of tokens on the device, which SGLang has as a tensor."""

    def __getitem__(self, span: Any) -> Any:
        return _Slots(super().__getitem__(span)) if isinstance(span, slice) else super().__getitem__(span)

    def clone(self) -> "_Slots":
        return _Slots(self)


@dataclass
class _Request:
    prompt: Prompt
    output: list[int]
    tokens: list[int]
    computed: int = 0
    inserted: int = 0  # of the computed tokens those that the tree owns
    node: Any = None  # the end of what is locked in the tree
    answered: list[int] = field(default_factory=list)


class Cache:
    """One rank's cache and the requests that use it."""

    def __init__(self, page: int, capacity: int, budget: int, seats: int, pairs: bool):
        self._page = page
        self._capacity = capacity  # tokens on the device
        self._budget = budget  # tokens a step
        self._seats = seats  # requests that run at a time
        self._pairs = pairs  # EAGLE: units are tokens with their successors
        self.restart()

    def restart(self) -> None:
        """Another process: an empty cache, and the requests are gone."""
        self._tree = RadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=SimpleNamespace(
                    device="cpu", free_segment=lambda _slots, start_pos: None
                ),
                page_size=self._page,
                is_eagle=self._pairs,
                enable_kv_cache_events=True,
            )
        )
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, arrival: Submit) -> None:
        prompt = arrival.prompt
        self._waiting.append(_Request(prompt, list(arrival.output), list(prompt.tokens)))

    def step(self) -> list[Any]:
        """Runs one step of the scheduler and returns its events."""
        budget = self._budget
        for request in tuple(self._running):
            if request in self._running and budget:
                count = min(len(request.tokens) - request.computed, budget)
                while not self._room(count):
                    self._retract(victim := self._running[-1])
                    if victim is request:
                        break
                else:
                    budget -= count
                    self._compute(request, count)
        while self._waiting and budget and len(self._running) < self._seats:
            request = self._waiting[0]
            match = self._match(request.prompt, request.tokens[:-1])
            hit = match.device_prefix_len
            self._tree.inc_lock_ref(match.last_device_node)
            if not self._room(len(request.tokens) - hit + self._page):
                self._tree.dec_lock_ref(match.last_device_node)
                break
            self._running.append(self._waiting.popleft())
            request.node, request.computed, request.inserted = match.last_device_node, hit, hit
            count = min(len(request.tokens) - hit, budget)
            budget -= count
            self._compute(request, count)
        return self._events()

    def reset(self) -> list[Any]:
        """Empties the cache, if no request is there."""
        if not self.busy:
            self._tree.reset()
        return self._events()

    def hit(self, prompt: Prompt) -> int:
        """The tokens of a prompt that the engine would not compute now."""
        tokens: int = self._match(prompt, prompt.tokens).device_prefix_len
        return tokens

    def beyond(self, prompt: Prompt) -> tuple[int, int]:
        """Nothing is offloaded."""
        return 0, 0

    def marker(self, name: int) -> Marker:
        """A page that no request has."""
        tokens = [50_000 + name % 10_000, *range(self._page)]
        page: list[Any] = list(itertools.pairwise(tokens)) if self._pairs else tokens[:-1]
        stored = kv_events.BlockStored(
            block_hashes=[name],
            parent_block_hash=None,
            token_ids=page,
            block_size=self._page,
            lora_id=None,
            medium=kv_events.StorageMedium.GPU,
        )
        removed = kv_events.BlockRemoved(block_hashes=[name], medium=kv_events.StorageMedium.GPU)
        return Marker(Prompt((*tokens, 1)), [stored], [removed])

    def block(self, prompt: Prompt, start: int, size: int) -> tuple[tuple[Any, ...], Any]:
        """The tokens of a prompt's page and its other keys, as events have them."""
        tokens = prompt.tokens[start : start + size + self._pairs]
        return tuple(itertools.pairwise(tokens)) if self._pairs else tokens, (prompt.lora, prompt.salt)

    def _compute(self, request: _Request, count: int) -> None:
        request.computed += count
        if request.computed < len(request.tokens):
            self._insert(request)
            return
        if not request.answered:  # the prefill has ended
            self._insert(request)
        request.answered.append(request.output[len(request.answered)])
        request.tokens.append(request.answered[-1])
        if len(request.answered) == len(request.output):
            self._insert(request)
            self._running.remove(request)
            self._tree.dec_lock_ref(request.node)

    def _insert(self, request: _Request) -> None:
        """Gives the tree the whole pages of what is computed, and locks them."""
        key = self._key(request.prompt, request.tokens[: request.computed]).page_aligned(self._page)
        slots = _Slots(range(len(key)))
        result = self._tree.insert(InsertParams(key=key, value=slots, inserted_len=request.inserted))
        request.inserted = max(request.inserted, len(key))
        self._tree.dec_lock_ref(request.node)
        self._tree.inc_lock_ref(result.last_device_node)
        request.node = result.last_device_node

    def _retract(self, request: _Request) -> None:
        self._tree.dec_lock_ref(request.node)
        self._running.remove(request)
        self._waiting.appendleft(request)

    def _room(self, tokens: int) -> bool:
        """Makes room for tokens on the device, if need be by eviction."""
        owned = self._tree.evictable_size() + self._tree.protected_size()
        private = sum(request.computed - request.inserted for request in self._running)
        missing: int = owned + private + tokens - self._capacity
        if missing <= 0:
            return True
        evicted: int = self._tree.evict(EvictParams(num_tokens=missing)).num_tokens_evicted
        return evicted >= missing

    def _match(self, prompt: Prompt, tokens: Sequence[int]) -> Any:
        return self._tree.match_prefix(MatchPrefixParams(key=self._key(prompt, tokens)))

    def _key(self, prompt: Prompt, tokens: Sequence[int]) -> RadixKey:
        adapter = f"{prompt.lora:0>32}" if prompt.lora else None
        if adapter:
            name = SimpleNamespace(extra_key=adapter, lora_id=adapter)
            self._tree.kv_events.lora_names.register(name, prompt.lora)
        return RadixKey(array("q", tokens), adapter, is_bigram=self._pairs, cache_salt=prompt.salt)

    def _events(self) -> list[Any]:
        events: list[Any] = self._tree.kv_events.take()
        return events
