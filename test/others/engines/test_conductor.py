"""The engines' publishers registered through the Conductor API, on every release.

Every answer is asked for twice: by tokens, and by rolling hashes that are
computed here. It is compared as a whole, so an instance or a medium too many
fails as well.
"""

import pytest

from bed import Bed
from conductor import Conductor, row
from engine import BLOCK_SIZE, Chain

TOKENS = tuple(range(1000, 1000 + 8 * BLOCK_SIZE + 1))
CHAIN = Chain(TOKENS)
RENAMED = Chain(TOKENS, process="second")  # the same prompt in another process
OTHER = Chain(TOKENS[:BLOCK_SIZE] + tuple(range(5000, 5000 + 7 * BLOCK_SIZE)), process="third")


def test_a_registration_from_its_first_to_its_last_block(bed, yard):
    engine = bed.engine()
    yard.check({}, CHAIN)  # nobody has registered for this identity
    source = yard.joined(engine)
    yard.check({"i1": row(0, {0: 0})}, CHAIN)
    source.apply(engine.stored(CHAIN, 0, 4))
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN)
    yard.check({"i1": row(1, {0: 1}, GPU=1)}, OTHER)
    source.apply(engine.removed(CHAIN, 2, 4))
    yard.check({"i1": row(2, {0: 2}, GPU=2)}, CHAIN)
    body = {k: v for k, v in source.record.items() if k != "replay_endpoint"}
    assert yard.conductor.post("/unregister", body) == (
        200,
        {"status": "unregistered successfully", "removed_instances": ["i1|default|0"]},
    )
    yard.sources.clear()
    yard.check({}, CHAIN)
    assert yard.conductor.post("/unregister", body)[0] == 404


def test_unregister_takes_the_blocks(bed, yard):
    """What comes back after it can only come from a replay."""
    engine = bed.engine()
    source = yard.joined(engine)
    source.apply(engine.stored(CHAIN, 0, 4))
    source.unregister()
    source = yard.joined(engine, replay_endpoint=None)
    yard.check({"i1": row(0, {0: 0})}, CHAIN)
    source.unregister()
    yard.register(engine)
    yard.shows({"i1": row(4, {0: 4}, GPU=4)}, CHAIN)


def test_a_late_registration_replays_from_0(bed, yard):
    engine = bed.engine()
    engine.publish(engine.stored(CHAIN, 0, 2))
    engine.publish(engine.stored(CHAIN, 2, 5), engine.removed(CHAIN, 4, 5))
    source = yard.register(engine)
    yard.shows({"i1": row(4, {0: 4}, GPU=4)}, CHAIN)
    source.becomes(state="live", last_sequence=1)


def test_a_gap_is_repaired_by_replay(bed, yard):
    engine = bed.engine()
    relay = bed.relay(engine)
    source = yard.joined(engine, endpoint=relay.events)
    relay.lose(2)
    engine.publish(engine.stored(CHAIN, 0, 2))
    engine.publish(engine.stored(CHAIN, 2, 4))
    source.apply(engine.stored(CHAIN, 4, 6))
    yard.check({"i1": row(6, {0: 6}, GPU=6)}, CHAIN)
    source.becomes(state="live", stale=False)


def test_a_gap_without_replay_is_said(bed, yard):
    engine = bed.engine()
    relay = bed.relay(engine)
    source = yard.joined(engine, endpoint=relay.events, replay_endpoint=None)
    relay.lose(1)
    engine.publish(engine.stored(OTHER, 0, 4))
    source.apply(engine.stored(CHAIN, 0, 3))
    yard.check({"i1": row(3, {0: 3}, GPU=3)}, CHAIN)
    source.becomes(state="stale")


def test_ranks_add_up_to_an_instance(bed, yard):
    """The longest prefix is that of all ranks together, DP is each rank's own."""
    first, second = bed.ranks(2)
    sources = [yard.register(engine, rank=engine.rank) for engine in (first, second)]
    for source in sources:
        source.join()
    sources[0].apply(first.stored(CHAIN, 0, 2))
    sources[1].apply(second.stored(RENAMED, 0, 4, medium=second.host))
    yard.check({"i1": row(4, {0: 2, 1: 4}, GPU=2, CPU=4)}, CHAIN)
    sources[1].apply(second.removed(RENAMED, 0, 2, medium=second.host))
    yard.check({"i1": row(4, {0: 2, 1: 0}, GPU=2, CPU=2)}, CHAIN)
    sources[0].apply(first.cleared())
    yard.check({"i1": row(0, {0: 0, 1: 0})}, CHAIN)
    sources[1].apply(second.stored(RENAMED, 0, 2))
    yard.check({"i1": row(4, {0: 0, 1: 4}, GPU=2, CPU=2)}, CHAIN)


