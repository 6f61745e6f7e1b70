"""Options and fixtures: the releases to test with, and groups of replicas."""

import pytest

from programs import Dynamo, Ours
from replicas import MODES, Mesh


def pytest_addoption(parser):
    parser.addoption("--peer", action="append", default=[], help="RELEASE=PYTHON that has it (repeatable)")
    parser.addoption("--seed", default="", help="of the random calls in the dialects")
    parser.addoption("--service", default="bin/select-service", help="the program to test, or a release")


def pytest_configure(config):
    config.peers = {
        version: Dynamo(version, python)
        for version, python in (peer.split("=", 1) for peer in config.getoption("--peer"))
    }
    service = config.getoption("--service")
    config.subject = config.peers.get(service) or Ours(service)


def pytest_generate_tests(metafunc):
    if "release" in metafunc.fixturenames:
        metafunc.parametrize("release", metafunc.config.peers, scope="session")
    if "mode" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        metafunc.parametrize("mode", only.args if only else MODES, scope="session")
    if "entrance" in metafunc.fixturenames:
        ours = isinstance(metafunc.config.subject, Ours)
        metafunc.parametrize("entrance", ["program", "port", "prefix"] if ours else ["program"], scope="module")


def pytest_collection_modifyitems(config, items):
    if not isinstance(config.subject, Ours):
        for item in items:
            if item.get_closest_marker("ours"):
                item.add_marker(pytest.mark.skip(reason="not about Dynamo"))


@pytest.fixture(scope="session")
def subject(pytestconfig):
    """The system under test."""
    return pytestconfig.subject


@pytest.fixture(scope="session")
def peer(pytestconfig, release):
    """One release of Dynamo."""
    return pytestconfig.peers[release]


def _mesh(mode, *systems):
    mesh = Mesh(mode, *systems)
    try:
        yield mesh
        assert mesh.complaints() == []
    finally:
        mesh.close()


@pytest.fixture(scope="session")
def mesh(mode, subject, peer):
    """The system under test, twice, and a peer."""
    if not isinstance(subject, Ours) and subject.group != peer.group:
        pytest.skip("these releases do not understand each other")
    yield from _mesh(mode, subject, subject, peer)


@pytest.fixture(scope="session")
def mixed(mode, subject, pytestconfig):
    """Two of ours in one mesh with every release, which ours alone understand."""
    yield from _mesh(mode, subject, subject, *pytestconfig.peers.values())
