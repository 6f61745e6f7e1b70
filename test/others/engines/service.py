"""The service under test as a process, and its HTTP interface."""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

from ports import free_ports

# Requests go to this machine only: a proxy of the environment is not for them.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Service:
    """A running select-service."""

    def __init__(self, url: str, conductor_port: int | None = None):
        self.url = url
        host = url.rsplit(":", 1)[0]
        # Without a port of its own the Conductor API is under a prefix.
        self.conductor_url = f"{host}:{conductor_port}" if conductor_port else f"{url}/conductor"

    def call(self, method: str, path: str, body=None):
        """Sends a request and returns the decoded answer; a status >= 400 raises."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with _http.open(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def overlap(self, model: str, tokens, **prompt) -> dict:
        """Per (worker, rank): the blocks of a prompt on the device, with the
        host's, and with the disk's behind them."""
        body = {"model_name": model, "token_ids": list(tokens), **prompt}
        rows = self.call("POST", "/overlap_scores", body)["workers"]
        return {
            (row["worker_id"], row["dp_rank"]): (
                row["device_blocks"],
                row["host_pinned_blocks"],
                row["disk_blocks"],
            )
            for row in rows
        }


@contextlib.contextmanager
def running(binary: str):
    """Starts the program on free ports and stops it at the end."""
    # What is configured in the environment must not change the test.
    env = {k: v for k, v in os.environ.items() if not k.startswith("DYN_")}
    conductor_port = free_ports(1)
    command = [binary, "--listen", "127.0.0.1", "--port", "0", "--conductor-port", str(conductor_port)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            yield Service(f"http://{_address(process, log)}", conductor_port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, "the service did not stop cleanly:\n" + _text(log)
        finally:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen, log) -> str:
    """The selection service's address: the first one that the program listens on."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := re.search(r'"address":"([^"]+)"', _text(log)):
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError("the service did not start:\n" + _text(log))


def _text(log) -> str:
    log.flush()
    return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
