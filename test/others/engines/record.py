"""What the publishers of mooncake.py and standard.py send, and what it means.

The messages are those of a replay over ZMQ. What they mean is written down here,
next to the calls, from the contract of the events and not from what the
publishers build. The decoder's golden test reads both from a file.
"""

import json
import struct
from functools import partial

import zmq

import hashes
from engine import BLOCK_SIZE, Chain
from mooncake import Store, objects
from standard import Standard
from stream import END

CHAIN = Chain(tuple(range(1, 1 + 4 * BLOCK_SIZE)))
MOMENT = 1739145600.25  # seconds; events have it in milliseconds
ABOUT = (
    "Messages of a Mooncake-shaped and of a standard publisher, in the order sent. Each message is one "
    "payload (hex) with its number and the events it means. Numbers of 64 bits are decimal text; a field "
    "that an event leaves nil or out is left out. Written by test/others/engines."
)

BAD = "bad"  # stands for an event that is skipped alone

_ROLLING = [str(h) for h in hashes.rolling(CHAIN.tokens, BLOCK_SIZE)]
_NAMES = [str(int(CHAIN.digest(i).hex()[-16:], 16)) for i in range(4)]


def _object(kind: str, event_id: int, block: int, medium: str, tier: str) -> dict:
    """What an event of the store means: one block under the engine's name."""
    return {
        "type": kind,
        "event_id": event_id,
        "tenant": "default",
        "backend": "store-1",
        "medium": medium,
        "tier": tier,
        "dp_rank": 0,
        "names": [_NAMES[block]],
        "engine_name": _NAMES[block],
        "group": "0",
        "object_key": f"a-model@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{CHAIN.digest(block).hex()}",
    }


def _standard(kind: str, event_id: int, **fields) -> dict:
    head = {"type": kind, "event_id": event_id, "tenant": "default", "backend": "worker-0"}
    return head | {"medium": "GPU", "tier": "device"} | fields


STATED = {
    "model_name": "a-model",
    "block_size": BLOCK_SIZE,
    "additional_salt": "w8a8",
    "lora_name": "an-adapter",
    "dp_rank": 3,
}
_STATED = {"model": "a-model", "block_size": BLOCK_SIZE, "salt": "w8a8", "lora": "an-adapter", "dp_rank": 3}


def _store_messages(store: Store):
    """What a message is for, its sending, and the events that each message means."""
    blocks = objects(CHAIN, 0, 4)
    stored, removed = partial(_object, "stored"), partial(_object, "removed")
    yield (
        "mooncake: a block in memory",
        lambda: store.publish(store.put("cpu", blocks=blocks[:1])),
        [[stored(1, 0, "CPU", "host_pinned")]],
    )
    yield (
        "mooncake: two blocks, each in memory and on disk",
        lambda: store.publish(store.put("cpu", "disk", blocks=blocks[1:3])),
        [
            [
                stored(2, 1, "CPU", "host_pinned"),
                stored(3, 1, "DISK", "disk"),
                stored(4, 2, "CPU", "host_pinned"),
                stored(5, 2, "DISK", "disk"),
            ]
        ],
    )
    yield (
        "mooncake: a block moves from memory to disk",
        lambda: store.publish(store.put("disk", blocks=blocks[:1]), store.drop("cpu", blocks=blocks[:1])),
        [[stored(6, 0, "DISK", "disk"), removed(7, 0, "CPU", "host_pinned")]],
    )
    store.skip(2)
    yield (
        "mooncake: after lost events the next number is higher",
        lambda: store.publish(store.drop("disk", blocks=blocks[2:3])),
        [[removed(10, 2, "DISK", "disk")]],
    )
    # Without a medium, so the tier is that of events which name none.
    cleared = {"type": "cleared", "event_id": 11, "tenant": "default", "backend": "store-1"}
    yield (
        "mooncake: the store is emptied",
        lambda: store.publish(store.clear()),
        [[cleared | {"tier": "device", "dp_rank": 0}]],
    )


