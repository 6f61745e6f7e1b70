"""What an engine's events do to the overlap of a prompt, on every release."""

import pytest

from engine import BLOCK_SIZE, Chain

TOKENS = tuple(range(1000, 1000 + 8 * BLOCK_SIZE + 1))
CHAIN = Chain(TOKENS)
RENAMED = Chain(TOKENS, process="second")  # the same prompt in another process
OTHER = Chain(TOKENS[:BLOCK_SIZE] + tuple(range(5000, 5000 + 7 * BLOCK_SIZE)))


def test_stored_blocks_count_up_to_where_the_prompt_differs(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 4))
    assert worker.overlap(CHAIN) == (4, 4, 4)
    assert worker.overlap(OTHER) == (1, 1, 1)


def test_a_later_store_continues_an_earlier_one(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 2))
    worker.apply(worker.engine.stored(CHAIN, 2, 5))
    assert worker.overlap(CHAIN) == (5, 5, 5)


def test_one_batch_holds_several_events(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(
        engine.stored(CHAIN, 0, 3),
        engine.removed(CHAIN, 2, 3),
        engine.stored(CHAIN, 0, 1, medium=engine.host),
        engine.stored(CHAIN, 2, 4),
    )
    assert worker.overlap(CHAIN) == (4, 4, 4)


def test_removed_tail(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 4))
    worker.apply(worker.engine.removed(CHAIN, 2, 4))
    assert worker.overlap(CHAIN) == (2, 2, 2)


def test_a_hole_hides_the_blocks_behind_it_until_it_is_filled(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 6))
    worker.apply(worker.engine.removed(CHAIN, 1, 3))
    assert worker.overlap(CHAIN) == (1, 1, 1)
    worker.apply(worker.engine.stored(CHAIN, 1, 3))
    assert worker.overlap(CHAIN) == (6, 6, 6)


def test_a_block_announced_twice_is_gone_after_two_removals(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 4), worker.engine.stored(CHAIN, 0, 4))
    worker.apply(worker.engine.removed(CHAIN, 0, 4))
    assert worker.overlap(CHAIN) == (4, 4, 4)
    worker.apply(worker.engine.removed(CHAIN, 0, 4))
    assert worker.overlap(CHAIN) == (0, 0, 0)


def test_a_worker_with_a_set_announces_a_block_again(bed):
    worker = bed.worker()
    bed.service.call("PATCH", f"/workers/{worker.id}", {"kv_event_copies": "set"})
    worker.apply(worker.engine.stored(CHAIN, 0, 4), worker.engine.stored(CHAIN, 0, 4))
    worker.apply(worker.engine.removed(CHAIN, 0, 4))
    assert worker.overlap(CHAIN) == (0, 0, 0)


def test_host_blocks_continue_the_device_chain(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 2))
    worker.apply(engine.stored(CHAIN, 2, 5, medium=engine.host))
    assert worker.overlap(CHAIN) == (2, 5, 5)
    worker.apply(engine.removed(CHAIN, 3, 5, medium=engine.host))
    assert worker.overlap(CHAIN) == (2, 3, 3)


def test_a_block_leaves_one_tier_and_stays_in_another(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 4))
    worker.apply(engine.stored(CHAIN, 0, 4, medium=engine.host))
    assert worker.overlap(CHAIN) == (4, 4, 4)
    worker.apply(engine.removed(CHAIN, 1, 4))
    assert worker.overlap(CHAIN) == (1, 4, 4)


def test_disk_blocks_continue_the_host_chain(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 1))
    worker.apply(engine.stored(CHAIN, 1, 3, medium=engine.host))
    worker.apply(engine.stored(CHAIN, 3, 6, medium="DISK"))
    assert worker.overlap(CHAIN) == (1, 3, 6)


def test_blocks_with_an_unknown_parent_join_when_it_comes(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 2))
    worker.apply(worker.engine.stored(CHAIN, 4, 6))
    assert worker.overlap(CHAIN) == (2, 2, 2)
    worker.apply(worker.engine.stored(CHAIN, 2, 4))
    assert worker.overlap(CHAIN) == (6, 6, 6)


def test_parent_zero_is_the_root(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 1, parent_block_hash=0))
    worker.apply(worker.engine.stored(CHAIN, 1, 2))
    assert worker.overlap(CHAIN) == (2, 2, 2)


def test_clear_takes_every_tier(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 2))
    worker.apply(engine.stored(CHAIN, 0, 5, medium=engine.host))
    worker.apply(engine.cleared())
    assert worker.overlap(CHAIN) == (0, 0, 0)
    worker.apply(engine.stored(CHAIN, 0, 3))
    assert worker.overlap(CHAIN) == (3, 3, 3)


def test_new_names_for_known_tokens(bed):
    """An engine names the same tokens anew, and takes them back by those names."""
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 4))
    worker.apply(engine.cleared())
    worker.apply(engine.stored(RENAMED, 0, 4))
    assert worker.overlap(CHAIN) == (4, 4, 4)
    worker.apply(engine.removed(RENAMED, 2, 4))
    assert worker.overlap(CHAIN) == (2, 2, 2)
    worker.apply(engine.stored(RENAMED, 2, 3))
    assert worker.overlap(CHAIN) == (3, 3, 3)


def test_workers_name_the_same_tokens_differently(bed):
    first, second = bed.worker(), bed.worker()
    first.apply(first.engine.stored(CHAIN, 0, 4))
    second.apply(second.engine.stored(RENAMED, 0, 3))
    second.apply(second.engine.stored(RENAMED, 3, 6))
    assert (first.overlap(CHAIN), second.overlap(CHAIN)) == ((4, 4, 4), (6, 6, 6))
    second.apply(second.engine.removed(RENAMED, 1, 6))
    assert (first.overlap(CHAIN), second.overlap(CHAIN)) == ((4, 4, 4), (1, 1, 1))


@pytest.mark.needs("BlockStored", "lora_name")
def test_an_adapter_has_blocks_of_its_own(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 2))
    worker.apply(worker.engine.adapted(RENAMED, 0, 5, "an-adapter"))
    assert worker.overlap(CHAIN) == (2, 2, 2)
    assert worker.overlap(CHAIN, lora_name="an-adapter") == (5, 5, 5)
    assert worker.overlap(CHAIN, lora_name="another") == (0, 0, 0)


def test_a_salt_has_blocks_of_its_own(bed):
    worker = bed.worker()
    worker.apply(worker.engine.stored(CHAIN, 0, 2))
    worker.apply(worker.engine.salted(RENAMED, 0, 3, "a-salt"))
    worker.apply(worker.engine.salted(RENAMED, 3, 5, "a-salt"))
    assert worker.overlap(CHAIN) == (2, 2, 2)
    assert worker.overlap(CHAIN, cache_salt="a-salt") == (5, 5, 5)
    assert worker.overlap(CHAIN, cache_salt="another") == (0, 0, 0)


def test_a_deleted_worker_leaves_nothing(bed):
    worker, other = bed.worker(), bed.worker()
    for each in (worker, other):
        each.apply(each.engine.stored(CHAIN, 0, 4))
    bed.delete(worker)
    assert worker.overlap(CHAIN) is None
    assert other.overlap(CHAIN) == (4, 4, 4)
