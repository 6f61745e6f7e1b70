"""One data-parallel rank of an engine: the real publisher over a made-up cache."""

import atexit
import hashlib
import time
from dataclasses import dataclass

import zmq

from ports import free_ports
from publishers import Publisher

BLOCK_SIZE = 16
RANKS = 4  # ports kept free for the ranks of one engine


@dataclass(frozen=True)
class Chain:
    """A prompt's blocks under the names that one engine process gives them.

    Engines name a block by a hash of everything up to its end. It depends on
    the process (a random seed, another algorithm) and on LoRA and salt.
    """

    tokens: tuple[int, ...]
    process: str = "first"

    def __len__(self) -> int:
        return len(self.tokens) // BLOCK_SIZE

    def block(self, index: int) -> tuple[int, ...]:
        return self.tokens[BLOCK_SIZE * index : BLOCK_SIZE * (index + 1)]

    def pairs(self, index: int) -> list[tuple[int, int]]:
        """The block's tokens, each with its successor."""
        span = slice(BLOCK_SIZE * index, BLOCK_SIZE * (index + 1))
        return list(zip(self.tokens[span], self.tokens[1:][span], strict=True))

    def digest(self, index: int) -> bytes:
        prefix = self.tokens[: BLOCK_SIZE * (index + 1)]
        return hashlib.sha256(f"{self.process} {prefix}".encode()).digest()


class Engine:
    """A publisher with its ports. Subclasses speak one engine's dialect.

    Like the engines, a rank offsets both ports of the configuration by its
    number. Events are built by the methods below and sent, one batch a call,
    by publish.
    """

    host = ""  # the medium of offloaded blocks

    def __init__(self, publisher: Publisher, rank=0, ports=None, topic="", ring=10_000, connect=None):
        self.publisher = publisher
        self.rank = rank
        self._base = ports or free_ports(2 * RANKS)
        self._connect = connect
        self._settings = {"topic": topic, "buffer_steps": ring}
        self._start()

    def sibling(self, rank: int) -> "Engine":
        """Another rank of the same engine, with the same configuration."""
        return type(self)(self.publisher, rank=rank, ports=self._base)

    @property
    def events(self) -> str:
        """The endpoint to register for this rank's live events."""
        return f"tcp://127.0.0.1:{self._base + self.rank}"

    @property
    def replay(self) -> str:
        """The endpoint to register for this rank's replays."""
        return f"tcp://127.0.0.1:{self._base + RANKS + self.rank}"

    def publish(self, *groups) -> None:
        """Sends the events of all groups as one batch.

        The publisher sends from a thread; this waits until the batch is out
        and in the ring that replays are served from.
        """
        events = [event for group in groups for event in group]
        self._zmq.publish(self.publisher.module.KVEventBatch(ts=time.time(), events=events))
        deadline = time.monotonic() + 30
        while self._zmq._event_queue.unfinished_tasks:
            assert time.monotonic() < deadline, "the publisher does not send"
            time.sleep(0.0005)

    def restart(self) -> None:
        """Ends the process and starts one with an empty cache on the same ports."""
        self.close()
        self._start()

    def close(self) -> None:
        self._zmq.shutdown()
        atexit.unregister(self._zmq.shutdown)  # SGLang's would wait a second for nothing

    def _start(self) -> None:
        live = self._connect or f"tcp://*:{self._base}"
        replay = f"tcp://127.0.0.1:{self._base + RANKS}"
        deadline = time.monotonic() + 30
        while True:
            try:
                self._zmq = self.publisher.module.ZmqEventPublisher(
                    self.rank, endpoint=live, replay_endpoint=replay, **self._settings
                )
                return
            except zmq.ZMQError as error:
                # libzmq closes a predecessor's sockets in the background.
                if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def name(self, chain: Chain, index: int):
        """The engine's name of a block, as it stands in an event."""
        raise NotImplementedError

    def names(self, chain: Chain, first: int, last: int) -> list:
        return [self.name(chain, i) for i in range(first, last)]

    def parent(self, chain: Chain, first: int):
        return self.name(chain, first - 1) if first else None

    def stored(self, chain: Chain, first: int, last: int, **fields) -> list:
        """The events for blocks [first, last) entering a tier (default: device)."""
        raise NotImplementedError

    def salted(self, chain: Chain, first: int, last: int, salt: str) -> list:
        """Like stored, for a request with a cache salt."""
        raise NotImplementedError

    def adapted(self, chain: Chain, first: int, last: int, adapter: str) -> list:
        """Like stored, for a request with a LoRA adapter."""
        raise NotImplementedError

    def removed(self, chain: Chain, first: int, last: int, **fields) -> list:
        """The events for blocks [first, last) leaving a tier, last block first."""
        fields.setdefault("medium", "GPU")
        names = self.names(chain, first, last)[::-1]
        return [self.publisher.event("BlockRemoved", block_hashes=names, **fields)]

    def cleared(self) -> list:
        return [self.publisher.module.AllBlocksCleared()]


class VLLM(Engine):
    """vLLM: one event for a run of blocks, names are the ends of SHA-256 digests."""

    host = "CPU"
    byte_names = False  # VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0

    def name(self, chain, index):
        digest = chain.digest(index)
        return digest if self.byte_names else int.from_bytes(digest[-8:], "big")

    def stored(self, chain, first, last, **fields):
        event = {
            "block_hashes": self.names(chain, first, last),
            "parent_block_hash": self.parent(chain, first),
            "token_ids": [t for i in range(first, last) for t in chain.block(i)],
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * (last - first),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        return [self.publisher.event("BlockStored", **event | fields)]

    def salted(self, chain, first, last, salt):
        keys = [(salt,) if i == 0 else None for i in range(first, last)]
        return self.stored(chain, first, last, extra_keys=keys)

    def adapted(self, chain, first, last, adapter):
        keys = [(adapter,)] * (last - first)
        return self.stored(chain, first, last, lora_id=1, lora_name=adapter, extra_keys=keys)

    def offloaded(self, chain, first, last, **fields):
        """What the offloading connector says: names and a medium, no tokens."""
        nothing = {"token_ids": [], "block_size": 0, "parent_block_hash": None, "medium": self.host}
        return self.stored(chain, first, last, **nothing | {"extra_keys": None} | fields)


class SGLang(Engine):
    """SGLang: one event a page, names are the starts of digests as signed numbers."""

    host = "CPU_PINNED"
    pairs = False  # EAGLE: pages hold each token with its successor

    def name(self, chain, index):
        return int.from_bytes(chain.digest(index)[:8], "big", signed=True)

    def stored(self, chain, first, last, **fields):
        return [
            self.publisher.event("BlockStored", **self._page(chain, i) | fields)
            for i in range(first, last)
        ]

    def salted(self, chain, first, last, salt):
        if self.publisher.has_field("BlockStored", "cache_salt"):
            return self.stored(chain, first, last, cache_salt=salt)
        module = self.publisher.module
        metadata = module.BlockStoredMetadata(cache_salt=salt)
        return [
            module.BlockStoredWithMetadata(**self._page(chain, i), metadata=metadata)
            for i in range(first, last)
        ]

    def adapted(self, chain, first, last, adapter):
        return self.stored(chain, first, last, lora_name=adapter)

    def _page(self, chain, index):
        return {
            "block_hashes": [self.name(chain, index)],
            "parent_block_hash": self.parent(chain, index),
            "token_ids": chain.pairs(index) if self.pairs else list(chain.block(index)),
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
        }


DIALECTS = {"vllm": VLLM, "sglang": SGLang}
