"""Sessions cross between replicas of different make, and on the same wire."""

import itertools
import time
from contextlib import closing

import msgpack
import pytest
import zmq
from ports import free_ports
from programs import endpoint
from replicas import PATIENCE, Mesh, Selection, eventually, shared_scope

TOPIC = b"dynamo.session-affinity.v1"
EVENTS = b"dynamo.slot-tracker.v1"
TTL = 600

_names = itertools.count(1)


@pytest.fixture(scope="module")
def talking(subject, peer):
    """Two of ours and a peer, with sessions."""
    if peer.group == "tenant_id" or subject.name != "ours":
        pytest.skip("1.3 knows no sessions")
    ours = subject.speaking("1.6")
    with closing(Mesh("selection", ours, ours, peer, sessions=TTL)) as mesh:
        yield mesh
        assert mesh.complaints() == []


def ask(replica: Selection, scope, session: str, *, book="", on=None):
    """Selects for a session, with a reservation if that has a name; on is a worker of the scope."""
    allowed = list(scope.workers) if on is None else [scope.workers[on]]
    body = replica.scoped(scope, token_ids=list(range(64)), session_id=session, allowed_worker_ids=allowed)
    if book:
        body[replica.system.booking] = scope.booking(book)
    return replica.program.send("POST", "/select_and_reserve" if book else "/select", body)


def chosen(answer, scope):
    assert answer.status == 200, answer
    return scope.workers.index(answer.body["worker_id"]), answer.body["dp_rank"]


def occupied(scope, ranks, here: Selection, *others: Selection) -> None:
    """Gives these ranks so much to do that only a session is sent there. A session that is not bound is placed by
    load, at random among equals: on idle ranks its choice could be where it is to be bound, and would show nothing."""
    for worker, rank in ranks:
        here.book(scope, f"busy-{worker}-{rank}", worker, rank, list(range(1, 101)), 100 * scope.block_size)
    for replica in (here, *others):
        replica.shows(scope, {rank: (100 * scope.block_size, 100, 1) for rank in ranks})


@pytest.mark.parametrize("way", list(itertools.permutations(range(3))), ids=str)
def test_a_binding_crosses(talking, way):
    here, there, third = (talking.replicas[i] for i in way)
    for worker in range(2):
        scope, session = talking.scope(), f"session-{next(_names)}"
        occupied(scope, [(worker, 0), (worker, 1)], here, there, third)
        where = chosen(ask(here, scope, session, book=f"r{worker}", on=worker), scope)
        for replica in (there, third):
            eventually(lambda r=replica: chosen(ask(r, scope, session), scope), where, f"the session at {replica}")
        assert chosen(ask(there, scope, session, book=f"q{worker}"), scope) == where
        refused = ask(third, scope, session, book=f"n{worker}", on=1 - worker)
        bound, other = scope.workers[worker], scope.workers[1 - worker]
        assert refused.status == 400, refused
        assert refused.body["error"] == f"session {session} is bound to worker {bound}, not {other}"


@pytest.fixture(params=["ours", "theirs"])
def alone(request, subject, peer):
    """A replica of either make, what it publishes, and a publisher that it follows."""
    if peer.group == "tenant_id" or subject.name != "ours":
        pytest.skip("1.3 knows no sessions")
    sync, port = free_ports(1), free_ports(1)
    context = zmq.Context()
    publisher, wire = context.socket(zmq.PUB), context.socket(zmq.SUB)
    publisher.bind(endpoint(port))
    system = {"ours": subject.speaking("1.6"), "theirs": peer}[request.param]
    replica = Selection(system, system.selection(sync=sync, peers=[port], sessions=TTL))
    try:
        wire.connect(endpoint(sync))
        for topic in (TOPIC, EVENTS):
            wire.subscribe(topic)
        yield replica, wire, publisher
        assert replica.program.complaints() == []
    finally:
        replica.program.stop()
        context.destroy(linger=0)


