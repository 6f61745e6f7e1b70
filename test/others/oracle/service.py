"""The service under test: ours, or one of Dynamo's with the same HTTP interface."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any

from history import Prompt
from ports import free_ports


class Refused(Exception):
    """An answer with an error status."""


class Router:
    """A running service, asked over one connection."""

    immediate = False  # what it hears is applied later

    def __init__(self, command: list[str], log: IO[str], group: str = "tenant_id"):
        self._command = command
        self._log = log
        self._group = group  # the contract's name of a tenant
        self._port = free_ports(1)
        self._start()

    def restart(self) -> None:
        """Another process, which knows nothing."""
        self.stop()
        self._start()

    def stop(self) -> None:
        self._http.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        text = None if body is None else json.dumps(body)
        self._http.request(method, path, text, {"content-type": "application/json"})
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise Refused(f"{method} {path}: {answer.status} {content.decode(errors='replace')}")
        return json.loads(content or b"null")

    def register(self, worker: int, model: str, record: dict[str, Any]) -> None:
        identity = {"worker_id": worker, "model_name": model, "endpoint": f"http://worker-{worker}"}
        self.call("POST", "/workers", identity | record)

    def delete(self, worker: int) -> None:
        self.call("DELETE", f"/workers/{worker}")

    def started(self, rank: int, block: Any) -> None:
        """Nothing: the service finds it out."""

    def hear(self, rank: int, event: Any) -> None:
        """Nothing: the service hears the engine's publisher."""

    def tokens(self, worker: int, model: str, prompt: Prompt, block_size: int) -> dict[int, int]:
        """What /overlap_scores says that the worker's ranks have of a prompt on the device."""
        answer = self.call("POST", "/overlap_scores", self._body(model, prompt, block_size))
        return {
            row["dp_rank"]: row["device_blocks"] * block_size
            for row in answer["workers"]
            if row["worker_id"] == worker
        }

    def beyond(self, worker: int, model: str, prompt: Prompt, block_size: int) -> dict[int, tuple[int, int]]:
        """What it says that they have behind that on the host, and behind this on disk."""
        answer = self.call("POST", "/overlap_scores", self._body(model, prompt, block_size))
        return {
            row["dp_rank"]: (
                (row["host_pinned_blocks"] - row["device_blocks"]) * block_size,
                (row["disk_blocks"] - row["host_pinned_blocks"]) * block_size,
            )
            for row in answer["workers"]
            if row["worker_id"] == worker
        }

    def select(self, model: str, prompt: Prompt, block_size: int) -> tuple[int, int]:
        """The rank that /select chooses, and the tokens that it is said to have."""
        answer = self.call("POST", "/select", self._body(model, prompt, block_size))
        rank = answer["dp_rank"]
        return rank, answer["overlap"]["dp"].get(str(rank), 0)

    def _body(self, model: str, prompt: Prompt, block_size: int) -> dict[str, Any]:
        """A prompt as requests have it."""
        body: dict[str, Any] = {"model_name": model, self._group: "default", "token_ids": prompt.tokens}
        if prompt.lora:
            body["lora_name"] = prompt.lora
        if prompt.salt:
            body["cache_salt"] = prompt.salt
        if prompt.images:
            body["block_mm_infos"] = _block_mm_infos(prompt, block_size)
        return body

    def _start(self) -> None:
        # What is configured in the environment must not change the test.
        env = {k: v for k, v in os.environ.items() if not k.startswith("DYN_")}
        command = [*self._command, "--port", str(self._port)]
        self._process = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log)
        self._http = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.call("GET", "/health")
                return
            except (OSError, http.client.HTTPException):
                self._http.close()
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the service did not start") from None
                time.sleep(0.02)


def _block_mm_infos(prompt: Prompt, block_size: int) -> list[dict[str, Any] | None]:
    """Per block the images in it, each with its first and last token there."""
    infos: list[dict[str, Any] | None] = []
    for start in range(0, len(prompt) - len(prompt) % block_size, block_size):
        objects = [
            {
                "mm_hash": image.content,
                "offsets": [
                    [
                        max(image.offset - start, 0),
                        min(image.offset + image.length - start, block_size),
                    ]
                ],
            }
            for image in prompt.images
            if image.offset < start + block_size and image.offset + image.length > start
        ]
        infos.append({"mm_objects": objects} if objects else None)
    return infos


@contextlib.contextmanager
def running(command: list[str], group: str) -> Iterator[Router]:
    with tempfile.TemporaryFile("w+") as log:
        router = Router(command, log, group)
        try:
            yield router
        except BaseException:
            log.flush()
            text = os.pread(log.fileno(), 1 << 16, 0).decode(errors="replace")
            print(re.sub(r"\x1b\[[0-9;]*m", "", text)[-4000:])
            raise
        finally:
            router.stop()
