"""Real Ray actors: KV events steer, the two flows book, and loads return to nothing."""

import random

import pytest

from actors import BLOCK, Engine, Ingress
from service import eventually

WORKERS = [2**63 + 5, 2**64 - 1]


@pytest.fixture(scope="module")
def engines(cluster, service):
    """Two engines, registered under ids that no float can hold."""
    actors = {worker: Engine.remote(f"engine-{worker}") for worker in WORKERS}
    registrar = Ingress.remote(service.url, "1.3")
    for worker, actor in actors.items():
        events, replay = cluster.get(actor.endpoints.remote())
        record = cluster.get(
            registrar.ask.remote(
                "put_worker",
                worker_id=worker,
                endpoint=f"http://engine-{worker}",
                block_size=BLOCK,
                kv_events_endpoints={0: events},
                replay_endpoint=replay,
            )
        )
        assert (record["worker_id"], record["lifecycle"]) == (worker, "schedulable")
    return actors


@pytest.mark.parametrize("dialect", ["1.3", "1.6"])
def test_documented_flow(cluster, service, engines, dialect):
    """/select finds the engine that announced the prompt, and each step shows in /loads."""
    rnd = random.Random(dialect)
    hot, cold = WORKERS if dialect == "1.3" else reversed(WORKERS)
    prompt = [rnd.randrange(2**32) for _ in range(8 * BLOCK + 3)]
    cluster.get(engines[hot].cache.remote(prompt))
    eventually(lambda: service.cached(prompt).get(hot) == 8)

    ingress = Ingress.remote(service.url, dialect)
    chosen, served_by, loaded, decoding = cluster.get(ingress.two_steps.remote(engines, prompt, f"request-{dialect}"))
    assert (chosen["worker_id"], chosen["endpoint"], served_by) == (hot, f"http://engine-{hot}", f"engine-{hot}")
    assert chosen["overlap"]["longest_matched"] == 8 * BLOCK
    assert chosen["effective_prefill_tokens"] == 3

    def of(answer, worker):
        (row,) = [row for row in answer[0]["loads"] if row["worker_id"] == worker]
        return row["potential_prefill_tokens"], row["potential_decode_blocks"], row["active_requests"]

    assert (of(loaded, hot), of(loaded, cold)) == ((3, 8, 1), (0, 0, 0))
    assert of(decoding, hot) == (0, 8, 1)
    assert service.is_idle()


@pytest.mark.parametrize("dialect", ["1.3", "1.6"])
def test_atomic_flow(cluster, service, engines, dialect):
    """Ingresses that book at once see each other's bookings: never two more on one than on the other."""
    ingresses = [Ingress.remote(service.url, dialect) for _ in range(4)]
    rnd = random.Random(dialect)

    def prompts():
        return [[rnd.randrange(2**32) for _ in range(4 * BLOCK)] for _ in range(25)]

    bookings = [ingress.book.remote(prompts()) for ingress in ingresses]
    pending = bookings
    while pending:
        counts = [load[2] for load in service.loads().values()]
        assert max(counts) - min(counts) <= 1, counts
        _, pending = cluster.wait(pending, num_returns=len(pending), timeout=0)
    booked = cluster.get(bookings)
    assert {load[2] for load in service.loads().values()} == {50}
    # Each ends at another ingress than it began: any client knows any booking.
    cluster.get(
        [
            ingress.finish.remote([booking for booking, _ in of_another])
            for ingress, of_another in zip(ingresses, booked[1:] + booked[:1], strict=True)
        ]
    )
    assert service.is_idle()


def test_killed_actor(cluster, service, engines):
    """An ingress that dies with a lease leaves nothing behind."""
    ingress = Ingress.remote(service.url, "1.6")
    cluster.get(ingress.hold.remote([7] * 64))
    assert not service.is_idle()
    cluster.kill(ingress)
    eventually(service.is_idle)


def test_errors_reach_the_driver(cluster, service, engines):
    """An exception of the client crosses the actor's border whole."""
    from select_service_client import NotFound

    with pytest.raises(NotFound) as error:
        cluster.get(Ingress.remote(service.url, "1.6").ask.remote("free", "nobody's"))
    assert error.value.cause.error == "reservation nobody's not found"
