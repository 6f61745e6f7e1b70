"""What only vLLM says, and the store behind it, through the Conductor API."""

import pytest

from conductor import row
from engine import BLOCK_SIZE, Chain
from mooncake import Store, objects

pytestmark = pytest.mark.engine("vllm")

TOKENS = tuple(range(1000, 1000 + 8 * BLOCK_SIZE))
CHAIN = Chain(TOKENS)
RENAMED = Chain(TOKENS, process="second")


@pytest.fixture
def pair(bed, yard):
    """A vLLM engine and a cache daemon, both registered for one instance."""
    engine, store = bed.engine(), yard.add(Store())
    return yard.joined(engine), yard.joined(store)


def test_names_may_be_bytes(bed, yard):
    engine = bed.engine()
    engine.byte_names = True
    source = yard.joined(engine)
    source.apply(engine.stored(CHAIN, 0, 5), engine.removed(CHAIN, 4, 5))
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN)


def test_offloaded_blocks_come_without_tokens(bed, yard):
    engine = bed.engine()
    source = yard.joined(engine)
    source.apply(engine.stored(CHAIN, 0, 4), engine.offloaded(CHAIN, 0, 3))
    source.apply(engine.offloaded(CHAIN, 2, 4, medium="STORAGE"))
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=3, DISK=2)}, CHAIN)
    source.apply(engine.removed(CHAIN, 0, 4))
    yard.check({"i1": row(4, {0: 4}, CPU=3, DISK=2)}, CHAIN)


def test_an_adapter_that_is_only_a_number(bed, yard):
    """Its decimal text is its name, as in a query by lora_id."""
    engine = bed.engine()
    source = yard.joined(engine)
    source.apply(engine.stored(CHAIN, 0, 4, lora_id=7))
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN, lora_id=7)
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN, lora_name="7")
    yard.check({"i1": row(0, {0: 0})}, CHAIN)


def test_a_store_counts_for_the_instance(pair, yard):
    """Its objects have the engine's names; prompts and standard hashes find them."""
    (engines, stores), engine, store = pair, pair[0].publisher, pair[1].publisher
    engines.apply(engine.stored(CHAIN, 0, 6))
    stores.apply(store.put("cpu", blocks=objects(CHAIN, 0, 4)), store.put("disk", blocks=objects(CHAIN, 2, 6)))
    yard.check({"i1": row(6, {0: 6}, GPU=6, CPU=4, DISK=4)}, CHAIN)
    engines.apply(engine.removed(CHAIN, 0, 6))
    yard.check({"i1": row(6, {0: 6}, CPU=4, DISK=4)}, CHAIN)
    stores.apply(store.drop("cpu", "disk", blocks=objects(CHAIN, 3, 4)))
    yard.check({"i1": row(3, {0: 3}, CPU=3, DISK=1)}, CHAIN)
    engines.apply(engine.stored(CHAIN, 0, 4))
    yard.check({"i1": row(6, {0: 6}, GPU=4, CPU=3, DISK=3)}, CHAIN)


def test_a_store_and_its_engine_live_apart(pair, yard):
    """Neither's end, restart or clearing touches what the other holds."""
    (engines, stores), engine, store = pair, pair[0].publisher, pair[1].publisher
    engines.apply(engine.stored(CHAIN, 0, 4))
    stores.apply(store.put("cpu", blocks=objects(CHAIN, 0, 3)))
    engines.apply(engine.cleared())
    yard.check({"i1": row(3, {0: 3}, CPU=3)}, CHAIN)
    engine.restart()
    engine.publish(engine.stored(RENAMED, 0, 2))
    yard.shows({"i1": row(3, {0: 3}, GPU=2, CPU=3)}, CHAIN)
    store.restart()
    stores.join()
    yard.shows({"i1": row(2, {0: 2}, GPU=2)}, CHAIN)
    stores.apply(store.put("disk", blocks=objects(RENAMED, 0, 2)))  # by the new engine's names
    yard.check({"i1": row(2, {0: 2}, GPU=2, DISK=2)}, CHAIN)
    engines.unregister()
    yard.check({"i1": row(2, {0: 2}, DISK=2)}, CHAIN)
    stores.unregister()
    yard.check({}, CHAIN)


