"""A publisher that behaves like llm-d's inference simulator.

Its cache is a set of blocks under chained names, whose events are sent as the
simulator sends them (its pkg/kvcache and pkg/engine/vllm): it dials the endpoint
that the service binds, with the topic kv@IP@MODEL; messages are numbered from 1;
there are no replays. In arrays the parent of a block without one is 0, in maps
it is nil. Removals go out before the store that needed their room.
"""

import hashlib
import random
import struct
import time

import msgspec
import zmq

from engine import BLOCK_SIZE

BATCH = 16  # events in one message, at most


class Simulator:
    """One simulated engine.

    Blocks of requests that have ended are evicted, those of the oldest request
    first. Which of one request's blocks goes first is any in the simulator, whose
    order is that of a map: a hole in a prompt is then filled in one event whose
    parent is the last block that is there, and so is said to be behind it.
    tail_first evicts without holes.
    """

    def __init__(self, endpoint: str, model: str, capacity: int, maps: bool, tail_first: bool, seed: int):
        self._endpoint = endpoint
        self._topic = f"kv@127.0.0.1@{model}".encode()
        self._capacity = capacity
        self._maps = maps
        self._tail_first = tail_first
        self._random = random.Random(seed)
        self._open()

    def start(self, tokens: tuple[int, ...]) -> list[int] | None:
        """A request begins. Returns its blocks, None if there is no room."""
        blocks = _names(tokens)
        missing = [i for i, block in enumerate(blocks) if block not in self._cached]
        used = {block for running in self._running for block in running}
        if len(used.union(blocks)) > self._capacity:
            return None
        self._running.append(blocks)
        for i in missing:
            if len(self._cached) == self._capacity:
                self._evict()
            self._cached[blocks[i]] = (0, i)
        if missing:
            present = [block for i, block in enumerate(blocks) if i not in missing]
            self._stored(tokens, blocks, missing, present[-1] if present else None)
        return blocks

    def finish(self, blocks: list[int]) -> None:
        """A request of start ends: its blocks stay until their room is needed."""
        self._running.remove(blocks)
        self._clock += 1
        for depth, block in enumerate(blocks):
            self._cached[block] = (self._clock, depth)

    def clear(self) -> None:
        """The engine goes to sleep and wakes up again."""
        self._reset()
        self._queue(["AllBlocksCleared"], {"type": "AllBlocksCleared"})

    def restart(self) -> None:
        """Another process dials the same endpoint and numbers from 1."""
        self.close()
        self._open()

    def hit(self, tokens: tuple[int, ...]) -> int:
        """The blocks at the prompt's beginning that a request would find."""
        count = 0
        for block in _names(tokens):
            if block not in self._cached:
                break
            count += 1
        return count

    def flush(self) -> None:
        """Sends what has not filled a message; the simulator does so every second."""
        if self._batch:
            payload = msgspec.msgpack.encode([time.time(), self._batch, 0])
            self._socket.send_multipart([self._topic, struct.pack(">Q", self._number), payload])
            self._number += 1
            self._batch = []

    def close(self) -> None:
        self._socket.close(linger=0)

    def _open(self) -> None:
        # A PUB socket that can tell when the service has subscribed.
        self._socket = zmq.Context.instance().socket(zmq.XPUB)
        self._socket.connect(self._endpoint)
        assert self._socket.poll(30_000), "the service does not subscribe"
        self._socket.recv()
        self._number = 1
        self._batch: list = []
        self._reset()

    def _reset(self) -> None:
        # Each block with the end of its last request and its place in it.
        self._cached: dict[int, tuple[int, int]] = {}
        self._running: list[list[int]] = []
        self._clock = 0

    def _evict(self) -> None:
        used = {block for running in self._running for block in running}
        unused = {block: at for block, at in self._cached.items() if block not in used}
        oldest = min(end for end, _ in unused.values())
        candidates = [block for block, (end, _) in unused.items() if end == oldest]
        if self._tail_first:
            gone = max(candidates, key=lambda block: unused[block][1])
        else:
            gone = self._random.choice(candidates)
        del self._cached[gone]
        removed = {"type": "BlockRemoved", "block_hashes": [gone], "medium": "GPU"}
        self._queue(["BlockRemoved", [gone], "GPU"], removed)

    def _stored(self, tokens, blocks: list[int], places: list[int], parent: int | None) -> None:
        names = [blocks[i] for i in places]
        content = [token for i in places for token in tokens[BLOCK_SIZE * i : BLOCK_SIZE * (i + 1)]]
        stored = {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": parent,
            "token_ids": content,
            "block_size": BLOCK_SIZE,
            "medium": "GPU",
        }
        self._queue(["BlockStored", names, parent or 0, content, BLOCK_SIZE, None, "GPU", None, None], stored)

    def _queue(self, array: list, fields: dict) -> None:
        self._batch.append(fields if self._maps else array)
        if len(self._batch) == BATCH:
            self.flush()


def _names(tokens: tuple[int, ...]) -> list[int]:
    """A name for each full block of the prompt, of all up to its end."""
    ends = range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE)
    return [int.from_bytes(hashlib.sha256(repr(tokens[:end]).encode()).digest()[:8], "big") for end in ends]
