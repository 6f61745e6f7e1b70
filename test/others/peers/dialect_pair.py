"""Two services that get the same calls and must answer alike, in step."""

import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote

from dialect_caches import Caches
from dialect_cost import Weights, attraction, cheapest, told
from dialect_decisions import Dialect
from dialect_fleet import ANCHORS, SCOPES, Fleet, Scope
from dialect_wire import Call, Wire, comparable, rank, ranks_of, told_apart
from programs import Answer
from replicas import PATIENCE

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_PROMPT = (
    "model_name",
    "token_ids",
    "mm_routing_info",
    "block_mm_infos",
    "block_hashes",
    "sequence_hashes",
    "isl_tokens",
    "lora_name",
    "is_eagle",
    "cache_salt",
)


class Pair(Caches):
    """Ours and the peer. Its state is the peer's, which ours must share."""

    def __init__(
        self,
        dialect: Dialect,
        ours: Wire,
        theirs: Wire,
        fleet: Fleet,
        weights=Weights(),
        events=True,
        prefix_only=False,
    ):
        self.dialect, self.ours, self.theirs, self.fleet = dialect, ours, theirs, fleet
        self.events = events
        # Those of ours, which may follow the other contract in that, and of the peer.
        self.weights = replace(weights, prefix_only=prefix_only)
        self.their_weights = replace(weights, prefix_only=not dialect.old)
        self.records: dict[int, dict] = {}  # the workers, as both list them
        self.live: dict[str, tuple[Scope, int, int]] = {}  # the bookings, and where they are
        self.seen: Counter[str] = Counter()  # how often which decision made a difference
        self.calls = 0
        self.log: list[str] = []
        self.kept: dict[str, Scope | None] = {}  # ids of selections, and their scopes
        self.home: Scope | None = None  # where bookings can be freed; None: everywhere

    def find_home(self) -> None:
        """1.3.1 frees bookings in one of its scopes only: finds that one."""
        for number, scope in enumerate(SCOPES if self.dialect.old else ()):
            booking = f"r{number}-home"
            names = {"model_name": scope.model, self.dialect.group: scope.group}
            self.play(Call("POST", "/select_and_reserve", names | {"token_ids": [1], self.dialect.booking: booking}))
            assert self.theirs.send(self._free(booking)).status == 200
            if self.theirs.send(Call("POST", f"/reservations/{booking}/prefill_complete")).status == 404:
                assert self.ours.send(self._free(booking)).status == 200
                del self.live[booking]
                self.home = scope
            else:
                assert self.ours.send(Call("POST", f"/reservations/{booking}/prefill_complete")).status == 200

    # Calls

    def play(self, call: Call) -> None:
        """Makes a call of both and holds the answers against each other."""
        self.calls += 1
        if self.events and call.method == "POST" and isinstance(call.body, dict):
            self.exact(call.fields)
        route, _, rest = call.route[1:].partition("/")
        if call.method == "POST" and route.startswith("select") and not rest:
            self._select(call)
        elif call.method == "POST" and route == "reservations" and not rest:
            self._book(call)
        elif route == "reservations":
            self._continue(call, unquote(rest.partition("/")[0]))
        elif route == "workers" and call.method in ("POST", "PATCH", "DELETE"):
            self._register(call, call.fields.get("worker_id") if not rest else _number(rest))
        else:
            self.exchange(call)

    def exchange(self, call: Call) -> tuple[Answer, Answer]:
        """Sends a call to both, who must answer alike."""
        ours, theirs = self.ours.send(call), self.theirs.send(call)
        self.note(call, ours, theirs)
        self.alike(call, ours, theirs)
        return ours, theirs

    def alike(self, call: Call, ours: Answer, theirs: Answer) -> None:
        """Ours must be the peer's answer, or what was decided in its place."""
        got = comparable(call, ours)
        want = self.decided(call, got, comparable(call, theirs))
        assert got == want, told_apart(call, got, want)
        for decision in self.dialect.decisions:
            if decision.repair:
                decision.repair(self, call, ours, theirs)

    def decided(self, call: Call, ours: Answer, answer: Answer) -> Answer:
        """The peer's answer with what was decided in its place."""
        for decision in self.dialect.decisions:
            changed = decision.answer(self, call, ours, answer) if decision.answer else None
            if changed is not None and changed != answer:
                answer = changed
                self.seen[decision.name] += 1
        return answer

    def settle(self, *paths: str) -> None:
        """Waits until both tell the same of their state, which follows their answers."""
        for path in paths or ("/loads",):
            call, deadline = Call("GET", path), time.monotonic() + PATIENCE
            while True:
                ours, theirs = (comparable(call, wire.send(call)) for wire in (self.ours, self.theirs))
                theirs = self.decided(call, ours, theirs)
                if ours == theirs:
                    break
                assert time.monotonic() < deadline, told_apart(call, ours, theirs)
                time.sleep(0.005)

    # Bookings

    def _select(self, call: Call) -> None:
        """The choice is free among ranks of equal cost: each side's must be one of
        them, with the answer that the peer gives for that rank, and after a
        booking ours follows the peer's choice."""
        kept = call.fields.get(self.dialect.booking) if self.dialect.keeps and call.route == "/select" else None
        if isinstance(kept, str):
            self.kept[kept] = self.scope(call.fields)
        books = call.route == "/select_and_reserve"
        if _session(call.fields):  # it may be bound to any rank, the same on both sides
            ours, _ = self.exchange(call)
            if books and ours.status == 200:
                self._booked(ours.body)
            return self.settle()
        ids = ("selection_id", self.dialect.booking)
        best, other = self._agreed(call, without=(*ids, "advisory"))
        if not best:  # nothing to choose from: refused alike
            ours, theirs = self.exchange(call)
            assert ours.status != 200, f"{call}: chosen, which the formula does not expect"
            return
        ours = self.ours.send(call)
        if ours.status != 200:
            self.note(call, ours, theirs := self.theirs.send(call))
            return self.alike(call, ours, theirs)
        mine = rank(ours.body)
        asked = self._pinned(call.fields, mine, without=(*ids, "advisory") if books else ids)
        question = replace(call, path="/select", body=asked)
        expected = self.theirs.send(question)
        theirs = self.theirs.send(call)
        self.note(call, ours, theirs)
        assert theirs.status == 200, f"{call}: ours {ours}, theirs {theirs}"
        assert mine in best, f"{call}: ours chose {mine}, of minimal cost are {best}"
        assert rank(theirs.body) in other, f"{call}: the peer chose {rank(theirs.body)}, of minimal cost are {other}"
        self.seen["override"] += best != other
        same = {key: value for key, value in ours.body.items() if key in expected.body}
        assert same == expected.body, f"{call}\n ours   {ours.body}\n theirs {expected.body}"
        if not books:
            if rank(theirs.body) == mine:
                self.alike(call, ours, theirs)
            elif self.dialect.keeps and self.dialect.booking in call.fields:
                # The selection is kept for later: ours has to keep the peer's.
                again = replace(call, body=self._pinned(call.fields, rank(theirs.body)))
                self.alike(call, self.ours.send(again), theirs)
            return
        name = self.dialect.booking
        if rank(theirs.body) != mine:
            assert self.ours.send(self._free(ours.body[name])).status == 200
            ours = self.ours.send(replace(call, body=self._pinned(call.fields, rank(theirs.body))))
        if call.fields.get(name) is None:  # each has made an id of its own
            for wire, body in ((self.ours, ours.body), (self.theirs, theirs.body)):
                assert _UUID.fullmatch(body[name]), body
                assert wire.send(self._free(body[name])).status == 200
            ours, theirs = (Answer(a.status, a.body | {name: "made"}) for a in (ours, theirs))
        else:
            self._booked(theirs.body)
        self.alike(call, ours, theirs)
        self.settle()

    def _agreed(self, call: Call, without) -> tuple:
        """The ranks of least cost on ours and on the peer, once both choose among them: either may
        apply an earlier call or event after its answer, and choose by it later than it tells of it."""
        trial = replace(call, path="/select", body={key: v for key, v in call.fields.items() if key not in without})
        deadline = time.monotonic() + PATIENCE
        while True:
            best, other = self._cheapest(call.fields), self._cheapest(call.fields, theirs=True)
            if not best:
                return best, other
            answers = (self.ours.send(trial), best), (self.theirs.send(trial), other)
            agreed = all(answer.status != 200 or rank(answer.body) in least for answer, least in answers)
            if agreed or time.monotonic() > deadline:
                return best, other
            time.sleep(0.01)

    def note(self, call: Call, ours: Answer, theirs: Answer) -> None:
        self.log.append(f"{call}\n    ours   {ours.status} {ours.body}\n    theirs {theirs.status} {theirs.body}")

    def _booked(self, body: dict) -> None:
        self.live[body[self.dialect.booking]] = (self.scope(body), *rank(body))

    def scope(self, fields: dict) -> Scope | None:
        names = fields.get("model_name", "default"), fields.get(self.dialect.group, "default")
        return next((scope for scope in SCOPES if (scope.model, scope.group) == names), None)

    def number(self, fields: dict) -> int:
        """The scope's number, with which the ids of its bookings begin."""
        scope = self.scope(fields)
        return SCOPES.index(scope) if scope else len(SCOPES)

    def _pinned(self, fields: dict, where: tuple[int, int], without=()) -> dict:
        pinned = fields | {"pinned_worker": {"worker_id": where[0], "dp_rank": where[1]}}
        return {key: value for key, value in pinned.items() if key not in without}

    def _free(self, booking: str) -> Call:
        return Call("DELETE", f"/reservations/{booking}")

    def _cheapest(self, fields: dict, theirs=False) -> set[tuple[int, int]] | None:
        """The ranks that ours may choose by the formula, or the peer; None if nothing
        can be asked."""
        question = self.question(fields)
        scores, loads = (self.theirs.send(Call("POST", path, question)) for path in ("/overlap_scores", "/potential_loads"))
        if (scores.status, loads.status) != (200, 200):
            return None
        with suppress(AttributeError, KeyError, TypeError):  # members of a wrong form are refused
            length = prompt_tokens(fields)
            eligible = self._eligible(fields)
            override = fields.get("router_config_override") or {}
            if theirs:
                override = {key: value for key, value in override.items() if key in self.dialect.overrides}
            weights = (self.their_weights if theirs else self.weights).overridden(override)
            ranks = told(scores.body, loads.body, length, self.weights)
            return cheapest(ranks, eligible, scores.body["block_size"], length, weights)
        return None

    def question(self, fields: dict) -> dict:
        """What of a call names its prompt."""
        return {key: fields[key] for key in (*_PROMPT, self.dialect.group) if key in fields}

    def _eligible(self, fields: dict) -> dict[tuple[int, int], float]:
        """The eligible ranks, each with the factor of its taints."""
        constraints = fields.get("routing_constraints", {})
        allowed, pinned = fields.get("allowed_worker_ids"), fields.get("pinned_worker")
        names = fields.get("model_name", "default"), fields.get(self.dialect.group, "default")
        eligible = {}
        for worker, record in self.records.items():
            taints = set(record["taints"])
            if (
                record["lifecycle"] != "schedulable"
                or (record["model_name"], record[self.dialect.group]) != names
                or (allowed is not None and worker not in allowed)
                or not taints.issuperset(constraints.get("required_taints", []))
            ):
                continue
            factor = attraction(taints, constraints.get("preferred_taints", {}))
            eligible |= {(worker, number): factor for number in ranks_of(record)}
        if pinned is not None:
            eligible = {key: 1.0 for key in eligible if key == rank(pinned)}
        return eligible

    def sticks(self, call: Call) -> bool:
        """Whether a call leaves behind what cannot be undone, where its choice is
        free: a session's rank, or a predicted cache."""
        fields = call.fields
        books = call.path == "/select_and_reserve"
        if _session(fields) and books and fields.get(self.dialect.booking) is None:
            return True
        predicts = not self.events and not self.dialect.old and books
        if not _session(fields) and not predicts:
            return False
        return len((self._cheapest(fields) or set()) | (self._cheapest(fields, theirs=True) or set())) > 1

    def _book(self, call: Call) -> None:
        ours, theirs = self.exchange(call)
        if ours.status in (200, 201):
            self._booked(ours.body)
        self.settle()

    def _continue(self, call: Call, booking: str) -> None:
        ours, theirs = self.exchange(call)
        if call.method == "DELETE" and ours.status == 200:
            self.live.pop(booking, None)
        self.settle()

    # Workers

    def _register(self, call: Call, worker) -> None:
        """A change of the catalog. What the peer would lose with it and ours keeps
        is taken from both before."""
        if not isinstance(worker, int):
            worker = None
        assert worker not in ANCHORS
        if worker in self.records and self.dialect.shaken(self.records[worker], call):
            self.rest(worker)
        self.exchange(call)
        self.read()
        if worker in self.records:
            self.listen(worker)

    def read(self) -> None:
        """Reads the catalog, which must be the same on both sides."""
        self.settle("/workers")
        self.records = {record["worker_id"]: record for record in self.ours.get("/workers")}
        self.settle("/ready", "/loads")
        for booking, (scope, worker, number) in list(self.live.items()):
            record = self.records.get(worker)
            if not record or self.scope(record) != scope or number not in ranks_of(record):
                del self.live[booking]

    def rest(self, worker: int) -> None:
        """Frees the worker's bookings and empties its caches."""
        for booking, (scope, owner, _) in list(self.live.items()):
            if owner != worker:
                continue
            if self.home in (None, scope):
                self._continue(self._free(booking), booking)
            else:
                self.exchange(Call("DELETE", f"/workers/{worker}"))
                self.read()
                break
        self.empty(worker)


def _session(fields: dict) -> bool:
    return any(fields.get(key) is not None for key in ("session_id", "session_context"))


def prompt_tokens(fields: dict) -> int:
    """The prompt's length in tokens."""
    routing = (fields.get("mm_routing_info") or {}).get("routing_token_ids")
    ids = routing or fields.get("token_ids")
    return len(ids) if ids is not None else fields.get("isl_tokens") or 0


def _number(text: str):
    return int(text) if text.isdecimal() else text
