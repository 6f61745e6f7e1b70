"""A simulator of llm-d, which dials in, through random histories."""

import itertools
import random
import time

import pytest

from bed import PATIENCE
from engine import BLOCK_SIZE
from ports import free_ports
from simulator import Simulator

CAPACITY = 32  # blocks
_workers = itertools.count(1 << 20)


@pytest.fixture(params=["arrays", "maps"])
def layout(request):
    return request.param


@pytest.mark.parametrize("eviction", ["tail first", "any order"])
def test_a_random_history(service, layout, eviction):
    """Never more blocks than there are, and not fewer where the events say where they are."""
    identity, port = next(_workers), free_ports(1)
    model = f"simulated-{identity}"
    service.call(
        "POST",
        "/workers",
        {
            "worker_id": identity,
            "model_name": model,
            "endpoint": "http://a-simulator",
            "block_size": BLOCK_SIZE,
            "max_num_batched_tokens": 8192,
            "kv_events_endpoints": {"0": f"tcp://*:{port}"},
        },
    )
    dice = random.Random(f"{layout} {eviction}")
    engine = Simulator(
        f"tcp://127.0.0.1:{port}", model, CAPACITY, layout == "maps", eviction == "tail first", seed=1
    )
    try:
        over, under = _differences(service, model, identity, engine, dice)
    finally:
        engine.close()
        service.call("DELETE", f"/workers/{identity}")
    assert over == []
    assert eviction == "any order" or under == []


def _differences(service, model: str, identity: int, engine: Simulator, dice: random.Random):
    """Plays a history; the prompts of which more, and less, is said than is there."""
    stems = [_tokens(dice, 4 * BLOCK_SIZE) for _ in range(4)]
    prompts = []
    running = []
    over, under = [], []
    for step in range(450):
        if len(running) == 3 or (running and dice.random() < 0.4):
            engine.finish(running.pop(dice.randrange(len(running))))
        if prompts and dice.random() < 0.4:
            prompts.append(dice.choice(prompts[-10:]))
        else:
            stem = dice.choice(stems)
            prompts.append(
                stem[: dice.randrange(len(stem) + 1)] + _tokens(dice, dice.randrange(5 * BLOCK_SIZE))
            )
        if blocks := engine.start(prompts[-1]):
            running.append(blocks)
        if dice.random() < 0.04:
            for blocks in running:
                engine.finish(blocks)
            running = []
            if dice.random() < 0.5:
                engine.clear()
            else:
                # Two numbers below the last one tell a new process from duplicates.
                for _ in range(3):
                    _settle(service, model, identity, engine, dice)
                engine.restart()
                _mark(engine, dice)
        if step % 3 == 0:
            _settle(service, model, identity, engine, dice)
            for prompt in dice.sample(prompts[-30:], min(len(prompts), 5)):
                said = _overlap(service, model, identity, prompt)
                found = engine.hit(prompt)
                if said != found:
                    (over if said > found else under).append((step, said, found))
    return over, under


def _settle(service, model: str, identity: int, engine: Simulator, dice: random.Random) -> None:
    """Waits until all is applied."""
    marker = _mark(engine, dice)
    deadline = time.monotonic() + PATIENCE
    while _overlap(service, model, identity, marker) != 1:
        assert time.monotonic() < deadline, "the service does not apply what is published"
        time.sleep(0.005)


def _mark(engine: Simulator, dice: random.Random) -> tuple[int, ...]:
    """Sends what there is, with a block at its end that no other request has."""
    marker = _tokens(dice, BLOCK_SIZE)
    engine.finish(engine.start(marker))
    engine.flush()
    return marker


def _overlap(service, model: str, identity: int, tokens) -> int:
    return service.overlap(model, tokens)[identity, 0][0]


def _tokens(dice: random.Random, count: int) -> tuple[int, ...]:
    return tuple(dice.randrange(1 << 16) for _ in range(count))
