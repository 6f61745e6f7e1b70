"""Bookings cross between replicas of different make, in both contracts."""

import contextlib
import threading

import pytest
import zmq
from ports import free_ports
from programs import Http, Ours, endpoint
from replicas import PATIENCE, Scope, Selection, Slots, connect, eventually, shared_scope, understand

PROMPT = [101, -22, 303]  # sequence hashes, signed as JSON has them


@pytest.fixture(params=["first to peer", "peer to first", "second to peer", "between ours"])
def way(request, mesh):
    """A replica that books, one that hears of it, and the third."""
    first, second, peer = mesh.replicas
    return {
        "first to peer": (first, peer, second),
        "peer to first": (peer, first, second),
        "second to peer": (second, peer, first),
        "between ours": (first, second, peer),
    }[request.param]


def test_booking_completion_and_free_cross(mesh, way):
    here, *others = way
    scope = mesh.scope()
    assert here.book(scope, "r", 1, 1, PROMPT, 48).status == 201
    for replica in others:
        replica.shows(scope, {(1, 1): (48, 3, 1)})
    assert here.complete(scope, "r").status == 200
    for replica in others:
        replica.shows(scope, {(1, 1): (0, 3, 1)})
    assert here.free(scope, "r").status == 200
    for replica in others:
        replica.shows(scope, {})


def test_another_replica_completes_and_frees(mesh, way):
    here, there, third = way
    scope = mesh.scope()
    here.book(scope, "r", 0, 0, PROMPT, 48)
    for replica in (there, third):
        replica.shows(scope, {(0, 0): (48, 3, 1)})
    assert there.complete(scope, "r").status == 200
    for replica in (here, third):
        replica.shows(scope, {(0, 0): (0, 3, 1)})
    assert third.free(scope, "r").status == 200
    for replica in (here, there):
        replica.shows(scope, {})


def test_a_booking_known_from_elsewhere_is_not_booked_again(mesh, way):
    here, there, _ = way
    scope = mesh.scope()
    here.book(scope, "r", 0, 0, PROMPT, 48)
    there.shows(scope, {(0, 0): (48, 3, 1)})
    assert there.book(scope, "r", 1, 1, PROMPT, 48).status == 409
    assert there.free(scope, "r").status == 200
    here.shows(scope, {})
    assert there.book(scope, "r", 1, 1, PROMPT, 48).status == 201
    here.shows(scope, {(1, 1): (48, 3, 1)})
    assert here.free(scope, "r").status == 200
    there.shows(scope, {})


def test_blocks_booked_here_and_there_count_once(mesh, way):
    here, there, third = way
    scope = mesh.scope()
    here.book(scope, "a", 0, 0, [1, 2, 3], 48)
    there.book(scope, "b", 0, 0, [1, 2, 4], 40)
    third.book(scope, "c", 0, 0, [], 5)
    for replica in way:
        replica.shows(scope, {(0, 0): (93, 4, 3)})
    here.free(scope, "a")
    for replica in way:
        replica.shows(scope, {(0, 0): (45, 3, 2)})
    there.free(scope, "b")
    third.free(scope, "c")
    for replica in way:
        replica.shows(scope, {})


def test_a_worker_that_only_some_know(mesh, way):
    here, there, third = way
    known, unknown = mesh.scope(), Scope.new()
    here.enter(unknown)
    third.enter(unknown)
    here.book(unknown, "r", 0, 0, PROMPT, 48)
    here.book(known, "r", 1, 0, PROMPT, 48)
    there.shows(known, {(1, 0): (48, 3, 1)})
    third.shows(unknown, {(0, 0): (48, 3, 1)})
    assert here.free(unknown, "r").status == 200
    third.shows(unknown, {})


