"""The engines of the fleet: what their ranks hold, and the events of it."""

import hashlib
import itertools
import random
import struct
import time
from collections import defaultdict
from dataclasses import dataclass, field

import msgpack
import xxhash
import zmq
from ports import free_ports
from programs import endpoint

SEED = 1337
ADAPTER = "an-adapter"
TIERS = {"GPU": "device", "CPU": "host_pinned", "DISK": "disk", "EXTERNAL": "external"}
DEEPEST = 6  # blocks of a prompt
_MARK = 1_000_000  # tokens from here on mark that an event has arrived


@dataclass(frozen=True)
class Scope:
    """A model of a routing group, and the worker that always serves it."""

    model: str
    group: str
    block_size: int
    anchor: int
    anchor_ranks: int = 1
    eagle: bool = False


SCOPES = (
    Scope("m", "default", 4, 101, anchor_ranks=2),
    Scope("m", "other", 8, 102),
    Scope("a b", "default", 4, 103),
    Scope("e", "default", 4, 104, eagle=True),
)
ANCHORS = frozenset(scope.anchor for scope in SCOPES)


def tokens(path: str, size: int) -> list[int]:
    """The tokens of a prompt whose blocks are named by letters."""
    return [100 * ord(letter) + number for letter in path for number in range(size)]


def hashes(ids: list[int], size: int, adapter: str | None) -> tuple[list[int], list[int]]:
    """The local and the rolling hashes of a prompt's complete blocks, signed."""
    seed = (SEED + xxhash.xxh3_64_intdigest(adapter, 0)) % 2**64 if adapter else SEED
    ends = range(size, len(ids) + 1, size)
    local = [xxhash.xxh3_64_intdigest(struct.pack(f"<{size}I", *ids[end - size : end]), seed) for end in ends]
    return [signed(value) for value in local], rolled(local)


def rolled(local: list[int]) -> list[int]:
    """The rolling hashes for local ones, signed."""
    rolling: list[int] = []
    for block in local:
        chained = struct.pack("<QQ", rolling[-1], block % 2**64) if rolling else None
        rolling.append(xxhash.xxh3_64_intdigest(chained, SEED) if chained else block % 2**64)
    return [signed(value) for value in rolling]


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@dataclass
class Stream:
    """The events of one rank, and what it holds: (adapter, path) by medium."""

    rank: int
    endpoint: str
    socket: zmq.Socket
    held: dict[str, set] = field(default_factory=lambda: defaultdict(set))
    sequence: int = 0
    marks: list[int] = field(default_factory=list)

    def publish(self, *events) -> None:
        batch = msgpack.packb([time.time(), list(events), self.rank])
        self.socket.send_multipart([b"kv-events", struct.pack(">Q", self.sequence), batch])
        self.sequence += 1

    def mark(self, size: int) -> tuple[list[int], list]:
        """A prompt that nobody else has, and the event that this rank has it."""
        token = next(_tokens)
        self.marks.append(token)
        return [token] * size, ["BlockStored", [token], None, [token] * size, size, None, "GPU", None]

    def unmark(self) -> list:
        events, self.marks = [["BlockRemoved", [mark], "GPU"] for mark in self.marks], []
        return events


_tokens = itertools.count(_MARK)


