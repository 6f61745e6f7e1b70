"""A new replica fills its index from the dump of another make."""

import contextlib
import copy

import pytest

from caches import FOUND, LONG, Engines, SelectionIndex, StandaloneIndex

# Each service but the first recovers from the one before it.
ROUTES = {
    "peer to ours": ("peer", "ours"),
    "peer's indexer to ours": ("peer indexer", "ours"),
    "ours to peer": ("ours", "peer"),
    "ours to peer's indexer": ("ours", "peer indexer"),
    "ours to ours": ("ours", "ours"),
    "peer to ours to peer": ("peer", "ours", "peer"),
    "ours to peer to ours": ("ours", "peer", "ours"),
}


@pytest.fixture(params=ROUTES)
def route(request, subject, peer):
    stops = {
        "ours": (SelectionIndex, subject),
        "peer": (SelectionIndex, peer),
        "peer indexer": (StandaloneIndex, peer),
    }
    return [stops[stop] for stop in ROUTES[request.param]]


def test_a_dump_fills_a_new_index(route):
    with contextlib.ExitStack() as stack:
        engines = Engines()
        stack.callback(engines.close)

        def start(index, system, *dumps):
            started = index(system, *dumps)
            stack.callback(started.program.stop)
            return started

        services = [start(*route[0])]
        services[0].register(engines)
        engines.heard()
        engines.fill()
        services[0].shows(FOUND)
        for index, system in route[1:]:
            services.append(start(index, system, services[-1].program.url))
            services[-1].register(engines)
            services[-1].shows(FOUND)
            engines.heard()
        assert [line for service in services for line in service.program.complaints()] == []
        _continues(engines, *services)


def _continues(engines: Engines, *services: SelectionIndex) -> None:
    """The recovered blocks are those of the engines' events: they are continued
    and removed by their names."""
    found = copy.deepcopy(FOUND)
    for service in services:
        service.shows(found)
    engines.ranks[1, 0].store(LONG, 8, 10)
    found["m"]["long"][1, 0] = (10, 10, 10)
    for service in services:
        service.shows(found)
    engines.ranks[1, 0].remove(LONG, 3, 10)
    found["m"]["long"][1, 0] = found["m"]["beginning"][1, 0] = (3, 3, 3)
    for service in services:
        service.shows(found)
