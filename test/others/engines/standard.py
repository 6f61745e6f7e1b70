"""A publisher of the standard event envelope."""

import collections
import time

import msgspec

import hashes
from engine import BLOCK_SIZE, Chain
from stream import Stream

# What tells one stream of events from another: each has numbers of its own.
DIMENSIONS = (
    "model_name",
    "block_size",
    "additional_salt",
    "lora_name",
    "tenant_id",
    "backend_id",
    "medium",
    "dp_rank",
)


class Standard(Stream):
    """Publishes envelopes; identity is what all of them state (default: nil)."""

    def __init__(self, seed=hashes.SEED, clock=time.time, settings=None, **identity):
        super().__init__(**settings or {})
        self._seed = seed
        self._clock = clock
        self._identity = dict.fromkeys(DIMENSIONS) | {"tenant_id": "default", "backend_id": "worker-0"} | identity
        self._last: collections.Counter = collections.Counter()

    def stored(self, chain: Chain, first: int, last: int, medium="gpu", **fields) -> list[dict]:
        """Blocks [first, last) by their standard hashes, their depth and their parent."""
        names = hashes.rolling(chain.tokens, BLOCK_SIZE, self._seed)
        event = {
            "seq_hashes": names[first:last],
            "base_block_idx": first,
            "parent_hash": names[first - 1] if first else None,
            "token_ids": None,
        }
        return [self._envelope("stored", medium) | event | fields]

    def by_parent(self, chain: Chain, first: int, last: int, **fields) -> list[dict]:
        """Without the depth."""
        return self.stored(chain, first, last, base_block_idx=None, **fields)

    def by_depth(self, chain: Chain, first: int, last: int, **fields) -> list[dict]:
        """Without the parent."""
        return self.stored(chain, first, last, parent_hash=None, **fields)

    def renamed(self, chain: Chain, first: int, last: int, **fields) -> list[dict]:
        """Blocks under names of the publisher's own, which takes their tokens."""
        names = {"seq_hashes": _own(chain, first, last), "parent_hash": None}
        if first:
            names["parent_hash"] = _own(chain, first - 1, first)[0]
        tokens = [t for i in range(first, last) for t in chain.block(i)]
        return self.stored(chain, first, last, **names | {"token_ids": tokens} | fields)

    def removed(self, chain: Chain, first: int, last: int, medium="gpu", **fields) -> list[dict]:
        names = hashes.rolling(chain.tokens, BLOCK_SIZE, self._seed)[first:last]
        event = {"seq_hashes": names, "base_block_idx": first}
        return [self._envelope("removed", medium) | event | fields]

    def removed_renamed(self, chain: Chain, first: int, last: int, **fields) -> list[dict]:
        return self.removed(chain, first, last, seq_hashes=_own(chain, first, last), **fields)

    def cleared(self, medium="gpu", **fields) -> list[dict]:
        return [self._envelope("cleared", medium) | fields]

    def skip(self, count: int, medium="gpu", **identity) -> None:
        """Leaves numbers of a stream out."""
        self._last[self._stream(self._identity | {"medium": medium} | identity)] += count

    def publish(self, *groups: list[dict]) -> None:
        """Sends the events of all groups as one batch."""
        events = [self._numbered(event) for group in groups for event in group]
        self.send(msgspec.msgpack.encode([int(self._clock() * 1000), events, 0]))

    def publish_bare(self, *groups: list[dict]) -> None:
        """Sends every event as a message without a batch around it."""
        for event in (event for group in groups for event in group):
            self.send(msgspec.msgpack.encode(self._numbered(event)))

    def restart(self) -> None:
        super().restart()
        self._last.clear()

    def _envelope(self, kind: str, medium: str) -> dict:
        head = {"event_id": None, "timestamp": None, "event_type": kind}
        return head | self._identity | {"medium": medium}

    def _numbered(self, event: dict) -> dict:
        """The event with the next number of its stream, unless it has one."""
        event["timestamp"] = int(self._clock() * 1000)
        if event["event_id"] is None:
            stream = self._stream(event)
            self._last[stream] += 1
            event["event_id"] = self._last[stream]
        return event

    @staticmethod
    def _stream(event: dict) -> tuple:
        return tuple(event[dimension] for dimension in DIMENSIONS)


def _own(chain: Chain, first: int, last: int) -> list[int]:
    """Names as an engine would give them: nothing can be told from them."""
    return [int.from_bytes(chain.digest(i)[-8:], "big") for i in range(first, last)]
