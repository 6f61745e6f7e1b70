"""vLLM on the CPU, with random weights."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fleet import MODEL, PATIENCE
from model import VOCABULARY, write_model
from ports import free_ports

BLOCKS = 64
START = 400.0  # seconds that a start may take: it is minutes beside other work


class VLLM:
    """One engine and its OpenAI server, through restarts."""

    ranks = 1
    block_size = 32  # the smallest on the CPU
    vocabulary = VOCABULARY

    def __init__(self, python: str, model: Path, log: Path):
        self._python = python
        self._model = model
        self._log = log
        self._port = free_ports(3)
        self._lock = threading.Lock()  # guards _asked
        self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def record(self) -> dict:
        """What a worker's registration says of it."""
        return {
            "block_size": self.block_size,
            "max_num_batched_tokens": 8192,
            "total_kv_blocks": BLOCKS,
            "kv_events_endpoints": {"0": f"tcp://127.0.0.1:{self._port + 1}"},
            "replay_endpoint": f"tcp://127.0.0.1:{self._port + 2}",
        }

    def complete(self, rank: int, tokens: tuple[int, ...], output: int) -> int:
        """Runs a request; how many tokens the engine's counter of hits has grown by.

        That is this request's hit unless others run.
        """
        assert rank == 0
        with self._lock:
            self._asked += len(tokens)
            asked = self._asked
        before = self._counter("prefix_cache_hits")
        body = {"model": MODEL, "prompt": tokens, "max_tokens": output, "ignore_eos": True}
        status, text = self._call("POST", "/v1/completions", json.dumps(body))
        assert status == 200, f"{status} {text}"
        # Its counters are written behind the answer.
        deadline = time.monotonic() + PATIENCE
        while self._counter("prefix_cache_queries") < asked:
            assert time.monotonic() < deadline, "the engine does not count the request"
            time.sleep(0.005)
        return self._counter("prefix_cache_hits") - before

    def restart(self) -> None:
        """The process dies; another one publishes on the same ports."""
        self.stop()
        self._start()
        self.await_start()

    def await_start(self) -> None:
        deadline = time.monotonic() + START
        while True:
            with contextlib.suppress(OSError):
                if self._call("GET", "/health")[0] == 200:
                    return
            assert self._process.poll() is None and time.monotonic() < deadline, "vLLM did not start"
            time.sleep(0.2)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the server and its engine
        self._process.wait()

    def _start(self) -> None:
        self._asked = 0  # tokens of all prompts
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self._port + 1}",
            "replay_endpoint": f"tcp://127.0.0.1:{self._port + 2}",
        }
        command = [self._python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", MODEL, "--load-format", "dummy"]
        command += ["--host", "127.0.0.1", "--port", str(self._port), "--dtype", "float32"]
        command += ["--block-size", str(self.block_size), "--num-gpu-blocks-override", str(BLOCKS)]
        command += ["--max-model-len", "1024", "--enforce-eager", "--kv-events-config", json.dumps(events)]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHONPATH"))}
        env = inherited | {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, more than the blocks need
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def _counter(self, name: str) -> int:
        _, text = self._call("GET", "/metrics")
        lines = [line for line in text.splitlines() if line.startswith(f"vllm:{name}_total")]
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))

    def _call(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")


@contextlib.contextmanager
def running(python: str, count: int) -> Iterator[list[VLLM]]:
    with tempfile.TemporaryDirectory() as directory:
        model, log = Path(directory) / "model", Path(directory) / "log"
        write_model(model)
        engines = [VLLM(python, model, log) for _ in range(count)]
        try:
            for engine in engines:
                engine.await_start()
            yield engines
        except BaseException:
            print(log.read_text(errors="replace")[-4000:])
            raise
        finally:
            for engine in engines:
                engine.stop()
