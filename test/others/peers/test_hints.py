"""Hints where to fetch KV caches from are those of 1.6.1."""

import contextlib
import itertools
import random

import pytest
from dialect_wire import Call, Wire
from events import Prompt, Rank
from ports import free_ports
from programs import Program
from replicas import BLOCK_SIZE, eventually

pytestmark = pytest.mark.ours

FLEET = {1: 2, 2: 1, 3: 3, 2**53 + 1: 1}  # the ranks of each worker
RANKS = [(worker, number) for worker, size in FLEET.items() for number in range(size)]


class Pair:
    """Ours and 1.6.1, which get the same calls and events of the same engines."""

    def __init__(self, stack: contextlib.ExitStack, pytestconfig, **env: str):
        python = dict(peer.split("=", 1) for peer in pytestconfig.getoption("--peer")).get("1.6.1")
        if python is None:
            pytest.skip("there is no 1.6.1")
        ours = [pytestconfig.getoption("--service"), "--listen", "127.0.0.1", "--contract", "1.6"]
        self.wires = []
        for argv in (ours, [python, "-m", "dynamo.select_service", "--threads", "2"]):
            port = free_ports(1)
            program = Program([*argv, "--port", str(port)], port, **env)
            stack.callback(program.stop)
            self.wires.append(Wire(program.url, ""))
        self.ranks = {where: Rank(where[1]) for where in RANKS}
        for rank in self.ranks.values():
            stack.callback(rank.close)
        self._marks = itertools.count(1 << 20, BLOCK_SIZE)

    def register(self, extras: dict[int, dict]) -> None:
        for worker, size in FLEET.items():
            record = {
                "worker_id": worker,
                "endpoint": f"http://worker-{worker}",
                "block_size": BLOCK_SIZE,
                "data_parallel_size": size,
                "max_num_batched_tokens": 8192,
                "kv_events_endpoints": {str(number): self.ranks[worker, number].endpoint for number in range(size)},
            }
            self.both("POST", "/workers", record | extras.get(worker, {}))
        for rank in self.ranks.values():
            rank.heard()
            rank.heard()

    def both(self, method: str, path: str, body=None):
        """Makes a call of both, whose answers must be the same."""
        ours, theirs = (wire.send(Call(method, path, body)) for wire in self.wires)
        assert (ours.status, ours.body) == (theirs.status, theirs.body), f"{method} {path} {body}"
        return ours

    def settle(self, *where) -> None:
        """Waits until both have applied all events of a rank, of each tier."""
        mark = Prompt(range(start := next(self._marks), start + 2 * BLOCK_SIZE))
        rank = self.ranks[where]
        rank.store(mark, 0, 1)
        rank.store(mark, 1, 2, "CPU")
        for wire in self.wires:
            eventually(lambda wire=wire: self.found(wire, mark)[where], (1, 2), f"the mark of {where}")
        rank.remove(mark, 1, 2, "CPU")
        rank.remove(mark, 0, 1)

    def found(self, wire: Wire, prompt: Prompt) -> dict:
        """The blocks of a prompt on each rank's device, and with the host's behind them."""
        rows = wire.send(Call("POST", "/overlap_scores", prompt.form)).body["workers"]
        return {(row["worker_id"], row["dp_rank"]): (row["device_blocks"], row["host_pinned_blocks"]) for row in rows}

    def agree(self, prompt: Prompt) -> None:
        """Waits until both find the same of a prompt: the peer applies the tiers' events apart."""
        ours, theirs = self.wires
        eventually(lambda: self.found(theirs, prompt), self.found(ours, prompt), prompt.form)


def hint_record(chance: random.Random, worker: int, size: int) -> dict:
    """Members of a record that are about hints, most of which make a source of the worker."""
    record = {}
    if chance.random() < 0.9:
        record["router_hint_worker_type"] = chance.choice(["decode"] * 4 + ["prefill", ""])
    if chance.random() < 0.9:
        of = [number for number in range(size) if chance.random() < 0.9]
        record["router_hint_source_control_endpoints"] = {
            str(number): chance.choice(["", f"tcp://worker-{worker}:{9000 + number}"] + [f"tcp://w{worker}:{number}"] * 3) for number in of
        }
    if chance.random() < 0.3:
        record["kv_event_source_mode"] = chance.choice(["state_agent_v2", "engine", ""])
    return record