def test_a_store_that_two_instances_share(bed, yard):
    """One daemon, registered for each of them; the engines' ranks hold nothing."""
    store, engines = yard.add(Store()), [bed.engine(), bed.engine()]
    sources = {name: yard.joined(engine, instance=name) for name, engine in zip(("i1", "i2"), engines, strict=True)}
    stores = [yard.joined(store, instance=name) for name in sources]
    sources["i1"].apply(engines[0].stored(CHAIN, 0, 4))
    for source in stores:
        source.apply()
    store.publish(store.put("cpu", blocks=objects(CHAIN, 0, 4)))
    for source in stores:
        source.apply()
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=4), "i2": row(4, {0: 4}, CPU=4)}, CHAIN)


def test_blocks_that_move_from_memory_to_disk(pair, yard):
    """The master says first what is gone; the engine has nothing of it any more."""
    (engines, stores), engine, store = pair, pair[0].publisher, pair[1].publisher
    engines.apply(engine.stored(CHAIN, 0, 4))
    stores.apply(store.put("cpu", blocks=objects(CHAIN, 0, 4)))
    engines.apply(engine.removed(CHAIN, 0, 4))
    yard.check({"i1": row(4, {0: 4}, CPU=4)}, CHAIN)
    for block in objects(CHAIN, 0, 4):
        store.publish(store.drop("cpu", blocks=[block]), store.put("disk", blocks=[block]))
    stores.apply()
    yard.check({"i1": row(4, {0: 4}, DISK=4)}, CHAIN)


def test_a_store_that_has_adapters_too(bed, yard):
    """It does not say which block is whose, so it is registered for either."""
    engine, store = bed.engine(), yard.add(Store())
    engines = yard.joined(engine)
    stores = [yard.joined(store), yard.joined(store, lora_name="an-adapter")]
    engines.apply(engine.stored(CHAIN, 0, 4), engine.adapted(RENAMED, 0, 4, "an-adapter"))
    store.publish(store.put("cpu", blocks=[*objects(CHAIN, 0, 2), *objects(RENAMED, 0, 3)]))
    for source in stores:
        source.apply()
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=2)}, CHAIN)
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=3)}, CHAIN, lora_name="an-adapter")


def test_engines_that_name_blocks_differently(bed, yard):
    """Each has a store, which has its names of the same blocks; either comes first."""
    engines, stores = [bed.engine(), bed.engine()], [yard.add(Store()), yard.add(Store())]
    chains = (CHAIN, RENAMED)
    for name, engine, store, chain in zip(("i1", "i2"), engines, stores, chains, strict=True):
        yard.joined(engine, instance=name).apply(engine.stored(chain, 0, 4))
        yard.joined(store, instance=name).apply(store.put("cpu", blocks=objects(chain, 0, 3)))
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=3), "i2": row(4, {0: 4}, GPU=4, CPU=3)}, CHAIN)
    late = yard.joined(yard.add(Store(backend="store-3")), instance="i1")
    late.apply(late.publisher.put("disk", blocks=[*objects(CHAIN, 0, 1), *objects(RENAMED, 1, 4)]))
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=3, DISK=4), "i2": row(4, {0: 4}, GPU=4, CPU=3)}, CHAIN)
    late.apply(late.publisher.drop("disk", blocks=[*objects(CHAIN, 0, 1), *objects(RENAMED, 3, 4)]))
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=3, DISK=2), "i2": row(4, {0: 4}, GPU=4, CPU=3)}, CHAIN)