def _standard_messages(publisher: Standard):
    yield (
        "standard: two blocks at the root, and the one behind them",
        lambda: publisher.publish(publisher.stored(CHAIN, 0, 2), publisher.stored(CHAIN, 2, 3)),
        [
            [
                _standard("stored", 1, names=_ROLLING[:2], base=0),
                _standard("stored", 2, names=_ROLLING[2:3], base=2, parent=_ROLLING[1]),
            ]
        ],
    )
    yield (
        "standard: a place by its parent alone",
        lambda: publisher.publish(publisher.by_parent(CHAIN, 3, 4)),
        [[_standard("stored", 3, names=_ROLLING[3:], parent=_ROLLING[2])]],
    )
    yield (
        "standard: a place by its depth alone, on disk",
        lambda: publisher.publish(publisher.by_depth(CHAIN, 1, 3, medium="disk")),
        [[_standard("stored", 1, medium="DISK", tier="disk", names=_ROLLING[1:3], base=1)]],
    )
    yield (
        "standard: names of its own with tokens",
        lambda: publisher.publish(publisher.renamed(CHAIN, 1, 3, medium="cpu")),
        [
            [
                _standard(
                    "stored",
                    1,
                    medium="CPU",
                    tier="host_pinned",
                    names=_NAMES[1:3],
                    base=1,
                    parent=_NAMES[0],
                    tokens=list(range(1 + BLOCK_SIZE, 1 + 3 * BLOCK_SIZE)),
                )
            ]
        ],
    )
    yield (
        "standard: every part of the identity is stated",
        lambda: publisher.publish(publisher.stored(CHAIN, 0, 1, **STATED), publisher.removed(CHAIN, 0, 1, **STATED)),
        [
            [
                _standard("stored", 1, names=_ROLLING[:1], base=0, **_STATED),
                _standard("removed", 2, names=_ROLLING[:1], base=0, **_STATED),
            ]
        ],
    )
    yield (
        "standard: two events without a batch",
        lambda: publisher.publish_bare(publisher.removed(CHAIN, 2, 4), publisher.cleared()),
        [[_standard("removed", 4, names=_ROLLING[2:], base=2)], [_standard("cleared", 5)]],
    )
    publisher.skip(7)
    yield (
        "standard: a removal that states no depth, after lost events",
        lambda: publisher.publish(publisher.removed(CHAIN, 0, 1, base_block_idx=None)),
        [[_standard("removed", 13, names=_ROLLING[:1])]],
    )
    neither = {"base_block_idx": None, "parent_hash": None}
    yield (
        "standard: a store without a place is bad, the next event is not",
        lambda: publisher.publish(publisher.stored(CHAIN, 0, 1, **neither), publisher.stored(CHAIN, 0, 1)),
        [[BAD, _standard("stored", 15, names=_ROLLING[:1], base=0)]],
    )


def record() -> dict:
    """Everything that both publishers send, with what it means."""
    cases = []
    for publisher, messages in (
        (Store(clock=lambda: MOMENT), _store_messages),
        (Standard(clock=lambda: MOMENT), _standard_messages),
    ):
        meanings = []
        try:
            for name, send, means in messages(publisher):
                send()
                meanings += [(name, events) for events in means]
            for (name, events), message in zip(meanings, _replayed(publisher), strict=True):
                cases.append(_case(name, events, *message))
        finally:
            publisher.close()
    return {"about": ABOUT, "cases": cases}


def _case(name: str, events: list, number: int, payload: bytes) -> dict:
    bare = payload[0] & 0xF0 == 0x80 or payload[0] == 0xDE  # a map
    return {
        "name": name,
        "number": number,
        "payload": payload.hex(),
        "means": {
            "batch": None if bare else {"ts": int(MOMENT * 1000), "rank": 0},
            "bad_events": events.count(BAD),
            "events": [event for event in events if event != BAD],
        },
    }


def _replayed(publisher) -> list[tuple[int, bytes]]:
    """All messages with their numbers, as a replay from 0 brings them."""
    messages = []
    with zmq.Context.instance().socket(zmq.DEALER) as dealer:
        dealer.connect(publisher.replay)
        dealer.send_multipart([b"", bytes(8)])
        while dealer.poll(5000):
            *_, number, payload = dealer.recv_multipart()
            if number == END:
                return messages
            messages.append((*struct.unpack(">Q", number), payload))
    raise TimeoutError("the replay does not end")


def render(recorded: dict) -> str:
    """The file: a few lines a message."""
    cases = [
        ",\n   ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in case.items())
        for case in recorded["cases"]
    ]
    body = ",\n".join(f"  {{{case}}}" for case in cases)
    return f'{{\n "about": {json.dumps(recorded["about"])},\n "cases": [\n{body}\n ]\n}}\n'
