"""A vLLM engine that offloads to the host and to a second tier behind it.

Which chunks are stored and evicted is decided by vLLM's CPUOffloadingManager, once as
the host's and once, larger, as the second tier's; what is said of them by its
OffloadingEventsTracker with self_describing_kv_events. The calls are those of
vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py. A store takes a
few steps, so that the device may have evicted its blocks before it is announced.
Nothing is loaded back: the engine computes again what it has offloaded only.
"""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from history import Prompt
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import (
    OffloadingEventGroupSpec,
    OffloadingEventsTracker,
)
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingKVEventsConfig,
    ReqContext,
    make_offload_key,
)
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.request import Request
from vllm_cache import Cache

TRANSFER = 3  # steps that a store takes


class OffloadingCache(Cache):
    """A cache of which full chunks are offloaded.

    chunk is blocks_per_chunk, host and disk are the tiers' sizes in chunks. Groups with
    a window are offloaded too; the tracker says their names alone.
    """

    def __init__(self, *cache: Any, chunk: int, host: int, disk: int):
        self._chunk_blocks = chunk
        self._sizes = {Medium.CPU: host, Medium.STORAGE: disk}
        super().__init__(*cache)

    def restart(self) -> None:
        super().restart()
        self._groups = [self._group(index, spec) for index, spec in enumerate(self._specs)]
        self._tracker = OffloadingEventsTracker(
            OffloadingKVEventsConfig(enable_kv_cache_events=True, self_describing_kv_events=True),
            {group.group_idx: group.kv_event_group_spec for group in self._groups},
        )
        self._tiers = {
            medium: CPUOffloadingManager(chunks, enable_events=True) for medium, chunks in self._sizes.items()
        }
        for medium, tier in self._tiers.items():
            tier.medium = medium
        self._stores: list[tuple[int, Medium, list[bytes], ReqContext]] = []  # by the step of their end
        self._steps = 0
        self._offered: Counter[tuple[str, int]] = Counter()  # chunks, by request and group
        self._chunks: dict[bytes, set[bytes]] = {}  # the chunks' keys that have a block of the main group

    @property
    def busy(self) -> bool:
        return super().busy or bool(self._stores)

    def step(self) -> list[Any]:
        events = super().step()
        self._steps += 1
        running, self._stores = self._stores, []
        for store in running:
            end, medium, keys, context = store
            if end > self._steps:
                self._stores.append(store)
                continue
            self._tiers[medium].complete_store(keys, context)
            if medium is Medium.CPU:
                # The host keeps what the second tier reads.
                self._tiers[Medium.CPU].prepare_load(self._store(Medium.STORAGE, keys, context), context)
            else:
                self._tiers[Medium.CPU].complete_load(keys, context)
        raw = list(self._tiers[Medium.CPU].take_events())
        # The second tier says when it evicts.
        raw += [replace(event, removal_expected=True) for event in self._tiers[Medium.STORAGE].take_events()]
        return events + list(self._tracker.take_events(raw))

    def beyond(self, prompt: Prompt) -> tuple[int, int]:
        """The tokens behind those on the device that lie on the host, and behind these on disk.

        A block lies in a tier if a chunk does that has it.
        """
        size = self._specs[0].block_size
        start = self.hit(prompt) // size
        blocks = self._request(prompt).block_hashes
        tokens = []
        for tier in self._tiers.values():
            end = start
            while end < len(blocks) and any(self._lies(tier, key) for key in self._chunks.get(blocks[end], ())):
                end += 1
            tokens.append((end - start) * size)
            start = end
        return tokens[0], tokens[1]

    @staticmethod
    def _lies(tier: CPUOffloadingManager, key: bytes) -> bool:
        return tier.lookup(key, ReqContext("")) is LookupResult.HIT

    def _group(self, index: int, spec: Any) -> SimpleNamespace:
        """A GroupOffloadConfig."""
        window = get_kv_cache_spec_sliding_window(spec)
        tokens = spec.block_size * self._chunk_blocks
        return SimpleNamespace(
            group_idx=index,
            tokens_per_block=spec.block_size,
            tokens_per_chunk=tokens,
            hashes_per_chunk=tokens // self._hash_block,
            sliding_window_size_in_chunks=-(-window // tokens) if window else None,
            kv_event_group_spec=OffloadingEventGroupSpec(get_kv_cache_spec_kind(spec).value, window),
        )

    def _computed(self, request: Request, count: int) -> None:
        super()._computed(request, count)
        context = ReqContext(request.request_id)
        for group in self._groups:
            self._offer(request, group, context)

    def _offer(self, request: Request, group: SimpleNamespace, context: ReqContext) -> None:
        """Stores a request's chunks of a group that are full and were not before."""
        first = self._offered[request.request_id, group.group_idx]
        end = max(request.num_computed_tokens // group.tokens_per_chunk, first)
        self._offered[request.request_id, group.group_idx] = end
        keys: dict[bytes, int] = {}
        for chunk in range(first, end):
            names = request.block_hashes[chunk * group.hashes_per_chunk : (chunk + 1) * group.hashes_per_chunk]
            key = make_offload_key(names[-1], group.group_idx)
            keys[key] = chunk
            if not group.group_idx:
                for name in names:
                    self._chunks.setdefault(name, set()).add(key)
        for key in self._store(Medium.CPU, list(keys), context):
            self._tracker.record_store(request, group, keys[key], key)

    def _store(self, medium: Medium, keys: list[bytes], context: ReqContext) -> list[bytes]:
        """Begins to store chunks in a tier; returns those that it did not have."""
        output = self._tiers[medium].prepare_store(keys, context) if keys else None
        if output is None or not output.keys_to_store:
            return []
        self._stores.append((self._steps + TRANSFER, medium, output.keys_to_store, context))
        return list(output.keys_to_store)
