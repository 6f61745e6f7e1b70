"""A test's own pool on the service, with the engines that feed it."""

import itertools
import time

from engine import BLOCK_SIZE, DIALECTS, Chain, Engine
from publishers import Publisher
from relay import Relay
from service import Service

PATIENCE = 30.0  # seconds until something that has to happen counts as missing

_worker_ids = itertools.count(1)
_models = itertools.count(1)
_markers = itertools.count()


class Worker:
    """A registered worker and the engine ranks behind it."""

    def __init__(self, service: Service, model: str, identity: int, engines: list[Engine]):
        self._service = service
        self.model = model
        self.id = identity
        self.engines = engines
        # The engine's attention groups, by the fields of their events: a prompt hits
        # what all of them have.
        self.groups = [{}]

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    def overlap(self, chain: Chain, rank=0, **prompt):
        """Blocks of the prompt on the device, with the host's, with the disk's."""
        return self._service.overlap(self.model, chain.tokens, **prompt).get((self.id, rank))

    def shows(self, want, chain: Chain, rank=0, **prompt) -> None:
        """Waits until the overlap is the wanted one."""
        deadline = time.monotonic() + PATIENCE
        while (got := self.overlap(chain, rank, **prompt)) != want:
            assert time.monotonic() < deadline, f"the overlap stays {got}, want {want}"
            time.sleep(0.02)

    def apply(self, *groups, rank=0) -> None:
        """Publishes one batch of a rank and waits until the service has applied it.

        A stream is applied in order, so a marker in a later message tells.
        """
        if groups:
            self.engines[rank].publish(*groups)
        marker = self._publish_marker(rank)
        deadline = time.monotonic() + PATIENCE
        while not self._counts(marker, rank):
            assert time.monotonic() < deadline, "the service does not apply what the engine publishes"
            time.sleep(0.005)

    def join(self) -> None:
        """Waits until live messages of every rank arrive.

        What is published while a subscription is on its way is lost, so one
        marker is not enough.
        """
        deadline = time.monotonic() + PATIENCE
        for rank in range(len(self.engines)):
            markers = []
            while not any(self._counts(marker, rank) for marker in markers):
                assert time.monotonic() < deadline, "no live message arrives"
                markers.append(self._publish_marker(rank))
                time.sleep(0.05)

    def _publish_marker(self, rank: int) -> Chain:
        """Stores a block that no test asks for."""
        marker = Chain((next(_markers),) * (BLOCK_SIZE + 1), process="marker")
        engine = self.engines[rank]
        engine.publish(*(engine.stored(marker, 0, 1, **group) for group in self.groups))
        return marker

    def _counts(self, marker: Chain, rank: int) -> bool:
        return self.overlap(marker, rank) not in (None, (0, 0, 0))


class Bed:
    """Starts engines of one release, registers them, and clears up at the end."""

    def __init__(self, service: Service, publisher: Publisher):
        self.service = service
        self.publisher = publisher
        self.model = f"{publisher}-{next(_models)}"
        self._workers: list[Worker] = []
        self._open: list[Engine | Relay] = []

    def engine(self, **settings) -> Engine:
        return self._track(DIALECTS[self.publisher.engine](self.publisher, **settings))

    def ranks(self, count: int) -> list[Engine]:
        """The data-parallel ranks of one engine."""
        first = self.engine()
        return [first, *(self._track(first.sibling(rank)) for rank in range(1, count))]

    def relay(self, engine: Engine) -> Relay:
        return self._track(Relay(engine.events))

    def register(self, *engines: Engine, **record) -> Worker:
        """Registers a worker with one engine rank or several; record goes before."""
        identity = next(_worker_ids)
        replays = {str(engine.rank): engine.replay for engine in engines}
        self.service.call(
            "POST",
            "/workers",
            {
                "worker_id": identity,
                "model_name": self.model,
                "endpoint": f"http://worker-{identity}",
                "block_size": BLOCK_SIZE,
                "max_num_batched_tokens": 8192,
                "data_parallel_size": len(engines),
                "kv_events_endpoints": {str(engine.rank): engine.events for engine in engines},
            }
            | ({"replay_endpoint": engines[0].replay} if len(engines) == 1 else {"replay_endpoints": replays})
            | record,
        )
        worker = Worker(self.service, self.model, identity, list(engines))
        self._workers.append(worker)
        return worker

    def worker(self, **settings) -> Worker:
        """A worker with a new engine whose live messages arrive."""
        worker = self.register(self.engine(**settings))
        worker.join()
        return worker

    def delete(self, worker: Worker) -> None:
        self.service.call("DELETE", f"/workers/{worker.id}")
        self._workers.remove(worker)

    def close(self) -> None:
        for worker in list(self._workers):
            self.delete(worker)
        for part in reversed(self._open):
            part.close()

    def _track(self, part):
        self._open.append(part)
        return part