def test_a_store_that_is_registered_late(bed, yard):
    """With a replay endpoint; masters have none, but ones that have are asked."""
    engine, store = bed.engine(), yard.add(Store())
    engines = yard.joined(engine)
    engines.apply(engine.stored(CHAIN, 0, 4))
    store.publish(store.put("cpu", "disk", blocks=objects(CHAIN, 0, 3)))
    store.publish(store.drop("disk", blocks=objects(CHAIN, 1, 3)))
    stores = yard.register(store)
    yard.shows({"i1": row(4, {0: 4}, GPU=4, CPU=3, DISK=1)}, CHAIN)
    stores.becomes(state="live", last_sequence=2, last_event_id=8)


def test_a_store_without_replay(bed, yard):
    """As masters are: numbered from 1, and a restarted one again."""
    engine, store = bed.engine(), yard.add(Store())
    engines, stores = yard.joined(engine), yard.joined(store, replay_endpoint=None)
    engines.apply(engine.stored(CHAIN, 0, 8))
    for block in objects(CHAIN, 0, 8):
        stores.apply(store.put("cpu", blocks=[block]))
    yard.check({"i1": row(8, {0: 8}, GPU=8, CPU=8)}, CHAIN)
    store.restart()
    stores.join()
    yard.check({"i1": row(8, {0: 8}, GPU=8)}, CHAIN)
    stores.apply(store.put("disk", blocks=objects(CHAIN, 0, 2)))
    yard.check({"i1": row(8, {0: 8}, GPU=8, DISK=2)}, CHAIN)


def test_event_numbers_of_a_store_run_over_all_its_media(pair, yard):
    """Only a number that no event has is a loss."""
    engines, stores = pair
    engine, store = engines.publisher, stores.publisher
    engines.apply(engine.stored(CHAIN, 0, 4))
    stores.apply(store.put("cpu", "disk", blocks=objects(CHAIN, 0, 4)))
    stores.becomes(stale=False, event_gaps=0, events_missed=0, late_events=0)
    store.skip(3)
    stores.apply(store.drop("disk", blocks=objects(CHAIN, 2, 4)))
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=4, DISK=2)}, CHAIN)
    stores.becomes(stale=True, event_gaps=1, events_missed=3)


def test_a_store_that_is_emptied(pair, yard):
    (engines, stores), engine, store = pair, pair[0].publisher, pair[1].publisher
    engines.apply(engine.stored(CHAIN, 0, 4))
    stores.apply(store.put("cpu", "disk", blocks=objects(CHAIN, 0, 4)), store.clear())
    yard.check({"i1": row(4, {0: 4}, GPU=4)}, CHAIN)
    stores.apply(store.put("cpu", blocks=objects(CHAIN, 0, 2)))
    yard.check({"i1": row(4, {0: 4}, GPU=4, CPU=2)}, CHAIN)


def test_names_that_no_engine_has_said(bed, yard):
    """Nothing tells which tokens they are; the service says so."""
    store = yard.add(Store())
    stores = yard.joined(store)
    store.publish(store.put("cpu", blocks=objects(CHAIN, 0, 4)))
    stores.apply()
    yard.check({"i1": row(0, {0: 0})}, CHAIN)
    stores.becomes(hashes="unverified")


@pytest.mark.parametrize("known", [False, True], ids=["tokens unknown", "tokens known by other names"])
def test_a_store_that_is_heard_before_its_engine(bed, yard, known):
    """As after a restart of the service: two replays, in any order."""
    if known:
        other = bed.engine(rank=1)
        yard.joined(other, rank=1).apply(other.stored(RENAMED, 0, 1))
    engine, store = bed.engine(), yard.add(Store())
    stores = yard.joined(store)
    stores.apply(store.put("cpu", blocks=objects(CHAIN, 0, 3)))
    engines = yard.joined(engine)
    engines.apply(engine.stored(CHAIN, 0, 4))
    dp = {0: 4, 1: 1} if known else {0: 4}
    yard.check({"i1": row(4, dp, GPU=4, CPU=3)}, CHAIN)
    stores.apply(store.drop("cpu", blocks=objects(CHAIN, 1, 3)))
    yard.check({"i1": row(4, dp, GPU=4, CPU=1)}, CHAIN)