@pytest.mark.only("slots")  # a second model keeps 1.3.1's selection service from freeing
def test_a_model_that_only_some_know(mesh, way):
    here, there, third = way
    known, unknown = mesh.scope(), Scope.new(model=f"model-of-{mesh.scope().prefix}")
    other = [Scope.new(workers=1, model=unknown.model + "-too", block_size=size) for size in (16, 32)]
    here.enter(unknown)
    for replica, size in ((here, 0), (there, 1), (third, 0)):
        replica.enter(other[size])
    here.book(unknown, "r", 0, 0, PROMPT, 48)
    here.book(other[0], "r", 0, 0, PROMPT, 48)
    here.book(known, "r", 1, 0, PROMPT, 48)
    there.shows(known, {(1, 0): (48, 3, 1)})
    third.shows(other[0], {(0, 0): (48, 3, 1)})
    there.shows(other[1], {})


def test_crowds_book_on_all_replicas(mesh):
    """Every replica books, completes and frees at once; the sums come out equal."""
    scope, each = mesh.scope(), 100

    def together(work):
        crowd = [
            threading.Thread(target=lambda who, replica: [work(who, replica, i) for i in range(each)], args=pair)
            for pair in enumerate(mesh.replicas)
        ]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()

    def book(who, replica, i):
        name = f"{who}-{i}"
        replica.book(scope, name, i % 2, who % 2, [-1 - who, 1000 * who + i], 16)
        if i % 3:
            replica.complete(scope, name)
        if i % 2:
            replica.free(scope, name)

    together(book)
    # The even ones stay, so worker 0 alone; a third of them has its prefill before it.
    kept, waiting = each // 2, len(range(0, each, 6))
    want = {
        (0, 0): (2 * 16 * waiting, 2 * (kept + 1), 2 * kept),  # replicas 0 and 2
        (0, 1): (16 * waiting, kept + 1, kept),
    }
    for replica in mesh.replicas:
        replica.shows(scope, want)
    together(lambda who, replica, i: i % 2 or replica.free(scope, f"{who}-{i}"))
    for replica in mesh.replicas:
        replica.shows(scope, {})


@pytest.mark.only("selection")
def test_a_selected_booking_crosses(mesh, way):
    here, there, _ = way
    scope = mesh.scope()
    rank = here.select(scope, "r", list(range(40)))
    there.shows(scope, {rank: (40, 2, 1)})
    other = list(range(100, 140))
    # Dynamo may choose by a load a moment later than it shows it.
    eventually(lambda: rank in {there.choose(scope, other) for _ in range(20)}, False, "whether it chooses the busy rank")
    assert there.select(scope, "s", other) != rank, "it chose the busy rank"
    for name in ("r", "s"):
        assert there.free(scope, name).status == 200
    here.shows(scope, {})


@pytest.mark.ours
def test_announcements_do_not_disturb(mesh):
    """Dynamo's services neither hear nor miss what ours tell each other."""
    listener = zmq.Context.instance().socket(zmq.SUB)
    try:
        listener.subscribe(b"select-service.")
        listener.connect(endpoint(mesh.ports[0]))
        for _ in range(3):
            assert listener.poll(PATIENCE * 1000), "there are no announcements"
            topic, _ = listener.recv_multipart()
            assert topic == b"select-service.replica.v1"
    finally:
        listener.close(linger=0)
    assert all(replica.program.alive() for replica in mesh.replicas)
    assert mesh.complaints() == []


@pytest.mark.ours
def test_one_replica_of_both_contracts(subject, peer):
    """A selection service and a slot tracker share bookings with the same of ours."""
    ours, selection, tracker, slots = (free_ports(1) for _ in range(4))
    with contextlib.ExitStack() as stack:

        def run(start, **how):
            program = start(**how)
            stack.callback(program.stop)
            return program

        program = run(subject.selection, sync=ours, peers=[selection, tracker], slots_port=slots)
        theirs = Selection(peer, run(peer.selection, sync=selection, peers=[ours, tracker]))
        their_slots = Slots(peer, run(peer.slots, sync=tracker, peers=[ours, selection]))
        for here, there in (
            (Selection(subject, program), theirs),
            (Slots(subject, Http(f"http://127.0.0.1:{slots}")), their_slots),
        ):
            connect(here, there)
            scope = shared_scope(here, there)
            here.book(scope, "a", 0, 0, PROMPT, 48)
            there.book(scope, "b", 0, 1, PROMPT, 32)
            for replica in (here, there):
                replica.shows(scope, {(0, 0): (48, 3, 1), (0, 1): (32, 3, 1)})
            assert here.free(scope, "b").status == 200
            assert there.free(scope, "a").status == 200
            for replica in (here, there):
                replica.shows(scope, {})
        for running in (program, theirs.program, their_slots.program):
            assert running.complaints() == []


