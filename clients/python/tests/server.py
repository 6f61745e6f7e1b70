"""The real server as a process, and a relay in front of it that loses answers."""

from __future__ import annotations

import http.server
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

BINARY = os.environ.get("SELECT_SERVICE_BIN") or str(Path(__file__).parents[3] / "bin" / "select-service")
BLOCK = 4  # tokens

# No proxies, and no certificates, which take long to load.
PLAIN: Any = {"trust_env": False, "verify": False}


_claims: list[socket.socket] = []


def free_port() -> int:
    """A port that no other test of this machine takes as long as this process runs."""
    for port in random.sample(range(20_000, 32_000), 1000):  # below those of outgoing connections
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0select-service-test-port-{port}")  # the kernel takes it back
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise OSError("no free port")


class Server:
    """One process; restarted it has the same port and nothing else of before."""

    def __init__(self, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._flags = flags
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by stop
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        argv = [
            BINARY,
            "--listen",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--use-kv-events=false",
            *self._flags,
        ]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "SELECT_SERVICE_"))}
        self._process = subprocess.Popen(argv, env=env, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + 60
        with httpx.Client(**PLAIN) as probe:
            while time.monotonic() < deadline and self._process.poll() is None:
                try:
                    probe.get(self.url + "/health")
                except httpx.TransportError:
                    time.sleep(0.01)
                else:
                    return
        self._log.seek(0)
        raise RuntimeError(f"{argv} does not start: {self._log.read()}")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._log.close()

    def send(self, method: str, path: str, body: object = None) -> httpx.Response:
        """A call that does not go through the client."""
        with httpx.Client(**PLAIN, base_url=self.url, timeout=60) as plain:
            return plain.request(method, path, json=body)

    def add_workers(self, *ids: int, **settings: object) -> None:
        for id_ in ids:
            record = {"worker_id": id_, "endpoint": f"http://engine-{id_}", "block_size": BLOCK, **settings}
            assert self.send("POST", "/workers", record).status_code == 201

    def requests(self) -> int:
        """How many bookings there are."""
        rows = [row for scope in self.send("GET", "/loads").json() for row in scope["loads"]]
        return sum(row["active_requests"] for row in rows)

    def is_idle(self) -> bool:
        rows = [row for scope in self.send("GET", "/loads").json() for row in scope["loads"]]
        return all(
            row["active_requests"] == row["potential_prefill_tokens"] == row["potential_decode_blocks"] == 0
            for row in rows
        )


def eventually(holds: Callable[[], object], seconds: float = 60) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.02)


# What becomes of a request: "pass", "refuse" (closed before it reaches the
# server), "lose" (it takes effect, and the answer does not come back), and the same
# two without the connection being closed: "hang" and "mute".
Fate = Callable[[str, str], str]


@contextmanager
def relay(server: Server, fate: Fate) -> Iterator[str]:
    """A proxy of the server; gives its URL."""
    upstream = httpx.Client(**PLAIN, base_url=server.url, timeout=60)
    ending = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            verdict = fate(self.command, self.path)
            self.close_connection = verdict != "pass"
            if verdict == "hang":
                ending.wait()
            if verdict in ("refuse", "hang"):
                return
            wanted = {"content-type": "application/json", "accept": "*/*"}
            kind = {name: self.headers.get(name, value) for name, value in wanted.items()}
            try:
                answer = upstream.request(self.command, self.path, content=body, headers=kind)
            except httpx.TransportError:
                self.close_connection = True
                return
            if verdict == "mute":
                ending.wait()
            if verdict == "pass":
                self.send_response_only(answer.status_code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

    class Relay(http.server.ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that go away in the middle are what is tested."""

    proxy = Relay(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
    finally:
        ending.set()
        proxy.shutdown()
        thread.join()
        proxy.server_close()
        upstream.close()
