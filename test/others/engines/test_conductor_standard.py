"""A publisher of the standard envelope, registered through the Conductor API."""

import pytest

from conductor import row
from engine import BLOCK_SIZE, Chain
from standard import Standard

TOKENS = tuple(range(1000, 1000 + 8 * BLOCK_SIZE))
CHAIN = Chain(TOKENS)
OTHER = Chain(TOKENS[:BLOCK_SIZE] + tuple(range(5000, 5000 + 7 * BLOCK_SIZE)))


@pytest.fixture
def source(yard):
    """A publisher that states no identity, registered and joined."""
    return yard.joined(yard.add(Standard()))


def test_blocks_are_known_by_their_hashes_alone(source, yard):
    publisher = source.publisher
    source.apply(publisher.stored(CHAIN, 0, 2), publisher.stored(CHAIN, 2, 5))
    yard.check({"i1": row(5, {0: 5}, GPU=5)}, CHAIN)
    yard.check({"i1": row(1, {0: 1}, GPU=1)}, OTHER)
    source.apply(publisher.removed(CHAIN, 3, 5))
    yard.check({"i1": row(3, {0: 3}, GPU=3)}, CHAIN)


def test_events_without_a_batch(source, yard):
    publisher = source.publisher
    publisher.publish_bare(publisher.stored(CHAIN, 0, 4), publisher.removed(CHAIN, 3, 4))
    source.apply()
    yard.check({"i1": row(3, {0: 3}, GPU=3)}, CHAIN)


def test_a_place_is_a_parent_or_a_depth(source, yard):
    publisher = source.publisher
    source.apply(publisher.stored(CHAIN, 0, 1), publisher.by_parent(CHAIN, 1, 3))
    yard.check({"i1": row(3, {0: 3}, GPU=3)}, CHAIN)
    source.apply(publisher.by_depth(CHAIN, 3, 5))
    yard.check({"i1": row(5, {0: 5}, GPU=5)}, CHAIN)
    neither = {"base_block_idx": None, "parent_hash": None}
    source.apply(publisher.stored(CHAIN, 5, 6, **neither), publisher.stored(CHAIN, 6, 7))
    yard.check({"i1": row(5, {0: 5}, GPU=5)}, CHAIN)  # skipped alone: the hole hides what is behind it
    source.apply(publisher.stored(CHAIN, 5, 6))
    yard.check({"i1": row(7, {0: 7}, GPU=7)}, CHAIN)


def test_blocks_may_come_before_those_in_front_of_them(source, yard):
    publisher = source.publisher
    source.apply(publisher.by_depth(CHAIN, 3, 6), publisher.by_parent(CHAIN, 2, 3, medium="cpu"))
    yard.check({"i1": row(0, {0: 0})}, CHAIN)
    source.apply(publisher.by_depth(CHAIN, 0, 2, medium="disk"))
    yard.check({"i1": row(6, {0: 6}, GPU=3, CPU=1, DISK=2)}, CHAIN)


def test_names_of_its_own_with_tokens(source, yard):
    """The hashes are computed anew; the names are for what comes later."""
    publisher = source.publisher
    source.apply(publisher.renamed(CHAIN, 0, 2), publisher.renamed(CHAIN, 2, 5))
    yard.check({"i1": row(5, {0: 5}, GPU=5)}, CHAIN)
    source.apply(publisher.removed_renamed(CHAIN, 3, 5))
    yard.check({"i1": row(3, {0: 3}, GPU=3)}, CHAIN)


def test_services_say_whose_hashes_they_are(yard):
    """Tokens of one publisher tell that another one hashes by the standard."""
    tokens, standard, alone = (yard.add(Standard()) for _ in range(3))
    tokens.publish(tokens.renamed(CHAIN, 0, 4))
    standard.publish(standard.stored(CHAIN, 0, 4, medium="cpu"))
    alone.publish(alone.stored(CHAIN, 0, 4))
    yard.register(tokens).becomes(hashes="tokens")
    yard.register(standard, instance="i2").becomes(hashes="standard")
    yard.register(alone, additionalsalt="w8a8").becomes(hashes="unverified")
    yard.check({"i1": row(4, {0: 4}, GPU=4), "i2": row(4, {0: 4}, CPU=4)}, CHAIN)


