"""bin/select-service as a process."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Service:
    """The program under test on a port of its own."""

    def __init__(self, binary):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._binary = binary
        self._log = tempfile.TemporaryFile("w+")
        self.start()

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "SELECT_SERVICE_"))}
        argv = [self._binary, "--listen", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen(argv, env=env, stdout=self._log, stderr=self._log)
        eventually(self._up)

    def _up(self):
        try:
            return self.get("/health")
        except OSError:
            assert self._process.poll() is None, "the service does not start"
            return None

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._log.close()

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with _http.open(request, timeout=30) as answer:
            return json.loads(answer.read())

    def loads(self):
        """(worker, prefill tokens, blocks, requests) of every rank."""
        return {
            row["worker_id"]: (row["potential_prefill_tokens"], row["potential_decode_blocks"], row["active_requests"])
            for scope in self.get("/loads")
            for row in scope["loads"]
        }

    def is_idle(self):
        return all(load == (0, 0, 0) for load in self.loads().values())

    def cached(self, tokens):
        """Blocks of a prompt on each worker's device."""
        try:
            rows = self.get("/overlap_scores", {"token_ids": tokens})["workers"]
        except urllib.error.HTTPError:
            return {}
        return {row["worker_id"]: row["device_blocks"] for row in rows}


def eventually(holds, seconds=60):
    """Waits until something holds, and returns it."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.01)
    return value
