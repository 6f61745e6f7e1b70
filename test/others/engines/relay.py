"""A network between an engine and the service that loses messages on order."""

import queue
import threading

import zmq

from ports import free_ports


class Relay:
    """Passes an engine's live messages on from a port of its own.

    The replay endpoint is not behind it: what is lost live can be had there.
    """

    def __init__(self, upstream: str):
        port = free_ports(1)
        self.events = f"tcp://127.0.0.1:{port}"  # to be registered in the engine's place
        self._orders: queue.Queue = queue.Queue()
        self._lost = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(upstream, f"tcp://127.0.0.1:{port}"))
        self._thread.start()

    def lose(self, count: int) -> None:
        """Drops the next count messages; those after them pass."""
        self._order("lose", count)

    def hang_up(self) -> None:
        """Breaks the connection to the service; messages are lost until pick_up."""
        self._order("hang up")

    def pick_up(self) -> None:
        self._order("pick up")

    def wait_lost(self, count: int) -> None:
        """Waits until count more messages have been lost."""
        for _ in range(count):
            assert self._lost.acquire(timeout=30), "the engine's messages did not reach the relay"

    def close(self) -> None:
        self._order("stop")
        self._thread.join()

    def _order(self, *words) -> None:
        done = threading.Event()
        self._orders.put((*words, done))
        assert done.wait(30), f"the relay did not {words[0]}"

    def _run(self, upstream: str, downstream: str) -> None:
        # Sockets belong to this thread alone; orders come through the queue.
        context = zmq.Context.instance()
        engine = context.socket(zmq.SUB)
        engine.subscribe(b"")
        engine.connect(upstream)
        service = _publisher(context, downstream)
        losing = 0
        while True:
            if engine.poll(10):
                message = engine.recv_multipart()
                if losing or service is None:
                    losing = max(0, losing - 1)
                    self._lost.release()
                else:
                    service.send_multipart(message)
            try:
                order, *count, done = self._orders.get_nowait()
            except queue.Empty:
                continue
            if order == "lose":
                losing = count[0]
            elif order == "pick up":
                service = _publisher(context, downstream)
            elif service is not None:  # hang up, stop
                service.close(linger=0)
                service = None
            done.set()
            if order == "stop":
                engine.close(linger=0)
                return


def _publisher(context: zmq.Context, endpoint: str) -> zmq.Socket:
    socket = context.socket(zmq.PUB)
    for _ in range(200):  # the predecessor closes in the background
        try:
            socket.bind(endpoint)
            return socket
        except zmq.ZMQError:
            socket.poll(25)
    raise TimeoutError(f"{endpoint} stays in use")