def test_a_clear_is_of_one_stream(yard):
    """Of its medium, its backend, its rank; other streams keep their blocks."""
    publisher = yard.add(Standard())
    source = yard.joined(publisher)
    stated = {"backend_id": "worker-1", "dp_rank": 1}
    source.apply(
        publisher.stored(CHAIN, 0, 6),
        publisher.stored(CHAIN, 0, 5, medium="cpu"),
        publisher.stored(CHAIN, 0, 4, medium="disk"),
        publisher.stored(CHAIN, 0, 3, **stated),
        publisher.stored(CHAIN, 0, 2, backend_id="worker-1"),
    )
    yard.check({"i1": row(6, {0: 6, 1: 3}, GPU=6, CPU=5, DISK=4)}, CHAIN)
    source.apply(publisher.cleared())
    yard.check({"i1": row(5, {0: 5, 1: 3}, GPU=3, CPU=5, DISK=4)}, CHAIN)
    source.apply(publisher.cleared(**stated))
    yard.check({"i1": row(5, {0: 5}, GPU=2, CPU=5, DISK=4)}, CHAIN)
    source.apply(publisher.cleared(medium="cpu"))
    yard.check({"i1": row(4, {0: 4}, GPU=2, DISK=4)}, CHAIN)


def test_what_events_state_goes_before_the_registration(yard):
    publisher = yard.add(Standard())
    source = yard.joined(publisher, lora_name="an-adapter", additionalsalt="w8a8")
    source.apply(
        publisher.stored(CHAIN, 0, 1),
        publisher.stored(CHAIN, 0, 2, lora_name="another"),
        publisher.stored(CHAIN, 0, 3, additional_salt="fp8"),
        publisher.stored(CHAIN, 0, 4, tenant_id="acme"),
        publisher.stored(CHAIN, 0, 5, model_name=yard.model + "-draft"),
    )
    salted = {"cache_salt": "w8a8"}
    yard.check({"i1": row(1, {0: 1}, GPU=1)}, CHAIN, lora_name="an-adapter", **salted)
    yard.check({"i1": row(2, {0: 2}, GPU=2)}, CHAIN, lora_name="another", **salted)
    yard.check({"i1": row(3, {0: 3}, GPU=3)}, CHAIN, lora_name="an-adapter", cache_salt="fp8")
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN, lora_name="an-adapter", tenant_id="acme", **salted)
    yard.check({}, CHAIN, lora_name="an-adapter")
    yard.check({}, CHAIN, **salted)
    yard.model += "-draft"
    yard.check({"i1": row(5, {0: 5}, GPU=5)}, CHAIN, lora_name="an-adapter", **salted)


def test_a_hash_seed_of_its_own(yard):
    publisher = yard.add(Standard(seed=7))
    source = yard.joined(publisher, hash_seed=7)
    source.apply(publisher.stored(CHAIN, 0, 2), publisher.renamed(CHAIN, 2, 4, parent_hash=None))
    yard.check({"i1": row(2, {0: 2}, GPU=2)}, CHAIN, seed=7)  # a place in the middle has no tokens before it
    source.apply(publisher.stored(CHAIN, 2, 4))
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN, seed=7)


@pytest.mark.parametrize("topic_in_replay", [True, False], ids=["four frames", "three frames"])
def test_lost_messages_are_replayed(yard, topic_in_replay):
    publisher = yard.add(Standard(settings={"topic_in_replay": topic_in_replay}))
    publisher.publish(publisher.stored(CHAIN, 0, 1))
    source = yard.register(publisher)
    yard.shows({"i1": row(1, {0: 1}, GPU=1)}, CHAIN)  # the first replay
    source.join()
    publisher.lose(2)
    publisher.publish(publisher.stored(CHAIN, 1, 3))
    publisher.publish(publisher.stored(CHAIN, 3, 5))
    source.apply(publisher.stored(CHAIN, 5, 6))
    yard.check({"i1": row(6, {0: 6}, GPU=6)}, CHAIN)
    source.becomes(state="live", stale=False, event_gaps=0, events_missed=0)


