"""Random crashes, cancellations, lost requests and lost answers: leases leave nothing behind."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys

import pytest

from conftest import QUICK
from select_service_client import AsyncClient, SelectServiceError
from server import Server, eventually, relay

LEASE = 1.0  # seconds

# A client that books, by all ways that there are, until it is killed.
CRASHING = f"""
import random, sys, threading, time
from contextlib import suppress
from select_service_client import Client, SelectServiceError
client = Client(sys.argv[1])
rnd = random.Random(int(sys.argv[2]))
def life():
    while True:
        # A lease may be over when the machine is busy.
        with suppress(SelectServiceError), client.lease(
            token_ids=[1] * rnd.randint(1, 40), lease_seconds={LEASE}
        ) as lease:
            print(flush=True)
            time.sleep(rnd.random() * 0.05)
            rnd.random() < 0.5 and lease.prefill_complete()
            rnd.random() < 0.5 and lease.post_output_block()
            rnd.random() < 0.5 and lease.output_block(decay_fraction=rnd.random())
            rnd.random() < 0.2 and lease.renew()
for _ in range(3):
    threading.Thread(target=life, daemon=True).start()
threading.Event().wait()
"""


async def one_life(client: AsyncClient, rnd: random.Random) -> None:
    """A request as a careless caller makes it: some never free what they book."""
    tokens = [1] * rnd.randint(1, 40)
    try:
        if rnd.random() < 0.6:
            async with client.lease(token_ids=tokens, lease_seconds=LEASE) as lease:
                for _ in range(rnd.randint(0, 4)):
                    step = rnd.choice([lease.prefill_complete, lease.output_block, lease.renew, None])
                    if step is None:
                        lease.post_output_block(decay_fraction=rnd.random())
                    else:
                        await step()
                if rnd.random() < 0.2:
                    raise ZeroDivisionError
        else:
            booked = await client.select_and_reserve(token_ids=tokens, lease_seconds=LEASE)
            if rnd.random() < 0.5:
                await client.free(client.booking_id(booked))
    except (SelectServiceError, ZeroDivisionError):
        pass


async def all_ended(tasks: list[asyncio.Task[None]]) -> None:
    done, pending = await asyncio.wait(tasks, timeout=120)
    assert not pending
    assert [task.exception() for task in done if not task.cancelled() and task.exception()] == []


@pytest.mark.parametrize("seed", range(3))
def test_no_history_leaks(server: Server, seed: int) -> None:
    server.add_workers(1, 2, 2**64 - 1)
    rnd = random.Random(seed)

    def fate(method: str, path: str) -> str:
        return rnd.choices(["pass", "refuse", "lose"], [0.8, 0.1, 0.1])[0]

    async def lives(url: str) -> None:
        async with AsyncClient(url, retry=QUICK) as client:
            tasks: list[asyncio.Task[None]] = []
            for _ in range(100):
                tasks.append(asyncio.create_task(one_life(client, rnd)))
                await asyncio.sleep(rnd.random() * 0.01)
                if rnd.random() < 0.4:
                    rnd.choice(tasks).cancel()
            await all_ended(tasks)

    with relay(server, fate) as url:
        crashing = [
            subprocess.Popen([sys.executable, "-c", CRASHING, server.url, str(seed)], stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for process in crashing:
            assert process.stdout is not None
            process.stdout.readline()
        asyncio.run(lives(url))
        for process in crashing:
            process.kill()
            process.communicate()
    assert {worker["worker_id"] for worker in server.send("GET", "/workers").json()} == {1, 2, 2**64 - 1}
    eventually(server.is_idle, seconds=LEASE + 60)


def test_killed_servers() -> None:
    """The same with a server that is killed again and again; the last one is clean."""
    server = Server()
    rnd = random.Random(5)

    async def lives() -> None:
        async with AsyncClient(server.url, retry=QUICK) as client:
            tasks: list[asyncio.Task[None]] = []
            for turn in range(5):
                server.add_workers(1, 2)
                for _ in range(30):
                    tasks.append(asyncio.create_task(one_life(client, rnd)))
                    await asyncio.sleep(rnd.random() * 0.01)
                if turn < 4:
                    server.restart()
            await all_ended(tasks)

    try:
        asyncio.run(lives())
        eventually(server.is_idle, seconds=LEASE + 60)
    finally:
        server.stop()
