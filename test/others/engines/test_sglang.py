"""What only SGLang says."""

import pytest

from engine import BLOCK_SIZE, Chain

pytestmark = pytest.mark.engine("sglang")

# A page of pairs reaches one token into the next page.
CHAIN = Chain(tuple(range(1000, 1000 + 8 * BLOCK_SIZE + 1)))


def _eagle_worker(bed):
    engine = bed.engine()
    engine.pairs = True
    worker = bed.register(engine, is_eagle=True)
    worker.join()
    return worker


def test_pairs_of_tokens(bed):
    worker = _eagle_worker(bed)
    engine = worker.engine
    worker.apply(engine.stored(CHAIN, 0, 5))
    assert worker.overlap(CHAIN) == (5, 5, 5)
    worker.apply(engine.removed(CHAIN, 3, 5))
    assert worker.overlap(CHAIN) == (3, 3, 3)


def test_pairs_of_tokens_in_a_replay(bed):
    engine = bed.engine()
    engine.pairs = True
    engine.publish(engine.stored(CHAIN, 0, 8))
    bed.register(engine, is_eagle=True).shows((8, 8, 8), CHAIN)


def test_pairs_do_not_enter_a_pool_of_single_tokens(bed):
    worker = bed.worker()
    engine = worker.engine
    engine.pairs = True
    engine.publish(engine.stored(CHAIN, 0, 4))
    engine.pairs = False
    worker.apply()
    assert worker.overlap(CHAIN) == (0, 0, 0)


def test_media_are_members_of_an_enumeration(bed):
    worker = bed.worker()
    engine = worker.engine
    medium = engine.publisher.module.StorageMedium
    worker.apply(engine.stored(CHAIN, 0, 1, medium=medium.GPU))
    worker.apply(engine.stored(CHAIN, 1, 2, medium=medium.CPU))
    worker.apply(engine.stored(CHAIN, 2, 3, medium=medium.DISK))
    worker.apply(engine.stored(CHAIN, 3, 4, medium=medium.EXTERNAL))
    assert worker.overlap(CHAIN) == (1, 2, 4)
