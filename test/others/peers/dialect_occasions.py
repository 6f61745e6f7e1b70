"""For every difference a few calls on which it shows."""

from collections.abc import Callable

from dialect_calls import Calls
from dialect_decisions import BEYOND
from dialect_fleet import SCOPES, Scope, removed, stored, tokens
from dialect_pair import Pair
from dialect_wire import Call

Occasion = Callable[[Pair, Calls], None]
OCCASIONS: list[tuple[str, Occasion]] = []
_GUEST = 1  # a worker that comes and goes


def _on(decision: str):
    def add(occasion: Occasion) -> Occasion:
        OCCASIONS.append((decision, occasion))
        return occasion

    return add


def _scope(pair: Pair) -> Scope:
    """A scope whose bookings can be freed."""
    return pair.home or SCOPES[0]


def _asked(pair: Pair, scope: Scope, ids: list[int], **more) -> dict:
    return {"model_name": scope.model, pair.dialect.group: scope.group, "token_ids": ids, **more}


def _book(pair: Pair, scope: Scope, rank: int = 0, **more) -> None:
    body = _asked(pair, scope, [5] * scope.block_size, worker_id=scope.anchor, dp_rank=rank, **more)
    pair.play(Call("POST", "/reservations", body | {pair.dialect.booking: "an-occasion"}))


def _free(pair: Pair) -> None:
    pair.play(Call("DELETE", "/reservations/an-occasion"))


@_on("D1")
def freed_without_booking(pair: Pair, calls: Calls) -> None:
    _free(pair)


@_on("D3")
def booked_without_tokens(pair: Pair, calls: Calls) -> None:
    _book(pair, _scope(pair))
    _free(pair)


@_on("D4")
def booked_on_no_rank(pair: Pair, calls: Calls) -> None:
    _book(pair, _scope(pair), rank=9)


@_on("D6")
def deleted_and_listed(pair: Pair, calls: Calls) -> None:
    pair.play(Call("POST", "/workers", calls.record(_GUEST, SCOPES[0], 1)))
    pair.play(Call("DELETE", f"/workers/{_GUEST}"))


@_on("D11")
def bad_query(pair: Pair, calls: Calls) -> None:
    pair.play(Call("GET", "/workers?model_name=a&model_name=b"))


@_on("D11")
def more_than_a_value(pair: Pair, calls: Calls) -> None:
    pair.play(Call("POST", "/overlap_scores", '{"model_name": "m", "token_ids": [1]} 7'))


@_on("D11")
def array_for_object(pair: Pair, calls: Calls) -> None:
    pair.play(Call("POST", "/select", _asked(pair, SCOPES[0], [1], pinned_worker=[SCOPES[0].anchor, 0])))


@_on("D11")
def object_for_word(pair: Pair, calls: Calls) -> None:
    pair.play(Call("PATCH", "/workers/999", {"kv_transfer_enforcement": {"required": None}}))


@_on("D11")
def ignored_and_beyond(pair: Pair, calls: Calls) -> None:
    pair.play(Call("PATCH", "/workers/999", '{"unknown"' + BEYOND))


@_on("D11")
def escape_that_is_none(pair: Pair, calls: Calls) -> None:
    pair.play(Call("POST", "/reservations/%zz/prefill_complete"))


@_on("D17")
def incomplete_and_loaded(pair: Pair, calls: Calls) -> None:
    pair.play(Call("POST", "/workers", calls.record(_GUEST, SCOPES[0], 1)))
    pair.play(Call("PATCH", f"/workers/{_GUEST}", {"endpoint": ""}))
    pair.play(Call("DELETE", f"/workers/{_GUEST}"))


@_on("D19")
def infinitely_preferred(pair: Pair, calls: Calls) -> None:
    constraints = {"preferred_taints": {"fast": 1e39}}
    pair.play(Call("POST", "/select", _asked(pair, SCOPES[0], [1], routing_constraints=constraints)))


@_on("K1")
def evicted_and_back(pair: Pair, calls: Calls) -> None:
    """What stayed behind a block counts again when that is back."""
    scope, rank = SCOPES[0], (SCOPES[0].anchor, 0)
    stream = pair.fleet.stream(*rank)
    pair.publish(*rank, stored(stream, "GPU", None, "aaaa", 0, scope.block_size))
    pair.publish(*rank, removed(stream, "GPU", None, "aa"))
    pair.publish(*rank, stored(stream, "GPU", None, "aa", 1, scope.block_size))
    pair.exact(_asked(pair, scope, tokens("aaaa", scope.block_size)))
    pair.empty(scope.anchor)


@_on("K1")
def on_the_way_of_another(pair: Pair, calls: Calls) -> None:
    """A rank that leaves a path must not let another one go on along it."""
    scope = SCOPES[0]
    ranks = [(scope.anchor, number) for number in (0, 1)]
    for rank, path in zip(ranks, ("aaaa", "aab"), strict=True):
        pair.publish(*rank, stored(pair.fleet.stream(*rank), "GPU", None, path, 0, scope.block_size))
    pair.publish(*ranks[0], removed(pair.fleet.stream(*ranks[0]), "GPU", None, "aa"))
    pair.exact(_asked(pair, scope, tokens("aaaa", scope.block_size)))
    pair.empty(scope.anchor)


@_on("K13")
def parent_evicted(pair: Pair, calls: Calls) -> None:
    scope, rank = SCOPES[0], (SCOPES[0].anchor, 0)
    stream = pair.fleet.stream(*rank)
    pair.publish(*rank, stored(stream, "GPU", None, "a", 0, scope.block_size))
    pair.publish(*rank, stored(stream, "CPU", None, "ab", 1, scope.block_size))
    pair.publish(*rank, removed(stream, "GPU", None, "a"))
    pair.empty(scope.anchor)


@_on("override")
def cache_of_no_account(pair: Pair, calls: Calls) -> None:
    """Of two idle ranks one has the prompt cached."""
    scope, rank = SCOPES[0], (SCOPES[0].anchor, 0)
    pair.publish(*rank, stored(pair.fleet.stream(*rank), "GPU", None, "aaaa", 0, scope.block_size))
    override = {"overlap_score_credit": 0}
    pair.play(Call("POST", "/select", _asked(pair, scope, tokens("aaaa", scope.block_size), router_config_override=override)))
    pair.empty(scope.anchor)


@_on("session")
def session_without_a_name(pair: Pair, calls: Calls) -> None:
    """Of two ranks the one that has the session's booking is dearer."""
    if pair.dialect.old:
        return  # it knows no sessions
    scope, member = SCOPES[0], pair.dialect.booking
    _book(pair, scope, rank=1, effective_prefill_tokens=scope.block_size)
    asked = _asked(pair, scope, [6] * 8 * scope.block_size, session_id="")
    pair.play(Call("POST", "/select_and_reserve", asked | {member: "a-session"}))
    for session in ({"session_id": ""}, {"session_context": {"session_id": ""}}):
        before = pair.seen["session"]
        pair.play(Call("POST", "/select", _asked(pair, scope, [1], **session)))
        assert pair.seen["session"] > before, session
    _free(pair)
    pair.play(Call("DELETE", "/reservations/a-session"))
