"""Calls of a session that is free, being bound, bound or given up: they wait for the same, and then get the same answers."""

import itertools
import json
import socket
import threading
from contextlib import closing, suppress
from dataclasses import dataclass

import pytest
from replicas import PATIENCE, Selection, eventually, shared_scope

HERE, THERE, PROBE = range(3)  # the worker that the call is for, another one, and one that is always idle
SOON = 0.3  # seconds in which a call that waits must not be answered
LATER = 10  # later calls of the same model that are answered in that time

CALLS = ["select", "advisory", "reserve", "select_and_reserve", "replay"]
WAIT = {"select", "select_and_reserve", "replay"}  # for a session that is being bound
QUEUE = {"select", "select_and_reserve"}  # for a worker that is busy


@dataclass(frozen=True)
class State:
    """Of the session: the worker that its first request is, or waits to be, bound to, and what becomes of that."""

    name: str
    worker: int | None = None
    waits: bool = False  # the first request waits, because the worker is busy
    gone: str = ""  # it is "freed" before the call; or while the call waits it "gives up" or its worker is "removed"

    def __str__(self) -> str:
        return self.name


STATES = [
    State("free"),
    State("being bound here", HERE, waits=True),
    State("being bound elsewhere", THERE, waits=True),
    State("bound to the same", HERE),
    State("bound to another", THERE),
    State("the same, idle", HERE, gone="freed"),
    State("another, idle", THERE, gone="freed"),
    State("given up here", HERE, waits=True, gone="gives up"),
    State("given up elsewhere", THERE, waits=True, gone="gives up"),
    State("removed here", HERE, waits=True, gone="removed"),
    State("removed elsewhere", THERE, waits=True, gone="removed"),
    State("the same, removed", HERE, gone="removed"),
    State("another, removed", THERE, gone="removed"),
]

# Cells that differ, see docs/reference/compatibility.md. D10: a /select that could run waits there behind the request
# that waits for another worker.
OVERTAKES = {("select", "being bound elsewhere"), ("select", "given up elsewhere"), ("select", "removed elsewhere")}
# There the worker is looked for before the wait, here after it.
OTHER_TEXT = {("replay", "removed here")}

_names = itertools.count(1)


class Pending:
    """A call under way on a connection of its own, which can be given up."""

    def __init__(self, replica: Selection, path: str, body: dict):
        port = int(replica.program.url.rsplit(":", 1)[1])
        self._socket = socket.create_connection(("127.0.0.1", port))
        text = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self._socket.sendall(f"{head}content-length: {len(text)}\r\n\r\n".encode() + text)
        self._read = b""
        self._reader = threading.Thread(target=self._receive, daemon=True)
        self._reader.start()

    def _receive(self) -> None:
        with suppress(OSError):
            while part := self._socket.recv(1 << 16):
                self._read += part

    def waits(self) -> bool:
        self._reader.join(SOON)
        return self._reader.is_alive()

    def answer(self):
        """The status and the body."""
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive(), "it waits"
        head, _, body = self._read.partition(b"\r\n\r\n")
        self._socket.close()
        return int(head.split()[1]), json.loads(body)

    def give_up(self) -> None:
        """Sends nothing more, and waits until the service has given the call up, too: it ends the connection."""
        self._socket.shutdown(socket.SHUT_WR)
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive(), "the service does not notice"
        self._socket.close()


