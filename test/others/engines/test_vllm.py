"""What only vLLM says."""

import pytest

from engine import BLOCK_SIZE, Chain

pytestmark = pytest.mark.engine("vllm")

CHAIN = Chain(tuple(range(1000, 1000 + 8 * BLOCK_SIZE)))
OTHER = Chain(CHAIN.tokens, process="second")


def test_names_may_be_bytes(bed):
    worker = bed.worker()
    engine = worker.engine
    engine.byte_names = True
    worker.apply(engine.stored(CHAIN, 0, 2))
    worker.apply(engine.stored(CHAIN, 2, 5))
    assert worker.overlap(CHAIN) == (5, 5, 5)
    worker.apply(engine.removed(CHAIN, 4, 5))
    assert worker.overlap(CHAIN) == (4, 4, 4)
    engine.byte_names = False  # the number is the end of the bytes
    worker.apply(engine.removed(CHAIN, 3, 4))
    assert worker.overlap(CHAIN) == (3, 3, 3)


def test_a_warm_engine_with_bytes_for_names(bed):
    engine = bed.engine()
    engine.byte_names = True
    engine.publish(engine.stored(CHAIN, 0, 4))
    bed.register(engine).shows((4, 4, 4), CHAIN)


def test_offloaded_blocks_come_without_tokens(bed):
    """The offloading connector repeats names that the device's blocks had."""
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 4))
    worker.apply(engine.offloaded(CHAIN, 0, 3))
    assert worker.overlap(CHAIN) == (4, 4, 4)
    worker.apply(engine.removed(CHAIN, 1, 4))
    assert worker.overlap(CHAIN) == (1, 3, 3)
    worker.apply(engine.removed(CHAIN, 2, 3, medium=engine.host))
    assert worker.overlap(CHAIN) == (1, 2, 2)


def test_offloaded_blocks_that_have_just_left_the_device(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 4))
    worker.apply(engine.removed(CHAIN, 2, 4))
    worker.apply(engine.offloaded(CHAIN, 2, 4))
    assert worker.overlap(CHAIN) == (2, 4, 4)


def test_offloaded_blocks_on_storage(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 4))
    worker.apply(engine.offloaded(CHAIN, 0, 4, medium="STORAGE"))
    worker.apply(engine.removed(CHAIN, 1, 4))
    assert worker.overlap(CHAIN) == (1, 1, 4)


def test_offloaded_blocks_with_unknown_names_count_nowhere(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 2))
    worker.apply(engine.offloaded(OTHER, 2, 4))
    assert worker.overlap(CHAIN) == (2, 2, 2)


def test_a_clear_forgets_the_names(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 4))
    worker.apply(engine.cleared())
    worker.apply(engine.offloaded(CHAIN, 0, 4))
    assert worker.overlap(CHAIN) == (0, 0, 0)


@pytest.mark.parametrize("medium", ["CPU", "cpu"])
def test_connectors_that_give_parent_and_block_size_but_no_tokens(bed, medium):
    """The Mooncake store and the simple CPU offload, one block an event."""
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 4))
    for i in range(4):
        parent = engine.parent(CHAIN, i)
        worker.apply(
            engine.offloaded(CHAIN, i, i + 1, block_size=BLOCK_SIZE, parent_block_hash=parent, medium=medium)
        )
    worker.apply(engine.removed(CHAIN, 0, 4))
    assert worker.overlap(CHAIN) == (0, 4, 4)


@pytest.mark.needs("BlockStored", "kv_cache_spec_kind")
def test_a_prompt_hits_what_all_groups_have(bed):
    """A hybrid model's sliding-window group announces and drops the same blocks.

    A window of 32 tokens needs the last two blocks before the end of the prefix.
    """
    worker = bed.worker()
    engine = worker.engine
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 32}
    worker.groups.append(window)
    worker.apply(engine.stored(CHAIN, 0, 2), engine.stored(CHAIN, 0, 6, **window))
    assert worker.overlap(CHAIN) == (2, 2, 2)
    worker.apply(engine.removed(CHAIN, 0, 2, group_idx=1))
    assert worker.overlap(CHAIN) == (0, 0, 0)
    worker.apply(engine.stored(CHAIN, 2, 6))
    assert worker.overlap(CHAIN) == (6, 6, 6)
    worker.apply(engine.removed(CHAIN, 5, 6, group_idx=0))
    assert worker.overlap(CHAIN) == (5, 5, 5)
    worker.apply(engine.removed(CHAIN, 4, 5, group_idx=0))
    assert worker.overlap(CHAIN) == (4, 4, 4)
    worker.apply(engine.removed(CHAIN, 3, 4, group_idx=0))
    assert worker.overlap(CHAIN) == (0, 0, 0)


def test_a_partial_block_counts_nowhere(bed):
    worker = bed.worker()
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 2))
    half = list(CHAIN.block(2)[: BLOCK_SIZE // 2])
    worker.apply(engine.stored(CHAIN, 2, 3, token_ids=half, block_size=len(half)))
    assert worker.overlap(CHAIN) == (2, 2, 2)
    worker.apply(engine.stored(CHAIN, 2, 3))
    assert worker.overlap(CHAIN) == (3, 3, 3)
