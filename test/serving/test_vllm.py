"""What the service says of a prompt is what two vLLM engines then find in their caches."""

import random

import fleet
import service
import vllm_engine


def test_predicted_is_cached(pytestconfig):
    dice = random.Random(pytestconfig.getoption("--seed"))
    command = [pytestconfig.getoption("--service"), "--listen", "127.0.0.1"]
    python = pytestconfig.getoption("--vllm")
    with vllm_engine.running(python, 2) as engines, service.running(command, "tenant_id") as router:
        fleet.play(router, engines, dice, pytestconfig.getoption("--requests"))