class Cell:
    """One call in one state, at one service."""

    def __init__(self, replica: Selection):
        self.replica = replica
        self.scope = shared_scope(replica, workers=3, ranks=1, model=f"waits-{next(_names)}")
        self.replica.enter(self.scope, max_num_batched_tokens=100)

    def body(self, **fields) -> dict:
        return self.replica.scoped(self.scope, **fields)

    def call(self, path: str, worker: int, name: str, **fields) -> Pending:
        """A call of the session for one worker, with a prompt of its own."""
        body = self.body(
            token_ids=[len(name)] * 16, allowed_worker_ids=[self.scope.workers[worker]], session_id="q", selection_id=self.scope.booking(name)
        )
        return Pending(self.replica, path, body | fields)

    def start(self, call: str) -> Pending:
        match call:
            case "select":
                return self.call("/select", HERE, "call")
            case "advisory":
                return self.call("/select", HERE, "call", advisory=True)
            case "select_and_reserve":
                return self.call("/select_and_reserve", HERE, "call")
            case "replay":
                return Pending(self.replica, "/reservations", self.body(selection_id=self.scope.booking("kept")))
        explicit = {"worker_id": self.scope.workers[HERE], "effective_prefill_tokens": 16}  # D3
        return self.call("/reservations", HERE, "call", **explicit)

    def waits(self, call: Pending) -> bool:
        """Whether the call waits. However slow the service is, it has come to the call when it has answered later ones."""
        later = self.body(token_ids=[1] * 16, allowed_worker_ids=[self.scope.workers[PROBE]], advisory=True)
        for _ in range(LATER):
            self.replica.program.call("POST", "/select", later)
        return call.waits()

    def remove(self, worker: int) -> None:
        self.replica.program.call("DELETE", f"/workers/{self.scope.workers[worker]}")

    def play(self, call: str, state: State, waits: bool):
        """What the call is answered and where the session is then. waits: it is answered because of what becomes of the
        first request, otherwise before."""
        scope, worker = self.scope, state.worker
        assert self.call("/select", HERE, "kept").answer()[0] == 200
        binder = None
        if state.waits:
            self.replica.book(scope, "burden", worker, 0, [1], 500)
            eventually(lambda: list(self.loads()), [worker], "the burden")
        if worker is not None:
            binder = self.call("/select_and_reserve", worker, "binder")
            assert self.waits(binder) if state.waits else binder.answer()[0] == 200
        if not state.waits and state.gone == "freed":
            self.replica.free(scope, "binder")
        elif not state.waits and state.gone == "removed":
            self.remove(worker)
        asked = self.start(call)
        answer = None if waits else asked.answer()
        assert not waits or self.waits(asked), "it does not wait"
        if state.waits:
            if state.gone == "gives up":
                binder.give_up()
                if waits and call in QUEUE and worker == HERE:  # next it waits for the worker
                    assert self.waits(asked), "it does not wait for the worker"
                    self.replica.free(scope, "burden")
            elif state.gone == "removed":
                self.remove(worker)
            else:
                self.replica.free(scope, "burden")
                assert binder.answer()[0] == 200
        answer = self.shape(*(answer or asked.answer()))
        where = self.shape(*self.call("/select_and_reserve", PROBE, "probe").answer())
        self.replica.free(scope, "burden")
        return answer, where

    def loads(self) -> dict:
        loads = self.replica.loads(self.scope)
        return {self.scope.workers.index(worker): load for (worker, _), load in loads.items() if any(load)}

    def shape(self, status: int, body: dict):
        """The answer by the scope's own names."""
        if "error" not in body:
            return status, self.scope.workers.index(body["worker_id"])
        text = body["error"].replace(self.scope.model, "MODEL")
        for number, worker in enumerate(self.scope.workers):
            text = text.replace(f" {worker}", f" worker-{number}")
        return status, text


@pytest.fixture(scope="module")
def both(subject, peer):
    """One of ours and a peer, with sessions and a queue."""
    if peer.group == "tenant_id" or subject.name != "ours":
        pytest.skip("1.3 knows no sessions")
    systems = [subject.speaking("1.6"), peer]
    with closing(Running([Selection(s, s.selection(sessions=600, queue=1)) for s in systems])) as running:
        yield running.replicas


@dataclass
class Running:
    replicas: list[Selection]

    def close(self) -> None:
        for replica in self.replicas:
            replica.program.stop()


@pytest.mark.parametrize("call", CALLS)
def test_every_state(both, call):
    """The states of a call are played at once, at both services."""
    cells = {(number, state): Cell(replica) for number, replica in enumerate(both) for state in STATES}
    played, faults = {}, []

    def play(number: int, state: State) -> None:
        try:
            waits = state.waits and call in WAIT and (number == 1 or (call, state.name) not in OVERTAKES)
            played[number, state] = cells[number, state].play(call, state, waits)
        except BaseException as fault:
            faults.append((call, state.name, both[number], fault))

    plays = [threading.Thread(target=play, args=cell) for cell in cells]
    for each in plays:
        each.start()
    for each in plays:
        each.join()
    assert not faults
    differ = {}
    for state in STATES:
        (ours, where), (theirs, their_where) = played[0, state], played[1, state]
        cell = (call, state.name)
        if cell in OTHER_TEXT:
            assert ours[1] != theirs[1], cell
            theirs = (theirs[0], ours[1])
        if (ours, where) != (theirs, their_where):
            differ[cell] = played[0, state], played[1, state]
    assert not differ

    def different_loads() -> dict:
        loads = {state.name: [cells[number, state].loads() for number in range(2)] for state in STATES}
        return {name: pair for name, pair in loads.items() if pair[0] != pair[1]}

    # 1.6.1 may answer that it refuses before it has taken the booking back.
    eventually(different_loads, {}, f"loads after {call}")
