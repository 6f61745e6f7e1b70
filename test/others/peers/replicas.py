"""Replicas of either contract by the same verbs, and groups of connected ones."""

import itertools
import time
from dataclasses import dataclass
from urllib.parse import quote

from ports import free_ports
from programs import Answer, Http

BLOCK_SIZE = 16
PATIENCE = 30.0  # seconds until something that has to happen counts as missing

_names = itertools.count(1)
_workers = itertools.count(1)


@dataclass(frozen=True)
class Scope:
    """The workers of one test, and a prefix for the ids of its bookings.

    All tests share a model, since 1.3.1's selection service frees bookings in
    the first of its models only; their workers keep them apart.
    """

    prefix: str
    workers: tuple[int, ...]
    ranks: int
    model: str
    block_size: int

    @classmethod
    def new(cls, workers=2, ranks=2, model="a-model", block_size=BLOCK_SIZE) -> "Scope":
        ids = tuple(itertools.islice(_workers, workers))
        return cls(f"test-{next(_names)}", ids, ranks, model, block_size)

    def booking(self, name) -> str:
        return f"{self.prefix}/{name}"


def eventually(read, want, what: str) -> None:
    """Waits until read() gives want."""
    deadline = time.monotonic() + PATIENCE
    while (got := read()) != want:
        assert time.monotonic() < deadline, f"{what}: it stays {got}, want {want}"
        time.sleep(0.01)


class Replica:
    """One service of a group. Bookings and workers go by a scope's own names; a
    load is (prefill tokens, blocks, requests) per (worker of the scope, rank)."""

    def __init__(self, system, program: Http):
        self.system, self.program = system, program

    def __repr__(self) -> str:
        return self.system.name

    def scoped(self, scope: Scope, **fields) -> dict:
        return {"model_name": scope.model, self.system.group: "default", **fields}

    def enter(self, scope: Scope) -> None:
        """Registers the scope's workers."""
        raise NotImplementedError

    def loads(self, scope: Scope) -> dict:
        raise NotImplementedError

    def shows(self, scope: Scope, want: dict) -> None:
        """Waits until the loads are the wanted ones; ranks not named have none."""

        def busy():
            return {
                (scope.workers.index(worker), rank): load
                for (worker, rank), load in self.loads(scope).items()
                if worker in scope.workers and any(load)
            }

        eventually(busy, want, f"the loads of {self}")


class Selection(Replica):
    """The selection service's contract."""

    def enter(self, scope: Scope, **record) -> None:
        for worker in scope.workers:
            body = self.scoped(
                scope,
                worker_id=worker,
                endpoint=f"http://worker-{worker}",
                block_size=scope.block_size,
                data_parallel_size=scope.ranks,
                max_num_batched_tokens=1_000_000,
            )
            answer = self.program.call("POST", "/workers", body | record)
            assert answer["lifecycle"] == "schedulable", answer
        # Dynamo's ledger hears of new workers a moment later.
        ranks = {(worker, rank) for worker in scope.workers for rank in range(scope.ranks)}
        eventually(lambda: ranks <= self.loads(scope).keys(), True, "new ranks have loads")

    def book(self, scope: Scope, name, worker: int, rank: int, hashes: list[int], tokens: int) -> Answer:
        body = self.scoped(
            scope,
            worker_id=scope.workers[worker],
            dp_rank=rank,
            sequence_hashes=hashes,
            block_hashes=hashes,
            isl_tokens=tokens,
            effective_prefill_tokens=tokens,
        )
        return self.program.send("POST", "/reservations", body | {self.system.booking: scope.booking(name)})

    def complete(self, scope: Scope, name) -> Answer:
        return self.program.send("POST", f"{self._path(scope, name)}/prefill_complete")

    def free(self, scope: Scope, name) -> Answer:
        return self.program.send("DELETE", self._path(scope, name))

    def _path(self, scope: Scope, name) -> str:
        return f"/reservations/{quote(scope.booking(name), safe='')}"

    def select(self, scope: Scope, name, tokens: list[int]) -> tuple[int, int]:
        """Books a prompt on one of the scope's ranks, which the service chooses."""
        return self._chosen(scope, "/select_and_reserve", tokens, **{self.system.booking: scope.booking(name)})

    def choose(self, scope: Scope, tokens: list[int]) -> tuple[int, int]:
        """The rank that the service would choose now; nothing is booked."""
        return self._chosen(scope, "/select", tokens)

    def _chosen(self, scope: Scope, path: str, tokens: list[int], **more) -> tuple[int, int]:
        body = self.scoped(scope, token_ids=tokens, allowed_worker_ids=scope.workers) | more
        chosen = self.program.call("POST", path, body)
        return scope.workers.index(chosen["worker_id"]), chosen["dp_rank"]

    def loads(self, scope: Scope) -> dict:
        return {
            (row["worker_id"], row["dp_rank"]): (
                row["potential_prefill_tokens"],
                row["potential_decode_blocks"],
                row["active_requests"],
            )
            for model in self.program.call("GET", f"/loads?model_name={scope.model}")
            for row in model["loads"]
        }


