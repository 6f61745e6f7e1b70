"""A publisher that says what the master of a Mooncake store says.

It knows objects, not prompts: an object's key ends in the name that the engine
gave the block, and that is all there is of a block's place. So events have no
tokens, no parent and no depth. Every event is about one object in one medium.
"""

import time
from dataclasses import dataclass

import msgspec

from engine import Chain
from stream import Stream

TAGS = {"stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}


@dataclass(frozen=True)
class Object:
    """A block in the store, under the key that vLLM's connector makes."""

    digest: bytes  # the engine's name of the block, in full
    model: str = "a-model"

    @property
    def key(self) -> str:
        return f"{self.model}@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{self.digest.hex()}"

    @property
    def name(self) -> int:
        """The number that vLLM's own events have for the block."""
        return int.from_bytes(self.digest[-8:], "big")


def objects(chain: Chain, first: int, last: int) -> list[Object]:
    """The objects of a prompt's blocks [first, last)."""
    return [Object(chain.digest(i)) for i in range(first, last)]


class Store(Stream):
    """The master of one store.

    Messages and events are numbered from 1, each in one row over all media.
    What is not configured (model, block size, LoRA, salt) is nil in the events.
    """

    def __init__(self, backend="store-1", clock=time.time, **settings):
        super().__init__(first=1, **settings)
        self._backend = backend
        self._clock = clock
        self._events = 0

    def put(self, *media: str, blocks: list[Object]) -> list[dict]:
        """The events for objects that become available in media."""
        place = {"base_block_idx": None, "parent_hash": None, "token_ids": None, "parent_block_hash": None}
        return [self._event("stored", medium) | _names(b) | place for b in blocks for medium in media]

    def drop(self, *media: str, blocks: list[Object]) -> list[dict]:
        """The events for objects that are in media no longer."""
        place = {"base_block_idx": None}
        return [self._event("removed", medium) | _names(b) | place for b in blocks for medium in media]

    def clear(self) -> list[dict]:
        """The event for a store that is emptied: no medium, thus every one."""
        return [self._event("cleared", None)]

    def skip(self, count: int) -> None:
        """Leaves event numbers out, as a master whose queue overflows."""
        self._events += count

    def publish(self, *groups: list[dict]) -> None:
        """Sends the events of all groups as one batch; they are numbered in its order."""
        events = [event for group in groups for event in group]
        now = int(self._clock() * 1000)
        for event in events:
            self._events += 1
            event["event_id"], event["timestamp"] = self._events, now
        self.send(msgspec.msgpack.encode([now, events, 0]))

    def restart(self) -> None:
        super().restart()
        self._events = 0

    def _event(self, kind: str, medium: str | None) -> dict:
        return {
            "event_id": None,  # and the time: when it is sent
            "timestamp": None,
            "event_type": kind,
            "type": TAGS[kind],
            "model_name": None,
            "block_size": None,
            "additional_salt": None,
            "lora_name": None,
            "tenant_id": "default",
            "backend_id": self._backend,
            "medium": medium,
            "dp_rank": 0,
        }


def _names(block: Object) -> dict:
    """What an event says of its object: the key, and what the master reads in it."""
    return {
        "group_id": "0",
        "object_key": block.key,
        "connector_block_hash": block.digest.hex(),
        "tp_rank": 0,
        "pcp_rank": 0,
        "dcp_rank": 0,
        "pp_rank": 0,
        "seq_hashes": [block.name],
        "block_hashes": [block.name],
    }
