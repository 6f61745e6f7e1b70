"""What an affinity target, a pinned worker and a session leave of a choice, in both."""

import itertools
from contextlib import closing

import pytest
from replicas import Mesh, Scope, eventually

TTL = 600

_models = itertools.count(1)


def rank(worker: int, dp: int | None = None) -> dict:
    return {"worker_id": worker, **({} if dp is None else {"dp_rank": dp})}


@pytest.fixture(scope="module")
def both(subject, peer):
    """One of each, which do not hear each other."""
    if peer.group == "tenant_id" or subject.name != "ours":
        pytest.skip("1.3 knows no target")
    with closing(Mesh("selection", subject.speaking("1.6"), sessions=TTL)) as ours:
        with closing(Mesh("selection", peer, sessions=TTL)) as theirs:
            yield ours.replicas[0], theirs.replicas[0]


@pytest.fixture
def ask(both):
    """Asks both and gives the answer, which must be the same. Worker i has the least load
    but for those before it, and its rank 1 less than rank 0."""
    scope, names = Scope.new(workers=3, model=f"targets-{next(_models)}"), itertools.count()
    for replica in both:
        replica.enter(scope)
        for worker, dp in itertools.product(range(3), range(2)):
            tokens = 10_000 * (3 - worker) - 1_000 * dp
            assert replica.book(scope, f"load-{worker}-{dp}", worker, dp, [], tokens).status == 201
        # Dynamo may choose by a load a moment later than it has booked it.
        eventually(lambda replica=replica: replica.choose(scope, [1] * 64), (2, 1), "the rank of the least load")

    def real(value: dict) -> dict:
        return value | {"worker_id": scope.workers[value["worker_id"]] if value["worker_id"] < 3 else 2**50}

    def call(path="/select", **fields):
        for key in ("affinity_target", "pinned_worker"):
            if fields.get(key):
                fields[key] = real(fields[key])
        if "allowed" in fields:
            fields["allowed_worker_ids"] = [scope.workers[i] for i in fields.pop("allowed")]
        name, outcomes = scope.booking(f"ask-{next(names)}"), []
        for replica in both:
            answer = replica.program.send(
                "POST", path, replica.scoped(scope, token_ids=[1] * 64, selection_id=name, **fields)
            )
            if answer.status == 200:
                outcomes.append((scope.workers.index(answer.body["worker_id"]), answer.body["dp_rank"]))
            else:
                outcomes.append((answer.status, answer.body["error"]))
        assert outcomes[0] == outcomes[1], fields
        return outcomes[0]

    return call


def test_alone(ask):
    assert ask() == (2, 1)
    assert ask(affinity_target=rank(0, 0)) == (0, 0)
    assert ask(affinity_target=rank(0)) == (0, 1)
    for nothing in (rank(0, 7), rank(9), None):
        assert ask(affinity_target=nothing) == (2, 1)
    assert ask(affinity_target=rank(0), allowed=[1]) == (1, 1)
    assert ask(affinity_target=rank(0), allowed=[0, 1]) == (0, 1)


def test_with_a_pinned_worker(ask):
    targets = [rank(w, dp) for w, dp in itertools.product((0, 1, 9), (None, 0, 1, 7))]
    seen = {ask(pinned_worker=rank(w, 0), affinity_target=t)[0] for w, t in itertools.product(range(3), targets)}
    assert seen == {0, 1, 2, 400, 503}


def test_the_session_has_no_effect(ask):
    book = "/select_and_reserve"
    assert ask(book, session_id="s", allowed=[1])[0] == 1
    assert ask(session_id="s")[0] == 1
    assert ask(book, session_id="s", affinity_target=rank(0, 0)) == (0, 0)
    assert ask(book, session_id="s", affinity_target=rank(9))[0] == 2
    assert ask(session_id="s")[0] == 1
    assert ask(book, session_id="new", affinity_target=rank(0, 0)) == (0, 0)
    assert ask(session_id="new")[0] == 2
    assert ask(session_id="s" * 300, affinity_target=rank(0, 0)) == (0, 0)
