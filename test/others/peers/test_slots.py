"""Our slot tracker and Dynamo's answer the same calls alike."""

import hashlib
import json
import random
import re

import pytest
from ports import free_ports
from programs import Answer, Http

STEPS = 300
MODELS, GROUPS = ("a", "a b", ""), ("default", "other", "")
IDS = [f"r{number}" for number in range(12)]


@pytest.fixture(scope="module")
def door(entrance, subject):
    """One of the ways to our slot tracker: the program of its own, a port of the
    selection service, or a prefix there."""
    if entrance == "program":
        program = door = subject.slots()
    else:
        port = free_ports(1)
        program = subject.selection(slots_port=port)
        door = Http(f"http://127.0.0.1:{port}" if entrance == "port" else f"{program.url}/slots")
    yield door
    program.stop()


@pytest.mark.parametrize("seed", range(3))
def test_both_answer_alike(door, subject, peer, seed):
    theirs = peer.slots()
    try:
        calls = Calls(random.Random(f"{seed} {peer.name}"), huge=subject.caps_ranks and peer.caps_ranks)
        for step in range(STEPS):
            method, path, body = calls.next()
            got = [
                comparable(path, target.send(method, *worded(system.group, path, body)))
                for system, target in ((subject, door), (peer, theirs))
            ]
            assert got[0] == got[1], f"step {step}: {method} {path} {body}"
    finally:
        theirs.stop()
        for worker in door.call("GET", "/workers"):  # the next one begins with none
            door.call("POST", "/unregister", worker)


def worded(group: str, path: str, body):
    """A call in the words of a release."""
    text = body if isinstance(body, str) or body is None else json.dumps(body)
    return path.replace("tenant_id", group), text and text.replace('"tenant_id"', f'"{group}"')


# What parsers say is not compared, only that they refuse alike.
_PARSED = re.compile(r"Failed to |Expected request with ")


def comparable(path: str, answer: Answer):
    body = answer.body
    if isinstance(body, dict) and isinstance(text := body.get("error"), str):
        body = {"error": text if not _PARSED.match(text) else "parser"}
        body["error"] = body["error"].replace("routing_group=", "tenant=")
    elif isinstance(body, list):
        body = [{"tenant_id" if k == "routing_group" else k: v for k, v in row.items()} for row in body]
        if path == "/potential_loads":
            body.sort(key=lambda row: (row["worker_id"], row["dp_rank"]))
    return answer.status, body


class Calls:
    """Random calls, most of which mean something."""

    def __init__(self, chance: random.Random, huge: bool):
        self._chance = chance
        self._huge = huge  # 1.3.1 makes room for any number of ranks
        self._kinds = {
            self._register: 10,
            self._unregister: 3,
            self._add: 40,
            self._complete: 10,
            self._free: 15,
            self._project: 20,
            self._list: 15,
            self._broken: 8,
            self._lost: 3,
        }

    def next(self):
        """Returns method, path and body (None: without)."""
        (kind,) = self._chance.choices(list(self._kinds), self._kinds.values())
        return kind()

    def _scope(self, **fields) -> dict:
        model, group = self._skewed(MODELS), self._skewed(GROUPS)
        if group == "default" and self._chance.random() < 0.5:
            return {"model_name": model, **fields}
        return {"model_name": model, "tenant_id": group, **fields}

    def _skewed(self, values):
        """One of the values, the first most often."""
        return self._chance.choices(values, [12, 3, 1][: len(values)])[0]

    def _register(self):
        start, size = self._chance.randrange(3), self._chance.choice([1, 1, 2, 3, 0])
        if self._chance.random() < 0.1:
            start, size = (2**32 - 1, 1) if self._chance.random() < 0.5 or not self._huge else (0, 4097)
        return "POST", "/register", self._scope(
            worker_id=self._worker(), block_size=self._skewed([16, 8, 0]), dp_start=start, dp_size=size
        )

    def _worker(self) -> int:
        return self._chance.choice([1, 2, 3, 2**64 - 1])

    def _unregister(self):
        return "POST", "/unregister", self._scope(worker_id=self._worker())

    def _add(self):
        return "POST", "/add", self._scope(
            request_id=self._chance.choice(IDS),
            worker_id=self._worker(),
            dp_rank=self._chance.randrange(5),
            sequence_hashes=self._hashes(),
            **self._tokens(),
        )

    def _tokens(self) -> dict:
        return {} if self._chance.random() < 0.2 else {"new_isl_tokens": self._chance.randrange(100)}

    def _hashes(self) -> list[int]:
        """Chained hashes: each names everything before it."""
        path = self._chance.choices("ab", k=self._chance.randrange(6))
        digests = (hashlib.sha256("".join(path[: n + 1]).encode()).digest() for n in range(len(path)))
        return [int.from_bytes(digest[:8], "big", signed=True) for digest in digests]

    def _complete(self):
        return "POST", "/prefill_complete", self._scope(request_id=self._chance.choice(IDS))

    def _free(self):
        return "POST", "/free", self._scope(request_id=self._chance.choice(IDS))

    def _project(self):
        return "POST", "/potential_loads", self._scope(sequence_hashes=self._hashes(), **self._tokens())

    def _list(self):
        query = [
            f"{key}={value.replace(' ', '%20')}"
            for key, value in (("model_name", self._skewed(MODELS)), ("tenant_id", self._skewed(GROUPS)), ("x", "y"))
            if self._chance.random() < 0.3
        ]
        path = self._chance.choice(["/loads", "/loads", "/workers"])
        return "GET", path + ("?" + "&".join(query) if query else ""), None

    def _broken(self):
        """A call with one fault in its body."""
        method, path, body = self._chance.choice([self._register, self._add, self._complete, self._project])()
        field = self._chance.choice(list(body))
        fault = self._chance.choice(["missing", None, "text", 7, -1, 1.5, 2**64, [], {}, "cut", "unknown"])
        if fault == "missing":
            del body[field]
        elif fault == "cut":
            body = json.dumps(body)[: self._chance.randrange(1, 20)]
        elif fault == "unknown":
            body["unknown"] = field
        else:
            body[field] = fault
        return method, path, body

    def _lost(self):
        """A route or method that is not there."""
        return self._chance.choice(
            [
                ("GET", "/", None),
                ("GET", "/add", None),
                ("POST", "/loads", {}),
                ("GET", "/loads/", None),
                ("DELETE", "/workers", None),
                ("POST", "/nothing", {}),
                ("GET", "/health", None),
            ]
        )