def test_a_rank_is_unregistered_alone(bed, yard):
    engines = bed.ranks(2)
    sources = [yard.register(engine, rank=engine.rank) for engine in engines]
    for source, engine in zip(sources, engines, strict=True):
        source.join()
        source.apply(engine.stored(CHAIN, 0, 2 + 2 * engine.rank))
    yard.check({"i1": row(4, {0: 2, 1: 4}, GPU=4)}, CHAIN)
    sources[1].unregister()
    yard.check({"i1": row(2, {0: 2}, GPU=2)}, CHAIN)


def test_instances_are_told_apart(bed, yard):
    engines = [bed.engine(), bed.engine()]
    sources = [yard.joined(engine, instance=name) for engine, name in zip(engines, ("i1", "i2"), strict=True)]
    sources[0].apply(engines[0].stored(CHAIN, 0, 4))
    sources[1].apply(engines[1].stored(RENAMED, 0, 6))
    one, two = row(4, {0: 4}, GPU=4), row(6, {0: 6}, GPU=6)
    yard.check({"i1": one, "i2": two}, CHAIN)
    yard.check({"i2": two}, CHAIN, instance_id="i2")
    yard.check({"i1": one, "i2": two}, CHAIN, instance_id="")


def test_media_are_counted_each_for_itself(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine)
    source.apply(
        engine.stored(CHAIN, 0, 2),
        engine.stored(CHAIN, 0, 5, medium=engine.host),
        engine.stored(CHAIN, 4, 7, medium="STORAGE"),
    )
    yard.check({"i1": row(7, {0: 7}, GPU=2, CPU=5, DISK=3)}, CHAIN)
    source.apply(engine.removed(CHAIN, 4, 7, medium="DISK"))  # a name of the same medium
    yard.check({"i1": row(5, {0: 5}, GPU=2, CPU=5)}, CHAIN)
    source.apply(engine.removed(CHAIN, 2, 3, medium=engine.host))
    yard.check({"i1": row(2, {0: 2}, GPU=2, CPU=2)}, CHAIN)
    source.apply(engine.cleared())  # every medium
    yard.check({"i1": row(0, {0: 0})}, CHAIN)


def test_further_media_have_columns_of_their_own(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine)
    source.apply(engine.stored(CHAIN, 0, 3, medium="npu"), engine.stored(CHAIN, 3, 4, medium="SHARED"))
    yard.check({"i1": row(4, {0: 4}, NPU=3, EXTERNAL=1)}, CHAIN)
    source.apply(engine.removed(CHAIN, 2, 3, medium="NPU"))
    yard.check({"i1": row(2, {0: 2}, NPU=2, EXTERNAL=0)}, CHAIN)


@pytest.mark.needs("BlockStored", "lora_name")
def test_an_adapter_of_the_events(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine)
    source.apply(engine.stored(CHAIN, 0, 2), engine.adapted(RENAMED, 0, 5, "an-adapter"))
    yard.check({"i1": row(2, {0: 2}, GPU=2)}, CHAIN)
    yard.check({"i1": row(5, {0: 5}, GPU=5)}, CHAIN, lora_name="an-adapter")
    yard.check({}, CHAIN, lora_name="another")
    source.apply(engine.removed(RENAMED, 3, 5))
    yard.check({"i1": row(3, {0: 3}, GPU=3)}, CHAIN, lora_name="an-adapter")


def test_an_adapter_of_the_registration(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine, lora_name="an-adapter")
    source.apply(engine.stored(CHAIN, 0, 4))
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN, lora_name="an-adapter")
    yard.check({}, CHAIN)