def heard(wire, n: int) -> list:
    """The next n messages; there must be no more."""
    messages, deadline = [], time.monotonic() + PATIENCE
    while len(messages) < n and time.monotonic() < deadline:
        if wire.poll(50):
            topic, payload = wire.recv_multipart()
            messages.append((topic, msgpack.unpackb(payload)))
    assert len(messages) == n and not wire.poll(300), messages
    return messages


def of_topic(messages: list, wanted: bytes) -> dict:
    """The one message of a topic. The peer publishes each topic from a task of its own, so that their order says nothing."""
    (message,) = [message for topic, message in messages if topic == wanted]
    return message


def test_what_is_published(alone):
    """Both say the same at the same calls."""
    replica, wire, publisher = alone
    scope = shared_scope(replica)
    listening(replica, scope, wire, publisher)
    began = time.time_ns()
    ask(replica, scope, "s")
    ask(replica, scope, "", book="no")
    messages = heard(wire, 1) if replica.system.name == "ours" else heard(wire, 2)  # "" names one of theirs
    of_topic(messages, EVENTS)
    worker, rank = chosen(ask(replica, scope, "s", book="a"), scope)
    messages = heard(wire, 2)
    of_topic(messages, EVENTS)
    binding = of_topic(messages, TOPIC)
    sequence, writer = binding.pop("sequence"), binding.pop("writer_id")
    assert binding == {
        "model_name": scope.model,
        "routing_group": "default",
        "session_id": "s",
        "worker_id": scope.workers[worker],
        "dp_rank": rank,
    }
    assert began - 120e9 < sequence < began + 120e9 and writer > 0
    ask(replica, scope, "s", book="b")
    replica.free(scope, "a")
    replica.free(scope, "b")
    for topic, message in heard(wire, 6):
        if topic == TOPIC:
            assert message == binding | {"sequence": sequence, "writer_id": writer}
    ask(replica, scope, "t", book="c")
    later = of_topic(heard(wire, 2), TOPIC)
    assert (later["sequence"], later["writer_id"]) == (sequence + 1, writer)


def listening(replica, scope, wire, publisher) -> None:
    """Waits until the replica hears the publisher, and we hear the replica. From here on what is not bound is on (0, 0)."""
    occupied(scope, [(0, 1), (1, 0), (1, 1)], replica)
    deadline = time.monotonic() + PATIENCE
    probe = 0
    while True:
        assert time.monotonic() < deadline, "the sockets do not connect"
        probe += 1
        tell(publisher, scope, "probe", 1, 0, probe)
        replica.book(scope, f"probe-{probe}", 0, 0, [], 1)
        replica.free(scope, f"probe-{probe}")
        time.sleep(0.05)
        if wire.poll(0) and chosen(ask(replica, scope, "probe"), scope) == (1, 0):
            break
    last, event = (scope.booking(f"probe-{probe}"), "Free"), {}
    while (event.get("request_id"), event.get("data")) != last:
        assert wire.poll(PATIENCE * 1000), "the end of the last probe is not published"
        event = msgpack.unpackb(wire.recv_multipart()[1]).get("event", {})


def tell(publisher, scope, session, worker, rank, sequence, writer=77, **more) -> None:
    message = {
        "model_name": scope.model,
        "routing_group": "default",
        "session_id": session,
        "worker_id": scope.workers[worker],
        "dp_rank": rank,
        "sequence": sequence,
        "writer_id": writer,
    } | more
    publisher.send_multipart([TOPIC, msgpack.packb(message)])


# (worker, rank, sequence, writer) as told, where the session is then, and the version of that.
HISTORY = [
    ((0, 1, 5, 7), (0, 1), (5, 7)),  # vacant
    ((1, 0, 4, 9), (0, 1), (5, 7)),  # older
    ((1, 0, 5, 6), (0, 1), (5, 7)),
    ((1, 0, 5, 7), (0, 1), (5, 7)),  # as old
    ((1, 0, 5, 8), (1, 0), (5, 8)),  # newer by its writer
    ((1, 1, 6, 1), (1, 1), (6, 1)),  # newer
    ((1, 1, 9, 1), (1, 1), (9, 1)),  # the same rank, by a newer version
    ((0, 0, 8, 9), (1, 1), (9, 1)),
    ((0, 0, 10, 0), (0, 0), (10, 0)),
]


