"""The peers' dialects, and where ours was decided to differ from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dialect_wire import Call, comparable, rank, ranks_of
from programs import Answer

if TYPE_CHECKING:
    from dialect_pair import Pair


@dataclass(frozen=True)
class Decision:
    """A difference. answer gives what ours says in place of the peer's answer
    (None: the same) and is given both, comparable; repair brings both in step
    after it. One with neither is looked after by the pair itself."""

    name: str
    answer: Callable[[Pair, Call, Answer, Answer], Answer | None] | None = None
    repair: Callable[[Pair, Call, Answer, Answer], None] | None = None


@dataclass(frozen=True)
class Defect:
    """A call that the peer does not survive unchanged, and that is not made."""

    name: str
    hit: Callable[[Pair, Call], bool]


# Members of a record whose change keeps caches and bookings since 1.6.
_HARMLESS = {
    "total_kv_blocks",
    "taints",
    "topology_domains",
    "kv_transfer_domain",
    "kv_transfer_enforcement",
    "kv_transfer_preferred_weight",
    "stable_routing_id",
}


@dataclass(frozen=True)
class Dialect:
    """The words of a release, and what has to be known of it."""

    release: str
    contract: str
    group: str
    booking: str
    decisions: tuple[Decision, ...]
    defects: tuple[Defect, ...]

    @property
    def old(self) -> bool:
        return self.contract == "1.3"

    @property
    def overrides(self) -> tuple[str, ...]:
        """The weights that the peer lets a request have of its own."""
        more = ("router_temperature", "overlap_score_credit", "prefill_load_scale", "overlap_score_weight")
        return ("track_prefill_tokens", *(more if self.old else ()))

    @property
    def keeps(self) -> bool:
        """Whether a selection with an id is kept for a later booking."""
        return not self.old

    def shaken(self, record: dict, call: Call) -> bool:
        """Whether the peer loses more by a change of the worker than ours."""
        return self.old or call.method != "PATCH" or not _HARMLESS.issuperset(call.fields)


def _error(status: int, text: str) -> Answer:
    return Answer(status, {"error": text})


def _reservation(path: str) -> str | None:
    found = re.fullmatch(r"/reservations/([^/]+)", path)
    return unquote(found[1]) if found else None


def _worker(path: str) -> int | None:
    found = re.fullmatch(r"/workers/(\d+)", path)
    return int(found[1]) if found else None


def _unknown_reservation(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    booking = _reservation(call.route)
    if call.method == "DELETE" and booking and theirs.status == 200 and booking not in pair.live:
        return _error(404, f"reservation {booking} not found")
    return None


def _unknown_rank(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    """The peer books on ranks that a worker does not have, and has loads of them
    from then on."""
    if call.method == "POST" and call.route == "/reservations" and theirs.status == 201:
        worker, number = call.fields["worker_id"], call.fields.get("dp_rank") or 0
        if number not in ranks_of(pair.records[worker]):
            where = f"WorkerWithDpRank {{ worker_id: {worker}, dp_rank: {number} }}"
            return _error(404, f"Worker {where} not found")
    if call.route == "/potential_loads" and theirs.status == 200:
        return Answer(200, _registered(pair, theirs.body))
    if call.route == "/loads" and theirs.status == 200:
        return Answer(200, [scope | {"loads": _registered(pair, scope["loads"])} for scope in theirs.body])
    return None


def _registered(pair: Pair, rows: list[dict]) -> list[dict]:
    known = {(worker, number) for worker, record in pair.records.items() for number in ranks_of(record)}
    return [row for row in rows if row["active_requests"] or rank(row) in known]


def _not_booked(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> None:
    if call.route == "/reservations" and (ours.status, theirs.status) == (404, 201):
        booking = theirs.body[pair.dialect.booking]
        assert pair.theirs.send(Call("DELETE", f"/reservations/{booking}")).status == 200


def _untracked_prefill(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> None:
    """The peer has booked no prefill, ours all."""
    if call.method != "POST" or call.route != "/reservations" or theirs.status != 201 or ours.status != 201:
        return
    if "worker_id" in call.fields and call.fields.get("effective_prefill_tokens") is None:
        booking = ours.body[pair.dialect.booking]
        assert pair.ours.send(Call("POST", f"/reservations/{booking}/prefill_complete")).status == 200
        pair.seen["D3"] += 1


def _deleted(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    """The peer keeps deleted workers in its lists, and takes calls for them."""
    if call.method == "GET" and call.route == "/workers" and theirs.status == 200:
        return Answer(200, [record for record in theirs.body if record["lifecycle"] != "unschedulable"])
    if call.route == "/ready" and call.method == "GET":
        left = [record for record in theirs.body["workers"] if record["lifecycle"] != "unschedulable"]
        return Answer(theirs.status, theirs.body | {"workers": left})
    worker = _worker(call.route)
    if call.method in ("DELETE", "PATCH") and worker is not None and worker not in pair.records and theirs.status == 200:
        return _error(404, f"worker {worker} not found")
    return None


def _revived(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> None:
    if call.method == "PATCH" and ours.status == 404 and theirs.status == 200:
        assert pair.theirs.send(Call("DELETE", call.path)).status == 200


def _body_forms(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    """Errors of the peer's framework are not JSON, it takes arrays for objects, and
    does not mind what follows the JSON value, and escapes in a path that are none."""
    if _BROKEN_ESCAPE.search(call.route):
        return Answer(400, "400 Bad Request")  # of Go's HTTP server
    if ours.status == 422 and any(isinstance(call.fields.get(key), list) for key in _OBJECTS):
        return _error(422, "parser")
    if isinstance(call.body, str) and call.body.endswith(MORE):
        return _error(400, "parser")
    if theirs.status >= 400 and (theirs.body is None or isinstance(theirs.body, str)):
        text = theirs.body or "method not allowed"
        return _error(theirs.status, text)
    return None


def _values(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    """The peer takes objects for words, and does not mind how large a number is that
    it ignores."""
    beyond = isinstance(call.body, str) and call.body.endswith(BEYOND)
    if ours.status == 400 and (beyond or any(isinstance(word, dict) for word in _words(call.fields))):
        return _error(400, "parser")
    return None


def _words(fields: dict) -> tuple:
    """The members that have to be one of a few words."""
    context = fields.get("session_context")
    trigger = context.get("input_trigger") if isinstance(context, dict) else None
    return fields.get("kv_transfer_enforcement"), trigger


def _infinite(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    """What does not fit a float of 32 bits is infinity to the peer."""
    constraints = call.fields.get("routing_constraints")
    if ours.status == 422 and theirs.status == 200 and isinstance(constraints, dict):
        if any(abs(weight) > _MAX_FLOAT32 for weight in constraints.get("preferred_taints", {}).values()):
            return _error(422, "parser")
    return None


def _no_session(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    """An empty session id names a session of the peer's, and none here."""
    context = call.fields.get("session_context", {"session_id": call.fields.get("session_id")})
    if call.route != "/select" or theirs.status != 200 or context != {"session_id": ""}:
        return None
    bare = {key: value for key, value in call.fields.items() if key not in ("session_id", "session_context")}
    return comparable(call, pair.theirs.send(replace(call, body=bare)))


