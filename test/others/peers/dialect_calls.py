"""Random calls, most of which mean something."""

import json
import random
from urllib.parse import quote

from dialect_decisions import MORE
from dialect_fleet import ADAPTER, DEEPEST, SCOPES, Scope, hashes, tokens
from dialect_pair import Pair
from dialect_wire import Call, ranks_of

WORKERS = (1, 2, 3, 4, 2**53 + 1, 2**64 - 1)
TAINTS = ("fast", "large", "old")
ENDPOINTS = ("nope", "tcp://", "tcp://127.0.0.1", "tcp://:80", "tcp://h:port", "udp://h:1", "tcp://[::1:80")


class Calls:
    """Calls for a pair of services in the state that they are in."""

    def __init__(self, chance: random.Random, pair: Pair):
        self._chance, self._pair, self._dialect = chance, pair, pair.dialect
        self._ended = 0  # sessions that a single call has begun and ended
        self._kinds = {
            self._register: 5,
            self._patch: 4,
            self._delete_worker: 2,
            self._list: 7,
            self._select: 18,
            self._reserve: 18,
            self._book: 11,
            self._continue: 14,
            self._free: 11,
            self._ask: 12,
            self._replica: 4,
            self._broken: 14,
            self._lost: 5,
        }

    def next(self) -> Call:
        while True:
            (kind,) = self._chance.choices(list(self._kinds), self._kinds.values())
            call = kind()
            if self._pair.sticks(call):
                continue
            if not any(defect.hit(self._pair, call) for defect in self._dialect.defects):
                return call

    def turn(self) -> tuple[int, int] | None:
        """A rank whose cache may change."""
        pair = self._pair
        heard = [worker for worker in sorted(pair.records) if pair.hears(worker)]
        heard = [(worker, number) for worker in heard for number in ranks_of(pair.records[worker])]
        return self._chance.choice(heard) if heard else None

    def anchors(self) -> list[Call]:
        """The workers that stay."""
        return [Call("POST", "/workers", self.record(scope.anchor, scope, scope.anchor_ranks)) for scope in SCOPES]

    # Workers

    def record(self, worker: int, scope: Scope, size: int, start: int | None = None) -> dict:
        """A worker that can be selected, and whose events are heard."""
        record = {
            "worker_id": worker,
            "model_name": scope.model,
            self._dialect.group: scope.group,
            "endpoint": f"http://worker-{worker}",
            "block_size": scope.block_size,
            "max_num_batched_tokens": 8192,
            **self._listening(worker, range(start or 0, (start or 0) + size)),
        }
        if size != 1 or self._maybe(0.3):
            record["data_parallel_size"] = size
        if start is not None:
            record["data_parallel_start_rank"] = start
        if scope.eagle:
            record["is_eagle"] = True
        return record

    def _listening(self, worker: int, ranks: range) -> dict:
        where = {str(number): self._pair.fleet.stream(worker, number).endpoint for number in ranks}
        if len(where) == 1 and self._maybe(0.5):
            return {"kv_events_endpoint": where.popitem()[1]}
        return {"kv_events_endpoints": where}

    def _extras(self) -> dict:
        """Members that any worker may have."""
        offered = {
            "total_kv_blocks": lambda: self._chance.choice([16, 64, 4096]),
            "taints": lambda: self._chance.sample(TAINTS, self._chance.randrange(3)),
            "topology_domains": lambda: {"zone": self._chance.choice("ab")},
            "kv_transfer_domain": lambda: "rack",
            "kv_transfer_enforcement": lambda: self._chance.choice(["required", "preferred"]),
            "kv_transfer_preferred_weight": lambda: 0.5,
            "stable_routing_id": lambda: "stable",
            "endpoint": lambda: f"http://other-{self._chance.randrange(3)}",
        }
        return {key: offered[key]() for key in self._chance.sample(list(offered), self._chance.randrange(3))}

    def _fault(self, scope: Scope) -> dict:
        """Members with which a worker cannot be selected, or conflicts with others."""
        return self._chance.choice(
            [
                {"endpoint": None},
                {"endpoint": ""},
                {"block_size": None},
                {"block_size": 0},
                {"block_size": 2 * scope.block_size},
                {"is_eagle": not scope.eagle},
                {"data_parallel_size": 0},
                {"data_parallel_size": 5},
                {"max_num_batched_tokens": None},
                {"kv_events_endpoint": None, "kv_events_endpoints": {}},
                {"kv_events_endpoints": {"7": "tcp://127.0.0.1:9"}},
                {"kv_events_endpoint": self._chance.choice(ENDPOINTS), "kv_events_endpoints": {}},
                {"data_parallel_size": 1, "replay_endpoint": self._chance.choice([*ENDPOINTS, "tcp://*:9"])},
            ]
        )

    def _register(self) -> Call:
        scope = self._scope()
        start = self._chance.choice([None, None, None, 0, 1, 5])
        record = self.record(self._chance.choice(WORKERS), scope, self._chance.choice([1, 1, 2, 3]), start)
        record |= self._extras()
        if self._maybe(0.2):
            record |= self._fault(scope)
            if self._maybe(0.3):
                record |= self._fault(scope)
            record = {key: value for key, value in record.items() if value is not None}
        return Call("POST", "/workers", record)

    def _patch(self) -> Call:
        worker = self._chance.choice(WORKERS)
        record = self._pair.records.get(worker)
        scope = (record and self._pair.scope(record)) or SCOPES[0]
        kind = self._chance.random()
        if kind < 0.6:
            change = self._extras()
        elif kind < 0.75:
            change = self._fault(scope)
        else:
            size = self._chance.choice([1, 2])
            start = ranks_of(record).start if record else 0
            change = {"data_parallel_size": size, **self._listening(worker, range(start, start + size))}
            change |= {"block_size": scope.block_size, "endpoint": "http://again", "is_eagle": scope.eagle}
        return Call("PATCH", f"/workers/{worker}", change)

    def _delete_worker(self) -> Call:
        return Call("DELETE", f"/workers/{self._chance.choice(WORKERS)}")

    def _list(self) -> Call:
        path = self._chance.choice(["/workers", "/workers", "/loads", "/loads", "/ready", "/health", "/dump"])
        names = {
            "model_name": self._chance.choice(["m", "a b", "e", "", "nobody"]),
            self._dialect.group: self._chance.choice(["default", "other", ""]),
            "x": "y",
        }
        query = "&".join(f"{key}={quote(value)}" for key, value in names.items() if self._maybe(0.3))
        return Call("GET", path + ("?" + query if query else ""))

    # Selections

    def _scope(self) -> Scope:
        return self._chance.choices(SCOPES, [8, 3, 2, 1])[0]

    def _names(self, scope: Scope) -> dict:
        if scope.group == "default" and self._maybe(0.5):
            return {"model_name": scope.model}
        return {"model_name": scope.model, self._dialect.group: scope.group}

    def _prompt(self, scope: Scope) -> dict:
        """A prompt in one of its forms."""
        size = scope.block_size
        path = "".join(self._chance.choices("ab", [3, 1], k=self._chance.randint(0, DEEPEST)))
        ids = tokens(path, size) + [7] * self._chance.randrange(size)
        ids = ids or [7]
        adapter = ADAPTER if self._maybe(0.2) else None
        named = {"lora_name": adapter} if adapter or self._maybe(0.05) else {}
        if self._maybe(0.05):
            named["is_eagle"] = self._maybe(0.5)
        if not self._dialect.old and self._maybe(0.05):
            named["cache_salt"] = "a-salt"
        if not self._dialect.old and self._maybe(0.03):
            ids = []
        kind = self._chance.random()
        if kind < 0.6:
            return {"token_ids": ids, **named}
        if kind < 0.7:
            return {"token_ids": [1, 2, 3], "mm_routing_info": {"routing_token_ids": ids}, **named}
        if kind < 0.78:
            picture = {"mm_objects": [{"mm_hash": 2**64 - 1, "offsets": [[0, 2]]}]}
            infos = [self._chance.choice([None, picture]) for _ in range(len(ids) // size)]
            return {"token_ids": ids, "block_mm_infos": infos, **named}
        local, rolling = hashes(ids, size, adapter)
        form = {"block_hashes": local, "sequence_hashes": rolling, "isl_tokens": len(ids)}
        if self._maybe(0.1):
            faults = [{"isl_tokens": 0}, {"isl_tokens": 1000}, {"block_hashes": local[1:]}, {"block_hashes": None}]
            form |= self._chance.choice(faults)
        return form

    def _select(self) -> Call:
        return self._selection("/select")

    def _reserve(self) -> Call:
        call = self._selection("/select_and_reserve")
        if self._maybe(0.9):
            call.body[self._dialect.booking] = self._id(call.fields)
        return call

    def _selection(self, path: str) -> Call:
        scope = self._scope()
        body = self._names(scope) | self._prompt(scope)
        if path == "/select" and self._maybe(0.3):  # 1.6 keeps such a selection
            body["selection_id"] = self._chance.choice(["", "a", "ü/1"]) if self._dialect.old else self._id(body)
        for member, make in self._wishes(scope).items():
            if self._maybe(0.12):
                body[member] = make()
        if self._maybe(0.02):
            body["model_name"] = "nobody"
        headers = {"x-dynamo-meta-policy-class": "batch"} if self._maybe(0.05) else {}
        return Call("POST", path, body, headers)

    def _wishes(self, scope: Scope) -> dict:
        return (self._wishes_16() if not self._dialect.old else {}) | {
            "expected_output_tokens": lambda: self._chance.choice([0, 100, None]),
            "priority_jump": lambda: self._chance.choice([-1, 0.5, 3]),
            "strict_priority": lambda: self._chance.choice([0, 5]),
            "pinned_worker": lambda: {"worker_id": self._somebody(scope), "dp_rank": self._chance.choice([0, 0, 1, 9])},
            "allowed_worker_ids": lambda: self._chance.choice(
                [None, [], [999], [self._somebody(scope)], [self._somebody(scope), self._somebody(scope), scope.anchor]]
            ),
            "routing_constraints": lambda: {
                "required_taints": self._chance.sample(TAINTS, self._chance.choice([0, 0, 1])),
                "preferred_taints": {
                    taint: self._chance.choice([-2, -0.3, 0.4, 1, 5])
                    for taint in self._chance.sample(TAINTS, self._chance.randrange(3))
                },
            },
            "router_config_override": self._override,
        }

    def _wishes_16(self) -> dict:
        session = self._chance.choice(["s1", "s2", "s3", "s4", "s" * 257])
        return {
            "advisory": lambda: self._chance.choice([True, True, False]),
            "session_id": lambda: session,
            "session_context": lambda: self._context(session),
        }

    def _context(self, session: str) -> dict:
        """A session, or the only call of another one: what a last call binds stays bound at the peer, and not here."""
        if self._maybe(0.1):
            self._ended += 1
            return {"session_id": f"ends {self._ended}", "session_final": True}
        return {"session_id": session, "session_final": False}

    def _override(self) -> dict:
        offered = {
            "overlap_score_credit": [0, 0.3, 1, None, *([] if self._dialect.old else [1.5, 4])],
            "prefill_load_scale": [0, 0.5, 3],
            "router_temperature": [0, 0, 0, 0.5],
            "track_prefill_tokens": [True, False],
            "assume_kv_reuse": [True],
            "shared_cache_multiplier": [0.5],
        }
        picked = self._chance.sample(list(offered), self._chance.randint(0, 2))
        override = {key: self._chance.choice(offered[key]) for key in picked}
        return override or {"overlap_score_weight": self._chance.choice([0, 2])}

    def _somebody(self, scope: Scope) -> int:
        """A worker, mostly one of the scope."""
        there = [worker for worker, record in sorted(self._pair.records.items()) if self._pair.scope(record) == scope]
        return self._chance.choice(there + [self._chance.choice(WORKERS)])

    def _ask(self) -> Call:
        scope = self._scope()
        body = self._names(scope) | self._prompt(scope)
        if self._maybe(0.2):
            body["router_config_override"] = self._override()
        if self._maybe(0.05):
            body["token_ids"] = []
        if self._maybe(0.03):
            body["model_name"] = "nobody"
        return Call("POST", self._chance.choice(["/potential_loads", "/overlap_scores"]), body)

    # Bookings

    def _id(self, fields: dict) -> str:
        """A booking's id, seldom one that is taken."""
        number = self._pair.number(fields)
        taken = [booking for booking in sorted(self._pair.live) if booking.startswith(f"r{number}-")]
        if taken and self._maybe(0.05):
            return self._chance.choice(taken)
        if self._maybe(0.02):
            return f"r{self._chance.randrange(len(SCOPES))}-0"
        free = [name for n in range(400) if (name := f"r{number}-{n}") not in self._pair.live]
        return self._chance.choice(free[:20])

    def _book(self) -> Call:
        scope = self._scope()
        if self._pair.kept and self._maybe(0.35):
            return self._replay()
        prompt = self._prompt(scope)
        where = self._rank(scope)
        body = self._names(scope)
        body |= prompt | {self._dialect.booking: self._id(body), "worker_id": where[0]}
        if where[1] or self._maybe(0.5):
            body["dp_rank"] = where[1]
        if self._maybe(0.6):
            body["effective_prefill_tokens"] = self._chance.choice([0, 1, 1, 1, 10_000])
        if not self._dialect.old and self._maybe(0.3):
            body["track_prefill_tokens"] = self._maybe(0.5)
        if self._maybe(0.1):
            body["router_config_override"] = self._override()
        if self._maybe(0.1):
            body["worker_id"] = self._chance.choice([999, self._chance.choice(WORKERS)])
            body["dp_rank"] = 0
        if self._maybe(0.05):
            body["dp_rank"] = 9
        return Call("POST", "/reservations", body)

    def _replay(self) -> Call:
        """The booking of a selection that was kept, or now and then of none."""
        booking, scope = self._chance.choice(sorted(self._pair.kept.items(), key=str))
        body = self._names(scope if scope and self._maybe(0.95) else self._scope())
        return Call("POST", "/reservations", body | {self._dialect.booking: booking})

    def _rank(self, scope: Scope) -> tuple[int, int]:
        """A rank of the scope."""
        ranks = [
            (worker, number)
            for worker, record in sorted(self._pair.records.items())
            if self._pair.scope(record) == scope and record["lifecycle"] == "schedulable"
            for number in ranks_of(record)
        ]
        return self._chance.choice(ranks)

    def _known(self) -> str:
        """The id of a booking that can be freed, or now and then of none."""
        pair = self._pair
        live = [booking for booking, (scope, *_) in sorted(pair.live.items()) if pair.home in (None, scope)]
        if live and self._maybe(0.92):
            return self._chance.choice(live)
        return self._chance.choice(["nobody", "a/b", "ü", "r 1"])

    def _free(self) -> Call:
        return Call("DELETE", f"/reservations/{quote(self._known(), safe='')}")

    def _continue(self) -> Call:
        path = f"/reservations/{quote(self._known(), safe='')}/"
        if self._maybe(0.4):
            return Call("POST", path + "prefill_complete", self._chance.choice([None, None, {}, "nonsense"]))
        fraction = self._chance.choice([None, 0, 0.25, 0.5, 1, 1.5, -0.1])
        body = {} if self._maybe(0.4) else {"decay_fraction": fraction}
        return Call("POST", path + "output_block", body)

    # Others

    def _replica(self) -> Call:
        if self._maybe(0.4):
            return Call("GET", "/replica_sync/peers")
        where = self._chance.choice(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://[::1]:3", *ENDPOINTS])
        verb = self._chance.choice(["register_peer", "register_peer", "deregister_peer"])
        return Call("POST", f"/replica_sync/{verb}", {"endpoint": where})

    def _broken(self) -> Call:
        """A call with one fault in its body."""
        call = self._chance.choice([self._register, self._patch, self._selection_of_any, self._book, self._ask])()
        body = dict(call.fields)
        field = self._chance.choice(list(body) or ["unknown"])
        values = [None, "text", 7, -1, 1.5, 2**64, [], {}, [[]], True]
        fault = self._chance.choice(["missing", *values, "cut", "more", "unknown", "type"])
        if call.path == "/workers" and (field, fault) == ("worker_id", 7):
            return call  # it would listen to another worker's events
        if fault == "missing":
            body.pop(field, None)
        elif fault == "cut":
            body = json.dumps(body)[: self._chance.randrange(0, 20)]
        elif fault == "more":
            body = json.dumps(body).removesuffix("}") + MORE if call.path in ("/potential_loads", "/overlap_scores") else body
        elif fault == "unknown":
            body["unknown"] = field
        elif fault == "type":
            kind = self._chance.choice(["text/plain", "", None, "application/jsonp"])
            return Call(call.method, call.path, body, {"content-type": kind})
        else:
            body[field] = fault
        return Call(call.method, call.path, body, call.headers)

    def _selection_of_any(self) -> Call:
        return self._chance.choice([self._select, self._reserve])()

    def _lost(self) -> Call:
        """A route, method or query that is not there."""
        return Call(
            *self._chance.choice(
                [
                    ("GET", "/", None),
                    ("GET", "/nothing", None),
                    ("GET", "/select", None),
                    ("OPTIONS", "/select", None),
                    ("POST", "/loads", {}),
                    ("GET", "/loads/", None),
                    ("DELETE", "/workers", None),
                    ("PATCH", "/workers", {}),
                    ("PATCH", "/workers/abc", {}),
                    ("DELETE", "/workers/-1", None),
                    ("DELETE", "/workers/18446744073709551616", None),
                    ("PATCH", "/workers/999", {}),
                    ("GET", "/workers/1", None),
                    ("GET", "/workers?model_name=a&model_name=b", None),
                    ("GET", "/loads?model_name=%zz", None),
                    ("GET", "/reservations/nobody", None),
                    ("GET", "/replica_sync/register_peer", None),
                    ("POST", "/replica_sync/peers", {}),
                    ("POST", "/reservations/nobody/output_block", None),
                    ("POST", "/reservations/nobody/else", {}),
                    ("POST", "/ready", {}),
                ]
            )
        )

    def _maybe(self, probability: float) -> bool:
        return self._chance.random() < probability
