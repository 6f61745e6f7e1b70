"""A vLLM engine without a model: its own cache manager under a small scheduler.

The scheduler makes the calls of vllm/v1/core/sched/scheduler.py in its order:
running requests first, in chunks under a budget of tokens, the last one
preempted when blocks are short; then waiting ones, each after a look into the
prefix cache; one message of events a step.
"""

import math
from collections import deque
from types import SimpleNamespace
from typing import Any

from history import Image, Prompt, Submit
from outlet import Marker
from vllm.distributed import kv_events
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus

EVENTS = kv_events
LONGEST = 4096  # max_model_len

kv_cache_utils.init_none_hash(sha256)


def full(block_size: int) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=None)


def window(block_size: int, tokens: int) -> KVCacheSpec:
    return SlidingWindowSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=None, sliding_window=tokens
    )


def chunked(block_size: int, tokens: int) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=None, attention_chunk_size=tokens
    )


def mamba(block_size: int) -> KVCacheSpec:
    return MambaSpec(block_size=block_size, shapes=((1,),), dtypes=(None,), mamba_cache_mode="align")


class Cache:
    """One rank's cache and the requests that use it.

    Retention is prefix_cache_retention_interval: by default (0) groups with a
    window or a state keep only what the end of a prompt needs, None keeps all.
    """

    def __init__(
        self,
        specs: tuple[KVCacheSpec, ...],
        blocks: int,
        budget: int,
        seats: int,
        retention: int | None,
    ):
        self._specs = specs
        self._blocks = blocks
        self._budget = budget  # tokens a step
        self._seats = seats  # requests that run at a time
        self._retention = retention
        sizes = [spec.block_size for spec in specs]
        self._block_size = math.lcm(*sizes)
        self._hash_block = math.gcd(*sizes)
        self._hasher = kv_cache_utils.get_request_block_hasher(self._hash_block, sha256)
        self.restart()

    def restart(self) -> None:
        """Another process: an empty cache, and the requests are gone."""
        groups = [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(self._specs)]
        self._manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=self._blocks,
                kv_cache_tensors=[],
                kv_cache_groups=groups,
                prefix_cache_retention_interval=self._retention,
            ),
            max_model_len=LONGEST,
            scheduler_block_size=self._block_size,
            hash_block_size=self._hash_block,
            max_in_flight_tokens=self._budget,
            enable_kv_cache_events=True,
        )
        self._aligned = self._mamba_scheduler()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._outputs: dict[str, list[int]] = {}
        self._names = 0
        self.preemptions = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, arrival: Submit) -> None:
        request = self._request(arrival.prompt, arrival.skip_cache, arrival.full_report)
        self._outputs[request.request_id] = list(arrival.output)
        self._waiting.append(request)

    def step(self) -> list[Any]:
        """Runs one step of the scheduler and returns its events."""
        budget = self._budget
        scheduled: list[tuple[Request, int]] = []
        self._manager.new_step_starts()
        preempted = False
        for request in tuple(self._running):
            if request not in self._running or not budget:
                continue
            count = self._chunk(request, 0, budget)
            if not count:
                continue
            while self._manager.allocate_slots(request, count) is None:
                preempted = True
                self._preempt(victim := self._running[-1])
                if victim is request:
                    break
            else:
                scheduled.append((request, count))
                budget -= count
        while self._waiting and budget and not preempted and len(self._running) < self._seats:
            request = self._waiting[0]
            blocks, hit, boundary = self._manager.get_computed_blocks(request)
            request.shared_prefix_boundary = boundary
            count = self._chunk(request, hit, budget)
            if not count:
                break
            if (
                self._manager.allocate_slots(
                    request,
                    count,
                    num_new_computed_tokens=hit,
                    new_computed_blocks=blocks,
                    full_sequence_must_fit=True,
                )
                is None
            ):
                break
            self._running.append(self._waiting.popleft())
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = hit
            scheduled.append((request, count))
            budget -= count
        for request, count in scheduled:
            self._computed(request, count)
        events: list[Any] = self._manager.take_events()
        return events

    def reset(self) -> list[Any]:
        """Empties the prefix cache, if no request holds blocks."""
        self._manager.reset_prefix_cache()
        events: list[Any] = self._manager.take_events()
        return events

    def hit(self, prompt: Prompt) -> int:
        """The tokens of a prompt that the engine would not compute now."""
        tokens: int = self._manager.get_computed_blocks(self._request(prompt))[1]
        return tokens

    def beyond(self, prompt: Prompt) -> tuple[int, int]:
        """Nothing is offloaded."""
        return 0, 0

    def marker(self, name: int) -> Marker:
        """A prompt of one block of every group, under names that no request has."""
        tokens = [50_000 + name % 10_000, *range(self._block_size - 1)]
        stored: list[Any] = []
        removed: list[Any] = []
        for group, spec in enumerate(self._specs):
            kind, sliding_window = self._manager.kv_cache_event_metadata[group]
            # Groups call a block by the same name if it ends at the same token.
            names = [
                name * 10_000 + end for end in range(spec.block_size, self._block_size + 1, spec.block_size)
            ]
            stored.append(
                kv_events.BlockStored(
                    block_hashes=names,
                    parent_block_hash=None,
                    token_ids=tokens,
                    block_size=spec.block_size,
                    lora_id=None,
                    medium=kv_events.MEDIUM_GPU,
                    lora_name=None,
                    group_idx=group,
                    kv_cache_spec_kind=kind,
                    kv_cache_spec_sliding_window=sliding_window,
                )
            )
            removed.append(
                kv_events.BlockRemoved(block_hashes=names, medium=kv_events.MEDIUM_GPU, group_idx=group)
            )
        return Marker(Prompt((*tokens, 1)), stored, removed)

    def block(self, prompt: Prompt, start: int, size: int) -> tuple[tuple[int, ...], Any]:
        """The tokens of a prompt's block and its other keys, as events have them."""
        keys: list[Any] = [prompt.lora] if prompt.lora else []
        keys += [
            (_identifier(image), image.offset - start)
            for image in prompt.images
            if image.offset < start + size and image.offset + image.length > start
        ]
        if prompt.salt and not start:
            keys.append(prompt.salt)
        return prompt.tokens[start : start + size], tuple(keys) or None

    def _chunk(self, request: Request, hit: int, budget: int) -> int:
        """The tokens of a request that the next step computes."""
        count: int = min(request.num_tokens - request.num_computed_tokens - hit, budget)
        if self._aligned is None:
            return count
        aligned: int = Scheduler._mamba_block_aligned_split(self._aligned, request, count, hit)
        return aligned

    def _mamba_scheduler(self) -> SimpleNamespace | None:
        """What vLLM's scheduler knows where it ends chunks for the state of Mamba."""
        spec = next((spec for spec in self._specs if isinstance(spec, MambaSpec)), None)
        return spec and SimpleNamespace(
            # Of a model with Mamba the cache configuration has its block size.
            cache_config=SimpleNamespace(block_size=spec.block_size),
            block_size=self._block_size,
            hash_block_size=self._hash_block,
            mamba_partial_cache_hit=self._hash_block < self._block_size
            and self._manager.coordinator.enable_partial_hash_hits,
            mamba_shared_prefix_checkpoint=False,
            mamba_has_prefill_checkpoint_blocks=False,
            mamba_prefill_checkpoint_alignment=None,
            use_eagle_block_drop=False,
            num_hash_lookahead_tokens=0,
            max_num_scheduled_tokens=self._budget,
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        )

    def _computed(self, request: Request, count: int) -> None:
        request.num_computed_tokens += count
        if request.num_computed_tokens < request.num_tokens:
            return
        output = self._outputs[request.request_id]
        request.append_output_token_ids(output.pop(0))
        if not output:
            self._manager.free(request)
            self._running.remove(request)

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        self._waiting.appendleft(request)
        self.preemptions += 1

    def _request(self, prompt: Prompt, skip_cache: bool = False, full_report: bool = False) -> Request:
        self._names += 1
        lora = prompt.lora and SimpleNamespace(
            lora_name=prompt.lora,
            name=prompt.lora,
            lora_path=f"/adapters/{prompt.lora_path}/{prompt.lora}",
            adapter_id=1,
        )
        images = [
            SimpleNamespace(
                identifier=_identifier(image),
                mm_position=SimpleNamespace(offset=image.offset, length=image.length),
            )
            for image in prompt.images
        ]
        return Request(
            request_id=str(self._names),
            prompt_token_ids=list(prompt.tokens),
            sampling_params=SimpleNamespace(
                max_tokens=LONGEST,
                extra_args={"kv_cache_report_mode": "full"} if full_report else None,
                skip_reading_prefix_cache=skip_cache,
            ),
            pooling_params=None,
            mm_features=images,
            lora_request=lora,
            cache_salt=prompt.salt,
            block_hasher=self._hasher,
        )


def _identifier(image: Image) -> str:
    """The name of a multimodal object, as a frontend writes a hash of 64 bits."""
    return f"{image.content:016x}{0:048x}"