@pytest.mark.ours
def test_one_mesh_of_all_releases(mixed):
    """Ours hear every release and are heard by each."""
    scope = mixed.scope()
    for number, replica in enumerate(mixed.replicas):
        replica.book(scope, number, 0, 0, [number], 16)
    for replica in mixed.replicas:
        heard = sum(understand(other.system, replica.system) for other in mixed.replicas)
        replica.shows(scope, {(0, 0): (16 * heard, heard, heard)})
    first = mixed.replicas[0]
    for number, _ in enumerate(mixed.replicas):
        assert first.complete(scope, number).status == 200
        assert first.free(scope, number).status == 200
    for replica in mixed.replicas:
        replica.shows(scope, {})


@pytest.mark.ours
def test_a_killed_replica_comes_back_warm(mixed):
    """It has all loads back, Dynamo's too, and frees what it booked before."""
    scope = mixed.scope()
    first, second, *_ = mixed.replicas
    count = len(mixed.replicas)
    for number, replica in enumerate(mixed.replicas):
        replica.book(scope, number, 0, 0, [number], 16)
    first.complete(scope, 0)
    for replica in (first, second):
        replica.shows(scope, {(0, 0): (16 * (count - 1), count, count)})
    first.program.kill()
    assert second.free(scope, 1).status == 200
    first.program.start()
    first.enter(scope)
    first.shows(scope, {(0, 0): (16 * (count - 2), count - 1, count - 1)})
    # Nobody may hear it yet; ours find out what they missed of each other.
    assert first.free(scope, 0).status == 200
    second.shows(scope, {(0, 0): (16 * (count - 2), count - 2, count - 2)})
    mixed.connect()
    for number in range(2, count):
        assert first.complete(scope, number).status == 200
        assert first.free(scope, number).status == 200
    for replica in (first, second):
        replica.shows(scope, {})


def test_a_pair_is_two_bookings_to_a_peer(mesh):
    """The sides of a pair have a key more on the wire, which Dynamo does not know."""
    first, second, peer = mesh.replicas
    if mesh.mode != "selection" or not isinstance(first.system, Ours):
        pytest.skip("only our selection service books pairs")
    scope = mesh.scope(ranks=1)
    for ours in (first, second):
        for worker, role in zip(scope.workers, ("prefill", "decode"), strict=True):
            ours.program.call("PATCH", f"/workers/{worker}", {"role": role})
    sides = {(0, 0): (48, 3, 1), (1, 0): (0, 3, 1)}

    def book(name):
        allowed = {side: {"allowed_worker_ids": scope.workers} for side in ("prefill", "decode")}
        body = first.scoped(scope, token_ids=list(range(48))) | allowed | {first.system.booking: scope.booking(name)}
        assert first.program.call("POST", "/select_pair", body)["reason"] == "pair"
        for replica in mesh.replicas:
            replica.shows(scope, sides)

    book("a")
    assert second.complete(scope, "a").status == 200
    for replica in mesh.replicas:
        replica.shows(scope, {(1, 0): (0, 3, 1)})
    assert first.free(scope, "a").status == 200
    for replica in mesh.replicas:
        replica.shows(scope, {})

    book("b")
    assert peer.free(scope, "b").status == 404, "a peer knows no pair"
    assert peer.complete(scope, "b.prefill").status == 200
    for replica in mesh.replicas:
        replica.shows(scope, {(0, 0): (0, 3, 1), (1, 0): (0, 3, 1)})
    for side in ("b.prefill", "b.decode"):
        assert peer.free(scope, side).status == 200
    for replica in mesh.replicas:
        replica.shows(scope, {})