class Fleet:
    """The event streams of all ranks, made when first asked for."""

    def __init__(self, chance: random.Random):
        self._chance = chance
        self._streams: dict[tuple[int, int], Stream] = {}

    def stream(self, worker: int, rank: int) -> Stream:
        if (worker, rank) not in self._streams:
            socket, where = zmq.Context.instance().socket(zmq.PUB), endpoint(free_ports(1))
            socket.bind(where)
            self._streams[worker, rank] = Stream(rank, where, socket)
        return self._streams[worker, rank]

    def turn(self, worker: int, rank: int, size: int) -> list:
        """Something that happens in a rank's cache, as events."""
        stream = self.stream(worker, rank)
        kind = self._chance.choices([self._store, self._offload, self._evict], [6, 4, 3])[0]
        return kind(stream, size)

    def _store(self, stream: Stream, size: int) -> list:
        adapter, path = self._prompt()
        held, first = stream.held["GPU"], 0
        while first < len(path) and (adapter, path[: first + 1]) in held:
            first += 1
        return stored(stream, "GPU", adapter, path, first, size)

    def _offload(self, stream: Stream, size: int) -> list:
        """Blocks behind what the rank holds anywhere go to a lower tier."""
        medium = self._chance.choice(["CPU", "CPU", "DISK", "EXTERNAL"])
        adapter, path = self._prompt()
        anywhere = set().union(*stream.held.values())
        first = self._chance.choice([0, 1, 2, 3])
        known = first == 0 or (adapter, path[:first]) in anywhere
        lacking = not any((adapter, path[: n + 1]) in stream.held[medium] for n in range(first, len(path)))
        return stored(stream, medium, adapter, path, first, size) if known and lacking else []

    def _evict(self, stream: Stream, size: int) -> list:
        """A block goes from a tier with all that is behind it there, last first."""
        media = [medium for medium, held in sorted(stream.held.items()) if held]
        if not media:
            return []
        medium = self._chance.choice(media)
        adapter, path = self._chance.choice(sorted(stream.held[medium], key=str))
        gone = sorted(
            (other for a, other in stream.held[medium] if a == adapter and other.startswith(path)),
            key=len,
            reverse=True,
        )
        return removed(stream, medium, adapter, *gone)

    def _prompt(self) -> tuple[str | None, str]:
        adapter = ADAPTER if self._chance.random() < 0.2 else None
        return adapter, "".join(self._chance.choices("ab", [3, 1], k=self._chance.randint(1, DEEPEST)))

    def forget(self, worker: int) -> None:
        """The worker's ranks hold nothing any more."""
        for (owner, _), stream in self._streams.items():
            if owner == worker:
                stream.held.clear()
                stream.marks.clear()

    def found(self, worker: int, rank: int, size: int, rolling: list[int]) -> tuple[int, int, int]:
        """How many blocks of a prompt a rank has on the device, with the host's, and
        with the disk's: each tier goes on where the one before has ended."""
        stream, at, ends = self._streams.get((worker, rank)), 0, []
        for media in (["GPU"], ["CPU"], ["DISK", "EXTERNAL"]):
            for medium in media:
                held = stream.held[medium] if stream else ()
                names = {hashes(tokens(path, size), size, adapter)[1][-1] for adapter, path in held}
                while at < len(rolling) and rolling[at] in names:
                    at += 1
            ends.append(at)
        return tuple(ends)

    def blocks(self, worker: int) -> set[tuple]:
        """The worker's blocks as (rank, tier, name), without those behind a hole."""
        rows = set()
        for (owner, number), stream in self._streams.items():
            anywhere = set().union(*stream.held.values())
            for medium, held in stream.held.items() if owner == worker else ():
                for adapter, path in held:
                    if all((adapter, path[:end]) in anywhere for end in range(1, len(path))):
                        rows.add((number, TIERS[medium], _name(adapter, path)))
        return rows

    def close(self) -> None:
        for stream in self._streams.values():
            stream.socket.close(linger=0)


def stored(stream: Stream, medium: str, adapter: str | None, path: str, first: int, size: int) -> list:
    """The rank gets the path's blocks from the first on, as events."""
    new = [path[: end + 1] for end in range(first, len(path))]
    if not new:
        return []
    stream.held[medium] |= {(adapter, block) for block in new}
    parent = _name(adapter, path[:first]) if first else None
    ids = tokens(path, size)[first * size :]
    keys = [None] * len(new)  # no others than the adapter
    return [["BlockStored", [_name(adapter, block) for block in new], parent, ids, size, None, medium, adapter, keys]]


def removed(stream: Stream, medium: str, adapter: str | None, *paths: str) -> list:
    """The rank loses the blocks at the end of these paths, as events."""
    stream.held[medium] -= {(adapter, path) for path in paths}
    return [["BlockRemoved", [_name(adapter, path) for path in paths], medium]]


def _name(adapter: str | None, path: str) -> int:
    """The engine's name of a block, which is a hash of all up to its end."""
    return int.from_bytes(hashlib.sha256(f"{adapter} {path}".encode()).digest()[:8], "big")
