"""What is predicted from reservations beside KV events is what 1.6.1 predicts."""

import contextlib
import itertools
import random
import time
from urllib.parse import quote

import pytest
from dialect_wire import Call, Wire
from events import Prompt, Rank
from ports import free_ports
from programs import Program
from replicas import BLOCK_SIZE, eventually

pytestmark = pytest.mark.ours

FLEET = {1: 2, 2: 1}  # the ranks of each worker
STARTS = {"1.6": [], "v1.6 of 1.3": ["--contract", "1.3"]}


class Pair:
    """Ours and 1.6.1, which get the same calls and events of the same engines."""

    def __init__(self, stack: contextlib.ExitStack, pytestconfig, start: str, ttl: float):
        python = dict(peer.split("=", 1) for peer in pytestconfig.getoption("--peer")).get("1.6.1")
        if python is None:
            pytest.skip("there is no 1.6.1")
        ours = [pytestconfig.getoption("--service"), "--listen", "127.0.0.1", *(STARTS[start] or ["--contract", "1.6"])]
        self.wires = []
        for argv, prefix in ((ours, "/v1.6"), ([python, "-m", "dynamo.select_service", "--threads", "2"], "")):
            port = free_ports(1)
            program = Program([*argv, "--port", str(port)], port, DYN_ROUTER_PREDICTED_TTL_SECS=str(ttl))
            stack.callback(program.stop)
            self.wires.append(Wire(program.url, prefix))
        self.ranks = {(worker, number): Rank(number) for worker, size in FLEET.items() for number in range(size)}
        for rank in self.ranks.values():
            stack.callback(rank.close)
        for worker, size in FLEET.items():
            self.play("POST", "/workers", {
                "worker_id": worker,
                "endpoint": f"http://worker-{worker}",
                "block_size": BLOCK_SIZE,
                "data_parallel_size": size,
                "max_num_batched_tokens": 8192,
                "kv_events_endpoints": {str(number): self.ranks[worker, number].endpoint for number in range(size)},
            })  # fmt: skip
        for rank in self.ranks.values():
            rank.heard()
            rank.heard()
        self._marks = itertools.count(1 << 20, BLOCK_SIZE)

    def play(self, method: str, path: str, body=None):
        """Makes a call of both, whose answers must be the same."""
        ours, theirs = (wire.send(Call(method, path, body)) for wire in self.wires)
        assert (ours.status, ours.body if ours.status < 400 else 0) == (
            theirs.status,
            theirs.body if theirs.status < 400 else 0,
        ), f"{method} {path} {body}: {ours}, {theirs}"
        return ours

    def found(self, wire: Wire, form: dict) -> dict:
        """The blocks of a prompt by rank: of the device, with the host's, with the disk's."""
        answer = wire.send(Call("POST", "/overlap_scores", form))
        assert answer.status == 200, answer
        return {
            (row["worker_id"], row["dp_rank"]): tuple(
                row[key]
                for key in ("device_blocks", "host_pinned_blocks", "disk_blocks")
                + ("host_pinned_extension_blocks", "disk_extension_blocks")
            )
            for row in answer.body["workers"]
        }

    def agree(self, form: dict, what: str) -> None:
        """Waits until both find the same: the peer applies the tiers' events apart."""
        ours, theirs = self.wires
        eventually(lambda: self.found(theirs, form), self.found(ours, form), what)

    def settle(self, *where) -> None:
        """Waits until both have applied all events of a rank."""
        mark = Prompt(range(start := next(self._marks), start + BLOCK_SIZE))
        self.ranks[where].store(mark, 0, 1)
        for wire in self.wires:
            eventually(lambda: self.found(wire, mark.form)[where][0], 1, f"the mark of {where}")
        self.ranks[where].remove(mark, 0, 1)

    def dumped(self, wire: Wire) -> dict:
        """The engines' names of the blocks that a dump has, by rank and tier."""
        blocks = set()
        for scope in wire.send(Call("GET", "/dump")).body.values():
            for event in scope["events"]:
                stored = event["event"]["data"]["stored"]["blocks"]
                where = event["worker_id"], event["event"]["dp_rank"], event.get("storage_tier")
                blocks |= {(*where, block["block_hash"]) for block in stored}
        return blocks


