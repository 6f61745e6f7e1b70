"""Ray Serve LLM's own KVTokenTracker, unmodified, on select-service."""

import os
import random
import subprocess
import sys

import pytest

from actors import BLOCK, Engine, Tracker
from service import Service, eventually

# Replicas whose worker ids, as Ray derives them, are above 2**63.
REPLICAS = ["a1", "a2"]


@pytest.fixture(scope="module", params=["shared", "one each"])
def services(request, service, second):
    """The services of two ingress replicas: the same one, or one for each."""
    return [service, service if request.param == "shared" else second]


@pytest.fixture(scope="module")
def processes(cluster, service):
    """Two processes of Ray that know of select-service by the environment alone."""
    env = {"SELECT_SERVICE_DYNAMO_URL": service.url}
    return [Tracker.options(runtime_env={"env_vars": env}).remote() for _ in range(2)]


@pytest.fixture
def trackers(cluster, services, processes):
    """Two ingress replicas that broadcast to each other."""
    for rank, service in enumerate(services):
        cluster.get(processes[rank].begin.remote(rank, service.url, processes))
    return processes


def settle(cluster, trackers):
    """Until each ingress has booked what the others told it."""
    cluster.get([tracker.told.remote() for tracker in trackers])
    cluster.get([tracker.applied.remote() for tracker in trackers])


@pytest.fixture(scope="module")
def engines(cluster):
    actors = {name: Engine.remote(name) for name in REPLICAS}
    return actors, {name: cluster.get(actor.endpoints.remote()) for name, actor in actors.items()}


def test_life(cluster, services, trackers, engines):
    """Arrival, selection, the second ingress' reservation, prefill, output blocks, completion,
    cancellation, and the loss of a worker."""
    actors, endpoints = engines
    first, other = trackers
    assert cluster.get(first.made_by.remote()) == "select_service_client.dynamo._service"

    # Replicas arrive.
    cluster.get([tracker.replicas.remote(endpoints) for tracker in trackers])
    ids = {name: cluster.get(first.worker_id.remote(name)) for name in REPLICAS}
    assert min(ids.values()) > 2**63
    for service in services:
        assert set(service.loads()) == set(ids.values())

    # A prompt that one of them has.
    rnd = random.Random(os.getpid())
    prompt = [rnd.randrange(2**32) for _ in range(6 * BLOCK)]
    hot = ids["a2"]
    cluster.get(actors["a2"].cache.remote(prompt))
    for service in services:
        eventually(lambda service=service: service.cached(prompt).get(hot) == 6)
    asked = prompt + [1, 2, 3]
    chosen = cluster.get(first.select.remote("r1", asked, list(ids.values()), 100))
    assert chosen == {
        "worker_id": hot,
        "dp_rank": 0,
        "overlap_tokens": 6 * BLOCK,
        "effective_prefill_tokens": 3,
    }

    # The other ingress books it as well, or finds it booked.
    settle(cluster, trackers)
    for tracker in trackers:
        eventually(lambda tracker=tracker: cluster.get(tracker.requests.remote()) == ["r1"])
    for service in services:
        assert service.loads()[hot] == (3, 6, 1)

    # First token and output blocks are told to all ingresses, and count once.
    told = [tracker.events.remote([("on_prefill_complete", ("r1",))]) for tracker in trackers]
    assert cluster.get(told) == [[], []]
    for service in services:
        assert service.loads()[hot] == (0, 6, 1)
    told = [tracker.events.remote([("on_decode_progress", ("r1", 2 * BLOCK))]) for tracker in trackers]
    assert cluster.get(told) == [[], []]
    for service in services:
        # Two blocks more, and all of them weigh what is left of the 100 tokens.
        eventually(lambda service=service: service.loads()[hot] == (0, round(8 * 0.68), 1))

    # Completion right behind the last blocks, which are not awaited.
    last = [("on_decode_progress", ("r1", 6 * BLOCK)), ("on_request_completed", ("r1",))]
    assert cluster.get([tracker.events.remote(last) for tracker in trackers]) == [[], []]
    for service in services:
        eventually(service.is_idle)

    # A request that is cancelled before its first token.
    cluster.get(other.select.remote("r2", asked, [ids["a1"]]))
    settle(cluster, trackers)
    told = [tracker.events.remote([("on_request_completed", ("r2",))]) for tracker in trackers]
    assert cluster.get(told) == [[], []]
    for service in services:
        eventually(service.is_idle)

    # A worker is lost, with what runs on it.
    cluster.get(first.select.remote("r3", asked, [hot]))
    settle(cluster, trackers)
    left = {"a1": endpoints["a1"]}
    cluster.get([tracker.replicas.remote(left) for tracker in trackers])
    for service in services:
        assert set(service.loads()) == {ids["a1"]}
        assert service.is_idle()
    assert cluster.get(first.select.remote("r4", asked, [ids["a1"]]))["worker_id"] == ids["a1"]
    settle(cluster, trackers)
    told = [tracker.events.remote([("on_request_completed", ("r4",))]) for tracker in trackers]
    assert cluster.get(told) == [[], []]
    for service in services:
        eventually(service.is_idle)
    cluster.get([tracker.replicas.remote({}) for tracker in trackers])
    assert [service.get("/workers") for service in services] == [[], []]


def test_restarted_service(cluster, pytestconfig, processes, engines):
    """Ray tells of a replica once. A service that lost it gets it again with the next request."""
    _, endpoints = engines
    service = Service(os.path.abspath(pytestconfig.getoption("--service")))
    try:
        tracker = processes[0]
        cluster.get(tracker.begin.remote(0, service.url, []))
        cluster.get(tracker.replicas.remote(endpoints))
        ids = [cluster.get(tracker.worker_id.remote(name)) for name in REPLICAS]
        cluster.get(tracker.select.remote("before", [1] * 40, ids))
        service.kill()
        service.start()
        assert cluster.get(tracker.select.remote("after", [1] * 40, ids))["worker_id"] in ids
        assert set(service.loads()) == set(ids)
        ends = [("on_request_completed", (name,)) for name in ("before", "after")]
        assert cluster.get(tracker.events.remote(ends)) == []
        eventually(service.is_idle)
    finally:
        service.stop()


def test_hook(cluster, service):
    """The other way: Ray's hook for the start of its workers, for a whole job."""
    code = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False, runtime_env={
    "worker_process_setup_hook": "select_service_client.dynamo.install",
    "env_vars": {"SELECT_SERVICE_DYNAMO_URL": sys.argv[2]}})
@ray.remote(num_cpus=0)
def name():
    from dynamo.llm import SelectionService
    from dynamo.llm.exceptions import SelectionServiceError
    return SelectionService().ready()["ready"] in (True, False)
assert ray.get(name.remote())
"""
    address = cluster.get_runtime_context().gcs_address
    subprocess.run([sys.executable, "-c", code, address, service.url], check=True, timeout=60)
