"""Connection, replay, gaps and restarts of an engine's stream, on every release."""

import contextlib

import zmq

from engine import BLOCK_SIZE, Chain
from ports import free_ports

CHAIN = Chain(tuple(range(1000, 1000 + 8 * BLOCK_SIZE)))
OTHER = Chain(tuple(range(3000, 3000 + 8 * BLOCK_SIZE)), process="second")
LONG = Chain(tuple(range(10_000, 10_000 + 500 * BLOCK_SIZE)))


def test_a_warm_idle_engine_is_known_at_once(bed):
    """Only a replay from 0 can tell: the engine publishes nothing any more."""
    engine = bed.engine()
    engine.publish(engine.stored(CHAIN, 0, 2))
    engine.publish(engine.stored(CHAIN, 2, 5))
    bed.register(engine).shows((5, 5, 5), CHAIN)


def test_live_messages_continue_the_first_replay(bed):
    engine = bed.engine()
    engine.publish(engine.stored(CHAIN, 0, 2))
    worker = bed.register(engine)
    worker.join()
    worker.apply(engine.stored(CHAIN, 2, 4))
    assert worker.overlap(CHAIN) == (4, 4, 4)


def test_a_long_replay(bed):
    engine = bed.engine()
    for i in range(len(LONG)):
        engine.publish(engine.stored(LONG, i, i + 1))
    bed.register(engine).shows((500, 500, 500), LONG)


def test_a_trimmed_ring_gives_what_it_has(bed):
    engine = bed.engine(ring=2)
    engine.publish(engine.stored(OTHER, 0, 4))
    engine.publish(engine.stored(CHAIN, 0, 2))
    engine.publish(engine.stored(CHAIN, 2, 4))
    worker = bed.register(engine)
    worker.shows((4, 4, 4), CHAIN)
    assert worker.overlap(OTHER) == (0, 0, 0)


def test_a_topic_changes_nothing(bed):
    engine = bed.engine(topic="kv@pod-1@a-model")
    engine.publish(engine.stored(CHAIN, 0, 2))
    worker = bed.register(engine)
    worker.shows((2, 2, 2), CHAIN)
    worker.join()
    worker.apply(engine.stored(CHAIN, 2, 4))
    assert worker.overlap(CHAIN) == (4, 4, 4)


def test_an_engine_that_connects_is_waited_for(bed):
    """An endpoint with a wildcard host is bound by the service."""
    port = free_ports(1)
    engine = bed.engine(connect=f"tcp://127.0.0.1:{port}")
    engine.publish(engine.stored(CHAIN, 0, 2))
    worker = bed.register(engine, kv_events_endpoints={"0": f"tcp://*:{port}"})
    worker.shows((2, 2, 2), CHAIN)
    worker.join()
    worker.apply(engine.stored(CHAIN, 2, 4))
    assert worker.overlap(CHAIN) == (4, 4, 4)


def test_ranks_have_ports_and_blocks_of_their_own(bed):
    ranks = bed.ranks(2)
    ranks[0].publish(ranks[0].stored(CHAIN, 0, 2))
    ranks[1].publish(ranks[1].stored(OTHER, 0, 4))
    worker = bed.register(*ranks)
    worker.shows((2, 2, 2), CHAIN, rank=0)
    worker.shows((4, 4, 4), OTHER, rank=1)
    assert worker.overlap(CHAIN, rank=1) == worker.overlap(OTHER, rank=0) == (0, 0, 0)
    worker.join()
    worker.apply(ranks[1].stored(CHAIN, 0, 5), rank=1)
    assert worker.overlap(CHAIN, rank=1) == (5, 5, 5)
    worker.apply(ranks[1].cleared(), rank=1)
    assert worker.overlap(CHAIN, rank=1) == worker.overlap(OTHER, rank=1) == (0, 0, 0)
    assert worker.overlap(CHAIN, rank=0) == (2, 2, 2)


def test_a_gap_is_repaired_by_replay(bed):
    engine = bed.engine()
    relay = bed.relay(engine)
    worker = bed.register(engine, kv_events_endpoints={"0": relay.events})
    worker.join()
    relay.lose(2)
    engine.publish(engine.stored(CHAIN, 0, 2))
    engine.publish(engine.stored(CHAIN, 2, 4))
    worker.apply(engine.stored(CHAIN, 4, 6))
    assert worker.overlap(CHAIN) == (6, 6, 6)


def test_a_gap_without_replay_costs_only_what_was_lost(bed):
    engine = bed.engine()
    relay = bed.relay(engine)
    worker = bed.register(engine, kv_events_endpoints={"0": relay.events}, replay_endpoint=None)
    worker.join()
    relay.lose(1)
    engine.publish(engine.stored(OTHER, 0, 4))
    worker.apply(engine.stored(CHAIN, 0, 3))
    assert worker.overlap(CHAIN) == (3, 3, 3)
    assert worker.overlap(OTHER) == (0, 0, 0)


def test_what_a_broken_connection_lost_is_replayed(bed):
    """Without any live message after it."""
    engine = bed.engine()
    relay = bed.relay(engine)
    worker = bed.register(engine, kv_events_endpoints={"0": relay.events})
    worker.join()
    worker.apply(engine.stored(CHAIN, 0, 2))
    relay.hang_up()
    engine.publish(engine.stored(CHAIN, 2, 4))
    engine.publish(engine.removed(CHAIN, 3, 4))
    relay.wait_lost(2)
    relay.pick_up()
    worker.shows((3, 3, 3), CHAIN)


def test_a_restarted_engine_loses_its_old_blocks(bed):
    """With fewer messages than before, and no live message after the reconnection."""
    worker = bed.worker()
    engine = worker.engine
    for i in range(4):
        worker.apply(engine.stored(CHAIN, i, i + 1))
    engine.restart()
    engine.publish(engine.stored(OTHER, 0, 3))
    worker.shows((3, 3, 3), OTHER)
    assert worker.overlap(CHAIN) == (0, 0, 0)
    worker.join()
    worker.apply(engine.stored(OTHER, 3, 5))
    assert worker.overlap(OTHER) == (5, 5, 5)


def test_a_restarted_engine_that_has_published_more_than_before(bed):
    """Its numbers alone look like a continuation."""
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 4))
    engine.restart()
    for i in range(200):
        engine.publish(engine.stored(LONG, i, i + 1))
    worker.shows((200, 200, 200), LONG)
    worker.shows((0, 0, 0), CHAIN)


def test_a_restart_is_seen_without_replay(bed):
    engine = bed.engine()
    worker = bed.register(engine, replay_endpoint=None)
    worker.join()
    for i in range(8):
        worker.apply(engine.stored(CHAIN, i, i + 1))
    engine.restart()
    worker.join()
    assert worker.overlap(CHAIN) == (0, 0, 0)
    worker.apply(engine.stored(OTHER, 0, 4))
    assert worker.overlap(OTHER) == (4, 4, 4)


def test_a_silent_replay_endpoint_does_not_stop_live_events(bed):
    with _silent_router() as endpoint:
        engine = bed.engine()
        worker = bed.register(engine, replay_endpoint=endpoint)
        worker.join()
        worker.apply(engine.stored(CHAIN, 0, 4))
        assert worker.overlap(CHAIN) == (4, 4, 4)


@contextlib.contextmanager
def _silent_router():
    """A replay endpoint that takes requests and never answers."""
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        yield f"tcp://127.0.0.1:{port}"
