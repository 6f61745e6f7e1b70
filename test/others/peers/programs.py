"""The programs under test as processes: ours and Dynamo's, by one set of names."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from ports import free_ports

# Requests go to this machine only: a proxy of the environment is not for them.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# What a service that understands its peers never logs. Dynamo tells of messages
# that it cannot read at the debug level only, warns of every new worker, and of what tests have
# left booked once that is 300 s old.
_COMPLAINT = re.compile(
    r"\b(WARN|ERROR)\b(?!.* (Adding|Removing) worker |.* Expiring stale request)|panicked|[Dd]ropping malformed|unexpected topic"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Answer:
    """An HTTP answer of any status; the body is decoded where it is JSON."""

    status: int
    body: object


class Http:
    """A service's HTTP interface."""

    def __init__(self, url: str):
        self.url = url

    def send(self, method: str, path: str, body=None) -> Answer:
        """Sends a request; body is JSON text or what becomes it."""
        if body is not None:
            body = (body if isinstance(body, str) else json.dumps(body)).encode()
        request = urllib.request.Request(
            self.url + path, method=method, data=body, headers={"content-type": "application/json"}
        )
        try:
            with _http.open(request, timeout=30) as answer:
                return Answer(answer.status, _decode(answer.read()))
        except urllib.error.HTTPError as refusal:
            with refusal:
                return Answer(refusal.code, _decode(refusal.read()))

    def call(self, method: str, path: str, body=None):
        """Sends a request that has to succeed and returns the answer's body."""
        answer = self.send(method, path, body)
        if answer.status >= 400:
            raise AssertionError(f"{method} {path} {body}: {answer.status} {answer.body}")
        return answer.body


class Program(Http):
    """A running service that answers /health."""

    def __init__(self, argv: list[str], port: int, **env: str):
        super().__init__(f"http://127.0.0.1:{port}")
        self._argv, self._env = argv, env
        self._log = tempfile.TemporaryFile("w+")
        self._process: subprocess.Popen
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again after kill."""
        # What is configured in the environment must not change the test.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "SELECT_SERVICE_"))}
        self._process = subprocess.Popen(
            self._argv, env=env | self._env, stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self.send("GET", "/health").status == 200:
                    return
            except OSError:
                time.sleep(0.02)
        self._process.kill()
        raise RuntimeError(f"{' '.join(self._argv)} does not start:\n{self.log()}")

    def kill(self) -> None:
        """Ends it without any farewell."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()

    def alive(self) -> bool:
        return self._process.poll() is None and self.send("GET", "/health").status == 200

    def log(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return _COLOUR.sub("", os.pread(self._log.fileno(), size, 0).decode(errors="replace"))

    def complaints(self) -> list[str]:
        """The lines of its log that say that something is wrong."""
        return [line for line in self.log().splitlines() if _COMPLAINT.search(line)]


def _decode(body: bytes):
    try:
        return json.loads(body or b"null")
    except ValueError:
        return body.decode(errors="replace")


class Dynamo:
    """A release of ai-dynamo-runtime, in a Python that has it."""

    def __init__(self, version: str, python: str):
        self.name, self.python = version, python
        old = tuple(map(int, version.split("."))) < (1, 4)
        self.group = "tenant_id" if old else "routing_group"
        self.booking = "reservation_id" if old else "selection_id"
        self.caps_ranks = not old  # refuses workers of absurdly many ranks

    def selection(self, *, events=False, dumps=(), sessions=0, queue=None, **sync) -> Program:
        port = free_ports(1)
        argv = ["dynamo.select_service", "--port", str(port), *_sync(**sync), *_sessions(sessions)]
        return self._run(argv, port, "--indexer-peers", dumps, DYN_USE_KV_EVENTS=str(events).lower(), **_queue(queue))

    def slots(self, **sync) -> Program:
        """The slot tracker alone."""
        port = free_ports(1)
        return self._run(["dynamo.slot_tracker", "--port", str(port), *_sync(**sync)], port)

    def indexer(self, *, dumps=()) -> Program:
        port = free_ports(1)
        return self._run(["dynamo.indexer", "--port", str(port)], port, "--peers", dumps)

    def _run(self, argv, port, recover="", dumps=(), **env) -> Program:
        recovery = [recover, ",".join(dumps)] if dumps else []
        return Program([self.python, "-m", *argv, *recovery], port, DYN_LOG="debug", **env)


class Ours:
    """The program of this repository."""

    name, group, booking, caps_ranks = "ours", "tenant_id", "reservation_id", True

    def __init__(self, binary: str, contract: str = ""):
        self._binary, self._contract = binary, ["--contract", contract] if contract else []
        if contract == "1.6":
            self.group, self.booking = "routing_group", "selection_id"

    def speaking(self, contract: str) -> "Ours":
        """The same with a contract as its own."""
        return Ours(self._binary, contract)

    def selection(self, *, events=False, dumps=(), slots_port=0, sessions=0, queue=None, **sync) -> Program:
        port = free_ports(1)
        recovery = ["--indexer-peers", ",".join(dumps)] if dumps else []
        slots = ["--slots-port", str(slots_port)] if slots_port else []
        return Program(
            [self._binary, "--listen", "127.0.0.1", "--port", str(port), *_sync(**sync), *recovery, *slots, *_sessions(sessions), *self._contract],
            port,
            DYN_USE_KV_EVENTS=str(events).lower(),
            **_queue(queue),
        )

    def slots(self, *, sync: int | None = None, peers=()) -> Program:
        """The slot tracker alone, by the flags of its own."""
        port = free_ports(1)
        argv = [self._binary, "slots", "--port", str(port)]
        if sync:
            argv += ["--replica-sync-bind", endpoint(sync), "--replica-sync-advertise", endpoint(sync)]
        if peers:
            argv += ["--replica-sync-peers", ",".join(map(endpoint, peers))]
        return Program(argv, port)


def _sync(sync: int | None = None, peers=()) -> list[str]:
    flags = ["--replica-sync-port", str(sync)] if sync else []
    return flags + (["--replica-sync-peers", ",".join(map(endpoint, peers))] if peers else [])


def _sessions(ttl: int) -> list[str]:
    return ["--session-affinity-ttl-secs", str(ttl)] if ttl else []


def _queue(threshold: float | None) -> dict[str, str]:
    """Requests wait for a rank whose prefill tokens exceed threshold times its batch; None: none waits."""
    return {} if threshold is None else {"DYN_ROUTER_QUEUE_THRESHOLD": str(threshold)}


def endpoint(port: int) -> str:
    """The ZMQ endpoint of a port of this machine."""
    return f"tcp://127.0.0.1:{port}"
