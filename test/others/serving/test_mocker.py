"""What the service says of a prompt is what Dynamo's mocker then finds in its cache."""

import random

import fleet
import mockers
import service


def test_predicted_is_cached(pytestconfig):
    dice = random.Random(pytestconfig.getoption("--seed"))
    command = [pytestconfig.getoption("--service"), "--listen", "127.0.0.1"]
    with mockers.running(2) as engines, service.running(command, "tenant_id") as router:
        fleet.play(router, engines, dice, pytestconfig.getoption("--requests"))