@pytest.mark.parametrize("start", STARTS)
def test_histories(start, pytestconfig):
    """Random reservations of all kinds beside random events: every prompt is found
    alike, every answer is the same, and no dump has a prediction."""
    chance = random.Random(f"{start} {pytestconfig.getoption('--seed')}")
    with contextlib.ExitStack() as stack:
        pair = Pair(stack, pytestconfig, start, 600)
        # Prompts that share beginnings of 0 to 6 blocks, with an incomplete block.
        roots = [[chance.randrange(1000) for _ in range(6 * BLOCK_SIZE)] for _ in range(3)]
        prompts = []
        for number in range(16):
            root = chance.choice(roots)[: BLOCK_SIZE * chance.randrange(7)]
            tail = [2000 + number] * (BLOCK_SIZE * chance.randrange(1, 5) + chance.randrange(BLOCK_SIZE))
            prompts.append(Prompt([*root, *tail], chance.choice([None, None, "an-adapter"])))
        held = dict.fromkeys(pair.ranks, ())  # what a rank's device has: one prompt, some blocks
        live = []
        for step in range(250):
            prompt, where = chance.choice(prompts), chance.choice(list(pair.ranks))
            pinned = {"pinned_worker": {"worker_id": where[0], "dp_rank": where[1]}}
            name, kind = f"r{step}", chance.randrange(8)
            match kind:
                case 0:
                    pair.play("POST", "/select", prompt.form | pinned)
                case 1 | 2:
                    pair.play("POST", "/select_and_reserve", prompt.form | pinned | {"selection_id": name})
                    live.append(name)
                case 3:
                    pair.play("POST", "/select", prompt.form | pinned | {"selection_id": name})
                    if chance.random() < 0.7:
                        pair.play("POST", "/reservations", {"selection_id": name})
                        live.append(name)
                case 4:
                    rank = {"worker_id": where[0], "dp_rank": where[1], "selection_id": name}
                    blocks = [chance.randrange(1, 4) for _ in range(chance.randrange(1, 6))]
                    form = {"sequence_hashes": [7 * step + i for i in range(len(blocks))], "isl_tokens": 99}
                    if chance.random() < 0.8:
                        form["block_hashes"] = blocks if chance.random() < 0.9 else blocks[1:]
                    pair.play("POST", "/reservations", rank | (prompt.form if chance.random() < 0.5 else form))
                    asked = {"block_hashes": blocks, "sequence_hashes": blocks, "isl_tokens": 99}
                    pair.agree(asked, f"step {step}: {asked}")
                    live.append(name)
                case 5 if live:
                    pair.play("DELETE", f"/reservations/{live.pop(chance.randrange(len(live)))}")
                case _:
                    rank = pair.ranks[where]
                    if held[where]:
                        old, blocks, lower = held[where]
                        rank.remove(old, blocks, lower, "CPU") if lower > blocks else None
                        rank.remove(old, 0, blocks)
                    blocks = chance.randrange(1, len(prompt) + 1)
                    lower = chance.randrange(blocks, len(prompt) + 1)
                    rank.store(prompt, 0, blocks)
                    rank.store(prompt, blocks, lower, "CPU") if lower > blocks else None
                    held[where] = prompt, blocks, lower
                    pair.settle(*where)
            for asked in prompts:
                pair.agree(asked.form, f"step {step}, {kind} at {where}: {asked.form}")
        ours, theirs = pair.wires
        names = {(*where, "device", p.block(i)) for where, (p, n, _) in ((w, h) for w, h in held.items() if h) for i in range(n)}
        eventually(lambda: {block for block in pair.dumped(ours) if block[2] == "device"}, names, "what ours dumps of the events")
        eventually(lambda: pair.dumped(theirs), pair.dumped(ours), "what the peer dumps")


TTL = 3  # seconds


def test_ttl(pytestconfig):
    """The time runs from the last reservation of a block, of whatever length."""
    with contextlib.ExitStack() as stack:
        pair = Pair(stack, pytestconfig, "1.6", TTL)
        assert any(expires(pair, Prompt(range(start, start + 5 * BLOCK_SIZE))) for start in range(0, 1000, 100)), "what is left of the first"


def expires(pair: Pair, long: Prompt) -> bool:
    """Reserves five blocks, and two of them again in the middle of their time. Neither service loses a block before its
    time, or keeps one. Whether both were seen with these two alone: a machine that stands still may have missed it."""
    rank = {"worker_id": 1, "dp_rank": 1}
    sent = {}  # when the last reservation of so many blocks was made
    seen = [set() for _ in pair.wires]

    def look() -> bool:
        """Whether there are any blocks left."""
        for wire, found in zip(pair.wires, seen, strict=True):
            left = pair.found(wire, long.form)[1, 1][0]
            found.add(left)
            for blocks, at in sent.items():
                assert left >= blocks or time.monotonic() >= at + TTL, f"{left} blocks at {wire}, of {blocks}"
        return not all(0 in found for found in seen)

    for blocks in (5, 2):
        at = time.monotonic()
        name = f"{blocks} of {long.tokens[0]}"
        pair.play("POST", "/reservations", rank | {"selection_id": name} | long.head(blocks).form)
        pair.play("DELETE", f"/reservations/{quote(name)}")
        if sent and time.monotonic() > sent[5] + TTL:
            return False  # the second was too late
        sent[blocks] = at
        while look() and time.monotonic() < at + TTL / 2:
            time.sleep(0.02)
    eventually(look, False, "whether blocks are left")
    return all(2 in found for found in seen)
