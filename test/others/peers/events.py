"""Engine ranks that publish KV events, for the caches that dumps are made of."""

import hashlib
import struct
import time

import msgpack
import zmq

from ports import free_ports
from programs import endpoint
from replicas import BLOCK_SIZE, PATIENCE


class Prompt:
    """Tokens, and the names that an engine gives their blocks.

    Engines name a block by a hash of everything up to its end, adapter included.
    """

    def __init__(self, tokens, adapter: str | None = None):
        self.tokens, self.adapter = tuple(tokens), adapter

    def __len__(self) -> int:
        return len(self.tokens) // BLOCK_SIZE

    def head(self, blocks: int) -> "Prompt":
        return Prompt(self.tokens[: BLOCK_SIZE * blocks], self.adapter)

    @property
    def form(self) -> dict:
        """The prompt as a request has it."""
        form = {"token_ids": list(self.tokens)}
        return form | ({"lora_name": self.adapter} if self.adapter else {})

    def block(self, index: int) -> int:
        text = f"{self.adapter} {self.tokens[: BLOCK_SIZE * (index + 1)]}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class Rank:
    """One data-parallel rank of an engine: events as vLLM writes them."""

    def __init__(self, rank: int):
        port = free_ports(1)
        self._rank = rank
        self.endpoint = endpoint(port)
        # XPUB is PUB that tells of its subscribers.
        self._socket = zmq.Context.instance().socket(zmq.XPUB)
        self._socket.xpub_verbose = True
        self._socket.bind(self.endpoint)
        self._sequence = 0

    def heard(self) -> None:
        """Waits for a new subscriber."""
        assert self._socket.poll(PATIENCE * 1000), "nobody subscribes to the engine's events"
        self._socket.recv()

    def store(self, prompt: Prompt, first: int, end: int, medium="GPU") -> None:
        """Publishes blocks first..end-1 of a prompt as stored."""
        tokens = prompt.tokens[BLOCK_SIZE * first : BLOCK_SIZE * end]
        names = [prompt.block(index) for index in range(first, end)]
        parent = prompt.block(first - 1) if first else None
        # hashes, parent, tokens, block size, LoRA id, medium, LoRA name, and that there are no other keys
        keys = [None] * len(names)
        self._publish("BlockStored", names, parent, list(tokens), BLOCK_SIZE, None, medium, prompt.adapter, keys)

    def remove(self, prompt: Prompt, first: int, end: int, medium="GPU") -> None:
        self._publish("BlockRemoved", [prompt.block(index) for index in range(first, end)], medium)

    def _publish(self, *event) -> None:
        batch = msgpack.packb([time.time(), [list(event)], self._rank])
        self._socket.send_multipart([b"kv-events", struct.pack(">Q", self._sequence), batch])
        self._sequence += 1

    def close(self) -> None:
        self._socket.close(linger=0)
