"""What an engine's events tell of its cache, as a naive model.

It can stand in the service's place. It hears every event and says how much of a
prompt the engine will hit, by the rule that the service is to follow:

- Equal blocks may lie in several places: every store of a name adds a copy to its
  group, every removal takes one.
- Names come from events that have the tokens of all their blocks. Groups give the
  blocks that end at the same token the same name.
- What an event on another medium says of a name counts there; the name means what the
  device's events said.
- A length counts if every group that has reported can serve it, by the engine's rule
  for the group's kind.

Where it differs from the engine, the events do not tell.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from history import Prompt

Name = Any  # an engine's name of a block
Block = tuple[tuple[Any, ...], Any]  # the tokens of a block and its other keys, as events have them

FULL = ("full_attention", "mla_attention", "sink_full_attention", None)
CHUNKED = "chunked_local_attention"
MAMBA = "mamba"
WINDOW = ("sliding_window", "sliding_window_mla")


@dataclass
class _Group:
    kind: str | None
    window: int | None
    block_size: int
    chunk: int | None  # of local attention, where the worker's record has it
    copies: Counter[Name] = field(default_factory=Counter)

    def served(self, held: set[int], length: int) -> int:
        """The longest prefix up to a length; held has the ends of the blocks that are there."""
        if self.kind == MAMBA:
            return max((end for end in held if end <= length), default=0)
        size = self.block_size
        length -= length % size
        if self.kind in WINDOW and self.window:
            needed = range(-(-(self.window - 1) // size))
            for end in range(length, len(needed) * size - 1, -size):
                if all(end - i * size in held for i in needed):
                    return end
        # From the start on; of local chunks of a known size, from the last one's.
        run = length // self.chunk * self.chunk if self.kind == CHUNKED and self.chunk else 0
        while run < length and run + size in held:
            run += size
        return run


class Rule:
    """The model of one rank."""

    def __init__(self, block: Callable[[Prompt, int, int], Block]):
        self.record: dict[str, Any] = {}  # of the worker's registration
        self._block = block  # of a prompt, by its first token and its size
        self._groups: dict[int, _Group] = {}
        self._offloaded: dict[str, Counter[Name]] = {"CPU": Counter(), "STORAGE": Counter()}
        self._names: dict[tuple[Name, Block], Name] = {}  # by what is before a block, and the block

    def hear(self, event: Any) -> None:
        if not hasattr(event, "block_hashes"):
            for copies in [*(group.copies for group in self._groups.values()), *self._offloaded.values()]:
                copies.clear()
            return
        index = getattr(event, "group_idx", None) or 0
        if (copies := self._offloaded.get(getattr(event, "medium", None))) is not None:
            if index:
                return
            if hasattr(event, "token_ids"):
                copies.update(event.block_hashes)
            else:
                copies.subtract(name for name in event.block_hashes if copies[name] > 0)
            return
        if hasattr(event, "token_ids"):
            copies = self._group(index, event).copies
            copies.update(event.block_hashes)
            if self.record.get("kv_event_copies") == "set":
                copies.update({name: 1 - copies[name] for name in event.block_hashes})
            self._learn(event)
        elif index in self._groups:
            copies = self._groups[index].copies
            copies.subtract(name for name in event.block_hashes if copies[name] > 0)

    def hit(self, prompt: Prompt) -> int:
        """The tokens of the prompt that every group can serve."""
        if not self._groups:
            return 0
        main = next((g for g in self._groups.values() if g.kind in FULL), self._groups[min(self._groups)])
        named = self._named(prompt, main.block_size, {})
        served = [(group, self._held(group, prompt, named)) for group in self._groups.values()]
        # States are kept at the ends of any blocks, also inside Mamba's own.
        unit = math.lcm(*(g.block_size for g in self._groups.values() if g.kind != MAMBA))
        length = len(prompt)
        while True:
            shorter = length
            for group, held in served:
                shorter = group.served(held, shorter)
                shorter -= shorter % unit
            if shorter == length:
                return length
            length = shorter

    def beyond(self, prompt: Prompt) -> tuple[int, int]:
        """The tokens behind those on the device that lie on the host, and behind these on disk."""
        if not self._groups:
            return 0, 0
        size = self._groups[min(self._groups)].block_size
        names = self._named(prompt, size, {})
        start = self.hit(prompt)
        tokens = []
        for copies in self._offloaded.values():
            end = start
            while copies[names.get(end + size)] > 0:
                end += size
            tokens.append(end - start)
            start = end
        return tokens[0], tokens[1]

    def _group(self, index: int, event: Any) -> _Group:
        kind = getattr(event, "kv_cache_spec_kind", None)
        window = getattr(event, "kv_cache_spec_sliding_window", None)
        return self._groups.setdefault(
            index, _Group(kind, window, event.block_size, self.record.get("attention_chunk_size"))
        )

    def _learn(self, event: Any) -> None:
        """Takes the names of an event that leaves no block out."""
        size, count = event.block_size, len(event.block_hashes)
        if len(event.token_ids) != size * count:
            return
        if hasattr(event, "extra_keys"):
            keys = event.extra_keys or [None] * count
        else:
            keys = [(event.lora_name, event.cache_salt)] * count
        parent = event.parent_block_hash
        for i, name in enumerate(event.block_hashes):
            block = tuple(event.token_ids[i * size : (i + 1) * size]), keys[i]
            self._names[parent, block] = name
            parent = name

    def _held(self, group: _Group, prompt: Prompt, named: dict[int, Name]) -> set[int]:
        """The ends of the prompt's blocks that the group has."""
        names = named if group.kind == MAMBA else self._named(prompt, group.block_size, named)
        return {end for end, name in names.items() if group.copies[name] > 0}

    def _named(self, prompt: Prompt, size: int, known: dict[int, Name]) -> dict[int, Name]:
        """The names of the prompt's blocks of a size, by their ends."""
        names: dict[int, Name] = {}
        parent: Name = None
        for start in range(0, len(prompt) - size + 1, size):
            end = start + size
            name = known.get(end) or self._names.get((parent, self._block(prompt, start, size)))
            if name is not None:
                names[end] = name
            elif not known:
                break
            parent = name
        return names


class Rules:
    """The models of a worker's ranks, in the place of a service."""

    immediate = True  # it has applied an event when it has heard it

    def __init__(self) -> None:
        self._ranks: list[Rule] = []
        self._record: dict[str, Any] = {}

    def register(self, worker: int, model: str, record: dict[str, Any]) -> None:
        self._record = record
        for rule in self._ranks:
            rule.record = record

    def restart(self) -> None:
        """Nothing: what a service learns by a replay has been heard."""

    def delete(self, worker: int) -> None:
        self._ranks.clear()

    def started(self, rank: int, block: Callable[[Prompt, int, int], Block]) -> None:
        del self._ranks[rank : rank + 1]
        self._ranks.insert(rank, Rule(block))
        self._ranks[rank].record = self._record

    def hear(self, rank: int, event: Any) -> None:
        self._ranks[rank].hear(event)

    def tokens(self, worker: int, model: str, prompt: Prompt, block_size: int) -> dict[int, int]:
        return {rank: rule.hit(prompt) for rank, rule in enumerate(self._ranks)}

    def beyond(self, worker: int, model: str, prompt: Prompt, block_size: int) -> dict[int, tuple[int, int]]:
        return {rank: rule.beyond(prompt) for rank, rule in enumerate(self._ranks)}

    def select(self, model: str, prompt: Prompt, block_size: int) -> tuple[int, int]:
        hits = [rule.hit(prompt) for rule in self._ranks]
        return hits.index(max(hits)), max(hits)
