"""Dynamo's mocker and its frontend as processes, with files for discovery."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fleet import MODEL, PATIENCE
from model import VOCABULARY, write_model
from ports import free_ports

BLOCK_SIZE = 16
RANKS = 2
BLOCKS = 64  # of each rank


class Dynamo:
    """The processes that share one directory, in which they find each other."""

    def __init__(self, directory: Path):
        self._discovery = directory / "discovery"
        self._discovery.mkdir()
        self._model = directory / "model"
        write_model(self._model)
        self._log = open(directory / "log", "w+")
        self._processes: list[subprocess.Popen] = []

    def start(self, module: str, *arguments: str) -> subprocess.Popen:
        # What is configured in the environment must not change the test.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "PYTHONPATH"))}
        env = inherited | {
            "DYN_FILE_KV": str(self._discovery),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
        }
        planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
        command = [sys.executable, "-m", module, *planes, *arguments]
        process = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log)
        self._processes.append(process)
        return process

    def start_mocker(self, port: int) -> tuple[subprocess.Popen, int]:
        """A process with an empty cache, and its identity in Dynamo."""
        earlier = self._instances()
        process = self.start(
            "dynamo.mocker",
            *("--model-path", str(self._model), "--model-name", MODEL),
            *("--data-parallel-size", str(RANKS), "--block-size", str(BLOCK_SIZE)),
            *("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "4096"),
            *("--zmq-kv-events-ports", str(port), "--zmq-replay-ports", str(port + RANKS)),
            *("--speedup-ratio", "0"),
        )
        deadline = time.monotonic() + PATIENCE
        while not (new := self._instances() - earlier):
            assert process.poll() is None and time.monotonic() < deadline, "the mocker did not start"
            time.sleep(0.02)
        return process, new.pop()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()

    def said(self) -> str:
        """The end of what the processes have logged."""
        self._log.flush()
        return Path(self._log.name).read_text(errors="replace")[-4000:]

    def _instances(self) -> set[int]:
        """The mockers in the directory, dead ones too."""
        found = set()
        for path in (self._discovery / "v1" / "mdc").glob("*"):
            # A file that is being written is found the next time.
            with contextlib.suppress(OSError, ValueError):
                found.add(json.loads(path.read_text())["instance_id"])
        return found


class Mocker:
    """One engine with its data-parallel ranks, through restarts."""

    ranks = RANKS
    block_size = BLOCK_SIZE
    vocabulary = VOCABULARY

    def __init__(self, dynamo: Dynamo, frontend: "Frontend"):
        self._dynamo = dynamo
        self._frontend = frontend
        self._port = free_ports(2 * RANKS)
        self._process, self.instance = dynamo.start_mocker(self._port)

    @property
    def record(self) -> dict:
        """What a worker's registration says of it."""
        live, replay = (
            {str(rank): f"tcp://127.0.0.1:{first + rank}" for rank in range(RANKS)}
            for first in (self._port, self._port + RANKS)
        )
        return {
            "block_size": BLOCK_SIZE,
            "max_num_batched_tokens": 8192,
            "total_kv_blocks": BLOCKS,
            "data_parallel_size": RANKS,
            "kv_events_endpoints": live,
            "replay_endpoints": replay,
        }

    def complete(self, rank: int, tokens: tuple[int, ...], output: int) -> int:
        """Runs a request; the tokens that the answer says were cached."""
        return self._frontend.complete(self.instance, rank, tokens, output)

    def restart(self) -> None:
        """The process dies; another one publishes on the same ports."""
        self._process.kill()
        self._process.wait()
        self._process, self.instance = self._dynamo.start_mocker(self._port)


class Frontend:
    """Dynamo's HTTP server, which sends requests where their headers say."""

    def __init__(self, dynamo: Dynamo):
        self._port = free_ports(1)
        self._process = dynamo.start(
            "dynamo.frontend",
            *("--http-host", "127.0.0.1", "--http-port", str(self._port), "--router-mode", "direct"),
        )

    def await_model(self) -> None:
        """Waits until the frontend has heard of a mocker."""
        deadline = time.monotonic() + PATIENCE
        while not self._serves():
            assert self._process.poll() is None and time.monotonic() < deadline, "the frontend did not start"
            time.sleep(0.05)

    def complete(self, instance: int, rank: int, tokens: tuple[int, ...], output: int) -> int:
        """Runs a request on a mocker's rank; the tokens that its answer says were cached.

        A frontend that has not heard of the mocker yet is asked again.
        """
        body = {"model": MODEL, "prompt": tokens, "max_tokens": output}
        headers = {
            "content-type": "application/json",
            "x-dynamo-worker-instance-id": str(instance),
            "x-dynamo-dp-rank": str(rank),
        }
        deadline = time.monotonic() + PATIENCE
        while True:
            status, text = self._call("POST", "/v1/completions", json.dumps(body), headers)
            if status == 200:
                usage = json.loads(text)["usage"]
                assert usage["completion_tokens"] == output, usage
                return usage["prompt_tokens_details"]["cached_tokens"]
            assert time.monotonic() < deadline, f"{status} {text}"
            time.sleep(0.05)

    def _serves(self) -> bool:
        try:
            status, text = self._call("GET", "/v1/models")
        except OSError:
            return False
        return status == 200 and MODEL in text

    def _call(self, method: str, path: str, body: str | None = None, headers=None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")


@contextlib.contextmanager
def running(mockers: int) -> Iterator[list[Mocker]]:
    with tempfile.TemporaryDirectory() as directory:
        dynamo = Dynamo(Path(directory))
        try:
            frontend = Frontend(dynamo)
            engines = [Mocker(dynamo, frontend) for _ in range(mockers)]
            frontend.await_model()
            yield engines
        except BaseException:
            print(dynamo.said())
            raise
        finally:
            dynamo.stop()