def _orphans(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    """Blocks behind one that the rank has nowhere are not in ours."""
    if call.route != "/dump" or theirs.status != 200:
        return None
    return Answer(200, {key: dump | {"events": _rooted(dump["events"])} for key, dump in theirs.body.items()})


def _rooted(blocks: list[tuple]) -> list[tuple]:
    while True:
        known = {(*block[:2], block[4]) for block in blocks}
        left = [block for block in blocks if block[3] is None or (*block[:2], block[3]) in known]
        if len(left) == len(blocks):
            return blocks
        blocks = left


def _incomplete(pair: Pair, call: Call, ours: Answer, theirs: Answer) -> Answer | None:
    """A worker that has become incomplete keeps its ranks, idle ones here."""
    if call.route != "/loads" or ours.status != 200 or theirs.status != 200:
        return None
    kept = {
        (scope["model_name"], scope[pair.dialect.group]): [
            row
            for row in scope["loads"]
            if not row["active_requests"]
            and pair.records.get(row["worker_id"], {}).get("lifecycle") == "incomplete"
        ]
        for scope in ours.body
    }
    scopes = []
    for scope in theirs.body:
        rows = scope["loads"] + kept.get((scope["model_name"], scope[pair.dialect.group]), [])
        scopes.append(scope | {"loads": sorted({rank(row): row for row in rows}.values(), key=rank)})
    return Answer(200, scopes)


_BOOKING = ("/select_and_reserve", "/reservations")
MORE = "} 7"  # the end of a body with more than a JSON value
BEYOND = ": 1e400}"  # the end of one with a number that no float holds
_MAX_FLOAT32 = 3.4028235e38
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_OBJECTS = ("mm_routing_info", "pinned_worker", "router_config_override", "routing_constraints")


def _empty_prompt(pair: Pair, call: Call) -> bool:
    """An empty prompt takes the model out of service."""
    routing = call.fields.get("mm_routing_info")
    ids = (call.fields.get("token_ids"), routing.get("routing_token_ids") if isinstance(routing, dict) else None)
    return call.path in ("/select", *_BOOKING) and [] in ids


def _freed_elsewhere(pair: Pair, call: Call) -> bool:
    """Bookings outside of one scope cannot be freed."""
    scope, *_ = pair.live.get(_reservation(call.route), (pair.home,))
    if call.path == "/workers" and call.method == "POST" and pair.scope(call.fields) is None:
        return True  # and a new scope may change which one that is
    unnamed = call.path == "/select_and_reserve" and call.fields.get(pair.dialect.booking) is None
    return (call.method == "DELETE" and scope != pair.home) or (unnamed and pair.scope(call.fields) != pair.home)


def _never_freed(pair: Pair, call: Call) -> bool:
    """A booking on a rank that is not there, outside of that scope."""
    record = pair.records.get(call.fields.get("worker_id")) if _hashable(call) else None
    if call.path != "/reservations" or not record or pair.scope(call.fields) == pair.home:
        return False
    return (call.fields.get("dp_rank") or 0) not in ranks_of(record)


def _hashable(call: Call) -> bool:
    return isinstance(call.fields.get("worker_id"), int)


def _shared_id(pair: Pair, call: Call) -> bool:
    """Two scopes may have a booking of the same id."""
    booking = call.fields.get(pair.dialect.booking)
    if call.path not in _BOOKING or not isinstance(booking, str):
        return False
    return not booking.startswith(f"r{pair.number(call.fields)}-")


def _array_with_effect(pair: Pair, call: Call) -> bool:
    """Arrays are taken for objects, here where that would book something."""
    return call.path in _BOOKING and any(isinstance(call.fields.get(key), list) for key in _OBJECTS)


def _new_scope(pair: Pair, call: Call) -> bool:
    """A scope is listed even if its only worker could not be registered."""
    return call.path == "/workers" and call.method == "POST" and pair.scope(call.fields) is None


def _wildcard(pair: Pair, call: Call) -> bool:
    """A replay endpoint may have a wildcard for a host."""
    return "://*" in str(call.fields.get("replay_endpoint"))


DECISIONS_13 = (
    Decision("D11", _body_forms),
    Decision("D11", _values),
    Decision("D1", _unknown_reservation),
    Decision("D3", repair=_untracked_prefill),
    Decision("D4", _unknown_rank, _not_booked),
    Decision("D6", _deleted, _revived),
    Decision("D17", _incomplete),
    Decision("D19", _infinite),
    Decision("K1"),
    Decision("K13", _orphans),
)
DEFECTS_13 = (
    Defect("D2", _empty_prompt),
    Defect("D1", _freed_elsewhere),
    Defect("D4", _never_freed),
    Defect("D9", _shared_id),
    Defect("D11", _array_with_effect),
    Defect("K14", _wildcard),
    Defect("scopes", _new_scope),
)
DIALECT_13 = Dialect("1.3.1", "1.3", "tenant_id", "reservation_id", DECISIONS_13, DEFECTS_13)


def _replay_of_many(pair: Pair, call: Call) -> bool:
    """A replay endpoint for several ranks keeps a worker from being selected."""
    worker = _worker(call.route)
    record = (pair.records.get(worker, {}) if worker is not None else {}) | call.fields
    return record.get("replay_endpoint") is not None and record.get("data_parallel_size") not in (None, 1)


def _predicted_for_ever(pair: Pair, call: Call) -> bool:
    """What was predicted for a rank without KV events outlives the rank."""
    worker = call.fields.get("worker_id") if call.path == "/workers" else _worker(call.route)
    record = pair.records.get(worker) if isinstance(worker, int) else None
    return not pair.events and record is not None and pair.dialect.shaken(record, call)


DECISIONS_16 = (
    Decision("D11", _body_forms),
    Decision("D11", _values),
    Decision("D3", repair=_untracked_prefill),
    Decision("D17", _incomplete),
    Decision("D19", _infinite),
    Decision("K1"),
    Decision("K13", _orphans),
    Decision("override"),
    Decision("session", _no_session),
)
DEFECTS_16 = (
    Defect("D11", _array_with_effect),
    Defect("K1", _predicted_for_ever),
    Defect("K6", _replay_of_many),
    Defect("K14", _wildcard),
    Defect("scopes", _new_scope),
)
DIALECT_16 = Dialect("1.6.1", "1.6", "routing_group", "selection_id", DECISIONS_16, DEFECTS_16)