class Slots(Replica):
    """The slot tracker's contract."""

    def enter(self, scope: Scope) -> None:
        for worker in scope.workers:
            shape = {"block_size": scope.block_size, "dp_start": 0, "dp_size": scope.ranks}
            self.program.call("POST", "/register", self.scoped(scope, worker_id=worker, **shape))

    def book(self, scope: Scope, name, worker: int, rank: int, hashes: list[int], tokens: int) -> Answer:
        body = self._request(
            scope,
            name,
            worker_id=scope.workers[worker],
            dp_rank=rank,
            sequence_hashes=hashes,
            new_isl_tokens=tokens,
        )
        return self.program.send("POST", "/add", body)

    def complete(self, scope: Scope, name) -> Answer:
        return self.program.send("POST", "/prefill_complete", self._request(scope, name))

    def free(self, scope: Scope, name) -> Answer:
        return self.program.send("POST", "/free", self._request(scope, name))

    def _request(self, scope: Scope, name, **fields) -> dict:
        return self.scoped(scope, request_id=scope.booking(name), **fields)

    def loads(self, scope: Scope) -> dict:
        """The loads, with the requests that only a projection tells."""
        projected = self.program.call("POST", "/potential_loads", self.scoped(scope, sequence_hashes=[]))
        requests = {(row["worker_id"], row["dp_rank"]): row["active_requests"] for row in projected}
        return {
            (row["worker_id"], row["dp_rank"]): (
                row["active_prefill_tokens"],
                row["active_decode_blocks"],
                requests.get((row["worker_id"], row["dp_rank"])),
            )
            for row in self.program.call("GET", f"/loads?model_name={scope.model}")
        }


MODES = {"selection": Selection, "slots": Slots}


class Mesh:
    """Replicas that hear each other, as far as their releases understand each other."""

    def __init__(self, mode: str, *systems, **options):
        self.mode = mode
        self.ports = [free_ports(1) for _ in systems]
        self.replicas = []
        try:
            for system, own in zip(systems, self.ports, strict=True):
                others = [
                    port
                    for other, port in zip(systems, self.ports, strict=True)
                    if port != own and understand(system, other)
                ]
                self.replicas.append(MODES[mode](system, getattr(system, mode)(sync=own, peers=others, **options)))
            self.connect()
        except BaseException:
            self.close()
            raise

    def scope(self, **size) -> Scope:
        """A new scope, registered with every replica."""
        return shared_scope(*self.replicas, **size)

    def connect(self) -> None:
        connect(*self.replicas)

    def complaints(self) -> list[str]:
        return [line for replica in self.replicas for line in replica.program.complaints()]

    def close(self) -> None:
        for replica in self.replicas:
            replica.program.stop()


def shared_scope(*replicas: Replica, **size) -> Scope:
    """A new scope, registered with these replicas."""
    scope = Scope.new(**size)
    for replica in replicas:
        replica.enter(scope)
    return scope


def connect(*replicas: Replica) -> None:
    """Waits until each replica hears each other one, at the start or again.

    What is booked while a subscription is on its way is lost, so one booking is
    not enough.
    """
    for here, there in itertools.permutations(replicas, 2):
        if not understand(here.system, there.system):
            continue
        scope, probes = shared_scope(here, there, workers=1, ranks=1), 0
        deadline = time.monotonic() + PATIENCE
        while not any(there.loads(scope)[scope.workers[0], 0]):
            assert time.monotonic() < deadline, f"{there} does not hear {here}"
            here.book(scope, probes, 0, 0, [], 1)
            probes += 1
            time.sleep(0.02)
        for probe in range(probes):
            here.free(scope, probe)
        for replica in (here, there):
            replica.shows(scope, {})


def understand(one, other) -> bool:
    """Dynamo's releases before and after 1.4 drop each other's messages."""
    return "ours" in (one.name, other.name) or one.group == other.group
