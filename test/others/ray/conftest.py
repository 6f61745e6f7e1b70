"""One Ray cluster for all tests, and services of their own for each module."""

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


def pytest_addoption(parser):
    parser.addoption("--service", default="bin/select-service", help="the program to test")


@pytest.fixture(scope="session")
def cluster():
    ray = pytest.importorskip("ray")
    # Workers inherit it and import actors.py by name.
    os.environ["PYTHONPATH"] = HERE
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        configure_logging=False,
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def service(pytestconfig):
    from service import Service

    running = Service(os.path.abspath(pytestconfig.getoption("--service")))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def second(pytestconfig):
    """Another service, which knows nothing of the first one."""
    from service import Service

    running = Service(os.path.abspath(pytestconfig.getoption("--service")))
    yield running
    running.stop()


sys.path.insert(0, HERE)
