"""Options and fixtures: the releases to test, and one service for all tests."""

from pathlib import Path

import pytest

import publishers
import service as services
from bed import Bed
from conductor import Conductor, Yard


def pytest_addoption(parser):
    parser.addoption("--wheel", action="append", default=[], help="a vLLM or SGLang wheel (repeatable)")
    parser.addoption("--service", default="bin/select-service", help="the program to start")
    parser.addoption("--url", help="test a service that runs already")
    parser.addoption("--record", action="store_true", help="write the recorded payloads anew")


def pytest_configure(config):
    config.publishers = [publishers.load(Path(wheel)) for wheel in config.getoption("--wheel")]


def pytest_generate_tests(metafunc):
    """Runs tests of engines with every release that can say what the test is about."""
    if "publisher" not in metafunc.fixturenames:
        return
    releases = metafunc.config.publishers
    for mark in metafunc.definition.iter_markers("engine"):
        releases = [r for r in releases if r.engine == mark.args[0]]
    for mark in metafunc.definition.iter_markers("needs"):
        releases = [r for r in releases if r.has_field(*mark.args)]
    metafunc.parametrize("publisher", releases, ids=str, scope="session")


@pytest.fixture(scope="session")
def service(pytestconfig):
    if url := pytestconfig.getoption("--url"):
        yield services.Service(url)
        return
    with services.running(pytestconfig.getoption("--service")) as started:
        yield started


@pytest.fixture
def bed(service, publisher):
    bed = Bed(service, publisher)
    yield bed
    bed.close()


@pytest.fixture
def yard(service):
    yard = Yard(Conductor(service.conductor_url))
    yield yard
    yard.close()