def test_a_missing_event_makes_the_stream_stale(source, yard):
    """No message is missing, so no replay can help; a clear starts afresh."""
    publisher = source.publisher
    source.apply(publisher.stored(CHAIN, 0, 2))
    source.becomes(stale=False, event_gaps=0)
    publisher.skip(3)
    source.apply(publisher.stored(CHAIN, 2, 4))
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN)
    source.becomes(state="live", stale=True, event_gaps=1, events_missed=3)
    source.apply(publisher.cleared())
    source.becomes(stale=False, event_gaps=1, events_missed=3)


def test_event_numbers_are_those_of_their_stream(source, yard):
    """Streams that differ in any dimension count apart."""
    publisher = source.publisher
    others = {"medium": "cpu", "dp_rank": 1, "backend_id": "b", "additional_salt": "s", "lora_name": "l"}
    for fields in ({}, *({dimension: value} for dimension, value in others.items())):
        source.apply(publisher.stored(CHAIN, 0, 1, **fields), publisher.stored(CHAIN, 1, 2, **fields))
    source.becomes(stale=False, event_gaps=0, late_events=0)
    publisher.skip(1, dp_rank=1)
    source.apply(publisher.stored(CHAIN, 2, 3), publisher.stored(CHAIN, 2, 3, dp_rank=1))
    source.becomes(stale=True, event_gaps=1, events_missed=1)


def test_a_late_event_counts_no_more(source, yard):
    publisher = source.publisher
    source.apply(publisher.stored(CHAIN, 0, 4))
    source.apply(publisher.removed(CHAIN, 2, 4))
    last = source.status()["last_event_id"]
    source.apply(publisher.stored(CHAIN, 2, 4, event_id=last - 1))
    yard.check({"i1": row(2, {0: 2}, GPU=2)}, CHAIN)
    source.becomes(late_events=1, stale=False)


def test_a_restarted_publisher_loses_its_old_blocks(source, yard):
    publisher = source.publisher
    for i in range(4):
        source.apply(publisher.stored(CHAIN, i, i + 1))
    publisher.restart()
    publisher.publish(publisher.stored(OTHER, 0, 3))
    yard.shows({"i1": row(3, {0: 3}, GPU=3)}, OTHER)
    yard.check({"i1": row(1, {0: 1}, GPU=1)}, CHAIN)
    source.join()
    source.apply(publisher.stored(OTHER, 3, 5))
    yard.check({"i1": row(5, {0: 5}, GPU=5)}, OTHER)
    source.becomes(stale=False, late_events=0)


def test_a_depth_that_cannot_be_is_counted(source, yard):
    """The hash says where a block is; what is said beside it is checked."""
    publisher = source.publisher
    source.apply(publisher.stored(CHAIN, 0, 4))
    source.becomes(base_mismatches=0)
    source.apply(publisher.removed(CHAIN, 3, 4, base_block_idx=1))
    source.becomes(base_mismatches=1)
    yard.check({"i1": row(3, {0: 3}, GPU=3)}, CHAIN)


def test_a_medium_of_its_own(source, yard):
    publisher = source.publisher
    source.apply(publisher.stored(CHAIN, 0, 2, medium="hbm"), publisher.stored(CHAIN, 2, 3, medium="obj"))
    yard.check({"i1": row(3, {0: 3}, HBM=2, DISK=1)}, CHAIN)
    source.apply(publisher.cleared(medium="hbm"))
    yard.check({"i1": row(0, {0: 0}, HBM=0)}, CHAIN)
