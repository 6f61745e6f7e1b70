"""An engine's own publisher on ports of its own."""

import atexit
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import zmq
from history import Prompt
from ports import free_ports

_idle: list[int] = []  # ports of outlets that are closed, each with its successor

PATIENCE = 60.0  # seconds until something that has to happen counts as missing


@dataclass(frozen=True)
class Marker:
    """A block that no request has, to be found when all before it is applied."""

    prompt: Prompt
    stored: list[Any]  # the events that bring it, and ...
    removed: list[Any]  # ... that take it away


class Outlet:
    """The KV event publisher of one data-parallel rank, through restarts."""

    def __init__(self, module: ModuleType, rank: int, ring: int):
        self._module = module
        self._rank = rank
        self._ring = ring  # messages that replays can bring
        self._port = _idle.pop() if _idle else free_ports(2)
        self._open()

    @property
    def events(self) -> str:
        """The endpoint to register for live events."""
        return f"tcp://127.0.0.1:{self._port}"

    @property
    def replay(self) -> str:
        """The endpoint to register for replays."""
        return f"tcp://127.0.0.1:{self._port + 1}"

    def publish(self, events: list[Any]) -> None:
        """Sends one message; returns when it is out and in the replays' ring."""
        self._publisher.publish(self._module.KVEventBatch(ts=time.time(), events=events))
        deadline = time.monotonic() + PATIENCE
        while self._publisher._event_queue.unfinished_tasks:
            assert time.monotonic() < deadline, "the publisher does not send"
            time.sleep(0.0002)

    def restart(self) -> None:
        """Another process publishes on the same ports and counts from 0."""
        self._end()
        self._open()

    def close(self) -> None:
        self._end()
        _idle.append(self._port)

    def _end(self) -> None:
        self._publisher.shutdown()
        atexit.unregister(self._publisher.shutdown)

    def _open(self) -> None:
        # The publisher adds its rank to both ports.
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._publisher = self._module.ZmqEventPublisher(
                    self._rank,
                    endpoint=f"tcp://*:{self._port - self._rank}",
                    replay_endpoint=f"tcp://127.0.0.1:{self._port + 1 - self._rank}",
                    buffer_steps=self._ring,
                )
                return
            except zmq.ZMQError as error:
                # libzmq closes a predecessor's sockets in the background.
                if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
