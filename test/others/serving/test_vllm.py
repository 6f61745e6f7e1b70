"""What the service says of two vLLM engines is what they say and find."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import fleet
import pytest
import service
import vllm_engine
from ports import free_ports


@pytest.fixture(scope="module")
def engines(pytestconfig):
    with vllm_engine.running(pytestconfig.getoption("--vllm"), 2) as engines:
        yield engines


@pytest.fixture
def router(pytestconfig):
    with service.running([pytestconfig.getoption("--service"), "--listen", "127.0.0.1"], "tenant_id") as router:
        yield router


def test_load_is_reported(engines, router):
    """An engine is registered by its URL alone, and its load is what it has, more than it has room for."""
    engine = engines[0]
    record = {"worker_id": 1, "endpoint": engine.url, "describe": True, "load_metrics": {"interval_seconds": 0.25}}
    registered = router.call("POST", "/workers", record)
    assert registered["lifecycle"] == "schedulable", registered
    assert (registered["model_name"], registered["block_size"]) == (fleet.MODEL, engine.block_size)
    assert registered["kv_events_endpoint"] == engine.record["kv_events_endpoints"]["0"]
    total = engine.record["total_kv_blocks"] * engine.block_size

    def awaited(requests, waiting, blocks):
        """Waits until the engine has so many requests, which nobody has booked, and at least so many wait."""
        deadline = time.monotonic() + fleet.PATIENCE
        while True:
            load = router.call("GET", "/loads")[0]["loads"][0]
            if reported := load.get("reported"):
                assert reported["source"] == "scrape" and reported["kv_tokens_total"] == total
                if (
                    reported["running"] + reported["waiting"] == load["foreign"]["requests"] == requests
                    and reported["waiting"] >= waiting
                    and load["foreign"]["blocks"] >= blocks
                ):
                    return
            assert time.monotonic() < deadline, json.dumps(load)
            time.sleep(0.05)

    awaited(0, 0, 0)
    dice, count = random.Random(5), 8
    prompts = [tuple(dice.randrange(3, engine.vocabulary) for _ in range(300)) for _ in range(count)]
    seen = threading.Event()

    def keep_asking(prompt):
        """One request after another, so that the engine is busy however late the service looks."""
        while not seen.is_set():
            engine.complete(0, prompt, 300)

    requests = [threading.Thread(target=keep_asking, args=(prompt,)) for prompt in prompts]
    for request in requests:
        request.start()
    try:
        awaited(count, 1, engine.record["total_kv_blocks"] // 2)
    finally:
        seen.set()
        for request in requests:
            request.join()
    awaited(0, 0, 0)


def test_predicted_is_cached(engines, router, pytestconfig):
    dice = random.Random(pytestconfig.getoption("--seed"))
    fleet.play(router, engines, dice, pytestconfig.getoption("--requests"))


def test_tutorial(engines, pytestconfig):
    """The commands of docs/start/tutorials/vllm.md, but for the addresses, are played on real engines."""
    text = Path("docs/start/tutorials/vllm.md").read_text()
    port, proxy = free_ports(1), free_ports(1)
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)).replace("MODEL", fleet.MODEL)
    for old, new in {
        "http://gpu-1:8000": engines[0].url,
        "http://gpu-2:8000": engines[1].url,
        "--proxy-port 8080": f"--listen 127.0.0.1 --port {port} --proxy-port {proxy}",
        "localhost:8080": f"127.0.0.1:{proxy}",
        "localhost:8092": f"127.0.0.1:{port}",
        "bin/selectctl": f"bin/selectctl --url http://127.0.0.1:{port}",
        "bin/select-service": pytestconfig.getoption("--service"),
        "service.log": "/dev/null",
    }.items():
        assert old in script, old
        script = script.replace(old, new)
    shell = subprocess.Popen(["bash", "-euc", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = shell.communicate(timeout=fleet.PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # the service, too
    assert shell.returncode == 0, output
    assert '"choices":[{' in output and "0 findings" in output, output
    assert len(re.findall(rf"^\S+ +{fleet.MODEL} ", output, re.M)) == 1, output