@pytest.mark.parametrize("round_", range(3))
def test_random_caches(round_, pytestconfig):
    """Random caches of two tiers on ranks of random records: each answer is the same, and many have hints."""
    chance = random.Random(f"hints {round_} {pytestconfig.getoption('--seed')}")
    with contextlib.ExitStack() as stack:
        pair = Pair(stack, pytestconfig)
        pair.register({worker: hint_record(chance, worker, size) for worker, size in FLEET.items()})
        pair.both("GET", "/workers")
        roots = [[chance.randrange(1000) for _ in range(6 * BLOCK_SIZE)] for _ in range(2)]
        prompts = []
        for number in range(8):
            root = chance.choice(roots)[: BLOCK_SIZE * chance.randrange(7)]
            tail = [2000 + number] * (BLOCK_SIZE * chance.randrange(1, 5) + chance.randrange(BLOCK_SIZE))
            prompts.append(Prompt([*root, *tail], chance.choice([None, None, "an-adapter"])))
        held = dict.fromkeys(RANKS, ())
        hints, names = 0, itertools.count()
        for step in range(60):
            where = chance.choice(RANKS)
            rank = pair.ranks[where]
            if held[where]:
                old, blocks, lower = held[where]
                rank.remove(old, blocks, lower, "CPU") if lower > blocks else None
                rank.remove(old, 0, blocks) if blocks else None
            prompt = chance.choice(prompts)
            blocks = chance.randrange(0, len(prompt) + 1)
            lower = chance.randrange(blocks, len(prompt) + 1)
            rank.store(prompt, 0, blocks) if blocks else None
            rank.store(prompt, blocks, lower, "CPU") if lower > blocks else None
            held[where] = prompt, blocks, lower
            pair.settle(*where)
            if step % 10 == 9:
                worker = chance.choice(list(FLEET))
                pair.both("PATCH", f"/workers/{worker}", hint_record(chance, worker, FLEET[worker]))
            for prompt in chance.sample(prompts, 3):
                pair.agree(prompt)
                for target in chance.sample(RANKS, 4):
                    pinned = {"pinned_worker": {"worker_id": target[0], "dp_rank": target[1]}}
                    name = f"r{next(names)}"
                    answer = pair.both("POST", "/select_and_reserve", prompt.form | pinned | {"selection_id": name})
                    assert answer.status == 200
                    if hint := answer.body.get("kv_hint"):
                        hints += 1
                        assert hint["message_id"] == name
                    assert "kv_hint" not in pair.both("POST", "/select", prompt.form | pinned).body
                    pair.both("DELETE", f"/reservations/{name}")
        assert hints > 20, "few answers have a hint"


@pytest.mark.parametrize("env", [{"DYN_ROUTER_PREDICTED_TTL_SECS": "600"}, {"DYN_ROUTER_TRACK_ACTIVE_BLOCKS": "false"}], ids=str)
def test_with_settings(env, pytestconfig):
    """With blocks that are only predicted there are no hints."""
    hinted = {
        worker: {
            "router_hint_worker_type": "decode",
            "router_hint_source_control_endpoints": {str(number): f"tcp://worker-{worker}:{number}" for number in range(size)},
        }
        for worker, size in FLEET.items()
    }
    with contextlib.ExitStack() as stack:
        pair = Pair(stack, pytestconfig, **env)
        pair.register(hinted)
        prompt = Prompt(range(5 * BLOCK_SIZE))
        pair.ranks[3, 2].store(prompt, 0, 4)
        pair.settle(3, 2)
        pair.agree(prompt)
        pinned = {"pinned_worker": {"worker_id": 1, "dp_rank": 0}}
        answer = pair.both("POST", "/select_and_reserve", prompt.form | pinned | {"selection_id": "a"})
        assert ("kv_hint" in answer.body) == ("DYN_ROUTER_PREDICTED_TTL_SECS" not in env)


def test_wrong_members(pytestconfig):
    """Both refuse the same values."""
    with contextlib.ExitStack() as stack:
        pair = Pair(stack, pytestconfig)
        for member in ("router_hint_worker_type", "router_hint_source_control_endpoints", "kv_event_source_mode"):
            for value in (None, 5, "text", [], {}, {"0": "tcp://a:1"}, {"0": 5}, {"x": "tcp://a:1"}, {"-1": "a"}, True):
                record = {"worker_id": 77, "endpoint": "http://worker-77", "block_size": 16, member: value}
                ours, theirs = (wire.send(Call("POST", "/workers", record)) for wire in pair.wires)
                assert ours.status == theirs.status, (member, value, ours, theirs)
                if ours.status < 300:
                    assert ours.body == theirs.body, (member, value)
                    pair.both("DELETE", "/workers/77")