def test_a_salt_of_the_events(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine)
    source.apply(engine.stored(CHAIN, 0, 2), engine.salted(RENAMED, 0, 3, "a-salt"))
    source.apply(engine.stored(RENAMED, 3, 5))  # the salt is known from the parent
    yard.check({"i1": row(2, {0: 2}, GPU=2)}, CHAIN)
    yard.check({"i1": row(5, {0: 5}, GPU=5)}, CHAIN, cache_salt="a-salt")
    yard.check({}, CHAIN, cache_salt="another")
    source.apply(engine.cleared())
    yard.check({}, CHAIN, cache_salt="a-salt")


def test_a_salt_of_the_registration(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine, additionalsalt="w8a8")
    source.apply(engine.stored(CHAIN, 0, 4))
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN, cache_salt="w8a8")
    yard.check({}, CHAIN)


def test_salts_of_both_cannot_be_asked_for(bed, yard):
    """A customer's blocks under a quantisation: no query names such a pair."""
    engine = bed.engine()
    source = yard.joined(engine, additionalsalt="w8a8")
    source.apply(engine.salted(CHAIN, 0, 4, "a-salt"))
    yard.check({"i1": row(0, {0: 0})}, CHAIN, cache_salt="w8a8")
    yard.check({}, CHAIN, cache_salt="a-salt")
    yard.check({}, CHAIN)


def test_tenants_are_told_apart(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine, tenant_id="acme")
    source.apply(engine.stored(CHAIN, 0, 4))
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN, tenant_id="acme")
    yard.check({}, CHAIN)


def test_a_hash_seed_of_its_own(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine, hash_seed=7)
    source.apply(engine.stored(CHAIN, 0, 4))
    want = {"i1": row(4, {0: 4}, GPU=4)}
    yard.check(want, CHAIN, seed=7)
    assert yard.rows(CHAIN) == (want, {"i1": row(0, {0: 0})})  # by the hashes of the usual seed
    other = source.record | {"endpoint": engine.replay, "instance_id": "i2", "hash_seed": 8}
    status, answer = yard.conductor.post("/register", other)
    assert (status, answer["reason"]) == (409, "hash_seed_mismatch")


def test_a_restarted_engine_loses_its_old_blocks(bed, yard):
    ranks = bed.ranks(2)
    sources = [yard.register(engine, rank=engine.rank) for engine in ranks]
    for source, engine in zip(sources, ranks, strict=True):
        source.join()
        source.apply(engine.stored(CHAIN, 0, 4))
    ranks[0].restart()
    ranks[0].publish(ranks[0].stored(OTHER, 0, 3))
    yard.shows({"i1": row(3, {0: 3, 1: 1}, GPU=3)}, OTHER)
    yard.check({"i1": row(4, {0: 1, 1: 4}, GPU=4)}, CHAIN)
    sources[0].join()
    sources[0].apply(ranks[0].removed(OTHER, 0, 1))
    yard.check({"i1": row(4, {0: 0, 1: 4}, GPU=4)}, CHAIN)


def test_services_say_what_a_stream_brought(bed, yard):
    engine = bed.engine()
    engine.publish(engine.stored(CHAIN, 0, 4), engine.stored(CHAIN, 0, 3, medium=engine.host))
    source = yard.register(engine, lora_name="an-adapter", tenant_id="acme")
    source.becomes(
        state="live",
        last_sequence=0,
        last_event_id=None,
        stale=False,
        hashes="tokens",
        blocks={"GPU": 4, "CPU": 3, "DISK": 0},
    )


def test_the_prefix_answers_like_the_port(bed, yard, service):
    engine = bed.engine()
    yard.joined(engine).apply(engine.stored(CHAIN, 0, 4))
    prompt = {"token_ids": TOKENS}
    prefix = Conductor(service.url + "/conductor")
    assert yard.query(prompt, conductor=prefix) == yard.query(prompt) == {"i1": row(4, {0: 4}, GPU=4)}


def test_selection_workers_answer_too(bed: Bed, yard):
    """Under their id, for the base model without a salt."""
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 4))
    yard.model = worker.model
    yard.check({str(worker.id): row(4, {0: 4}, GPU=4)}, CHAIN)
    yard.check({}, CHAIN, cache_salt="a-salt")
    engine = bed.engine()
    yard.joined(engine).apply(engine.stored(RENAMED, 0, 2))
    yard.check({str(worker.id): row(4, {0: 4}, GPU=4), "i1": row(2, {0: 2}, GPU=2)}, CHAIN)
    assert worker.overlap(CHAIN) == (4, 4, 4)  # an instance is no candidate of a selection