def test_the_rules_of_applying(alone):
    """Both come to the same binding by the same messages.

    Theirs applies each message in a task of its own, in any order. What changes the binding is awaited: where the
    session is, and its version, without which the next message but one could be applied before it. What changes
    nothing may be applied at any later time: it stays older than the binding.
    """
    replica, wire, publisher = alone
    scope = shared_scope(replica)
    listening(replica, scope, wire, publisher)
    for held in (False, True):
        session, names = f"history-{held}", itertools.count()

        def booked(session=session, held=held, names=names):
            """Where a booking of the session is, and what is published of it; unless held, it ends at once."""
            name = f"{session}-{next(names)}"
            where, version = chosen(ask(replica, scope, session, book=name), scope), published(wire, session)
            if not held:
                replica.free(scope, name)
                assert published(wire, session) == version
            return where, version

        for i, (told, want, version) in enumerate(HISTORY):
            tell(publisher, scope, session, *told)
            after = f"{session}-{i}"  # ours applies it after the one that it follows
            tell(publisher, scope, after, 1, 1, 1)
            eventually(lambda name=after: chosen(ask(replica, scope, name), scope), (1, 1), "a message")
            eventually(lambda name=session: chosen(ask(replica, scope, name), scope), want, str(told))
            eventually(booked, (want, version), str(told))  # requests that are under way do not matter
            assert chosen(ask(replica, scope, session), scope) == want, told
    tell(publisher, scope, "any", 1, None, 5)
    tell(publisher, scope, "last", 1, 1, 5)
    eventually(lambda: chosen(ask(replica, scope, "last"), scope), (1, 1), "a message")
    eventually(lambda: chosen(ask(replica, scope, "any"), scope)[0], 1, "a message")
    assert chosen(ask(replica, scope, "any", book="any"), scope)[0] == 1


def published(wire, session: str) -> tuple[int, int]:
    """The version in the next message about the session."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if wire.poll(50):
            topic, payload = wire.recv_multipart()
            if topic == TOPIC and (message := msgpack.unpackb(payload))["session_id"] == session:
                return message["sequence"], message["writer_id"]
    raise AssertionError(f"nothing is published about {session}")


# A name as Dynamo gives it to the group of the sessions that one session has started, which ends in a BLAKE3 hash.
GROUP = "\x01sg:" + "9d42a6ea7a8ccd6b9e0b0bd1a9a3b6d2" * 2


def test_homes_and_groups(alone):
    """1.6.1 takes a home for a binding, which follows when it moves, and carries the name of a group like any other. Ours, without a
    port for requests to engines, keeps no homes, and no client can name a group."""
    replica, wire, publisher = alone
    scope = shared_scope(replica)
    listening(replica, scope, wire, publisher)
    theirs = replica.system.name != "ours"
    for sequence, worker in enumerate((0, 1, 0), 5):
        tell(publisher, scope, "home", worker, 1, sequence, home=True)
        tell(publisher, scope, GROUP, worker, 1, sequence, home=True)
        tell(publisher, scope, f"after-{sequence}", 1, 1, 1)
        eventually(lambda name=f"after-{sequence}": chosen(ask(replica, scope, name), scope), (1, 1), "a message")
        if theirs:
            for name in ("home", GROUP):
                eventually(lambda name=name: chosen(ask(replica, scope, name), scope), (worker, 1), name)
    if not theirs:
        assert ask(replica, scope, GROUP).status == 400
        assert chosen(ask(replica, scope, "home", book="home", on=1), scope)[0] == 1
