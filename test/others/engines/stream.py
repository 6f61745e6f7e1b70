"""A numbered event stream of our own: ZMQ PUB, and a ROUTER for replays."""

import struct
import threading

import zmq

from ports import free_ports

END = b"\xff" * 8  # the number of a replay's last message


class Stream:
    """Sends payloads as engines do and answers replays from all it has sent.

    Frames are (topic, number, payload). Both layouts of replay answers are
    spoken: with the topic's frame, as vLLM from 0.26 on, and without it.
    """

    def __init__(self, first=0, topic_in_replay=True):
        self._port = free_ports(2)
        self._first = first  # the number of a process's first message
        self._topic_in_replay = topic_in_replay
        self._losing = 0
        self._open()

    @property
    def events(self) -> str:
        """The endpoint to register for live events."""
        return f"tcp://127.0.0.1:{self._port}"

    @property
    def replay(self) -> str:
        """The endpoint to register for replays."""
        return f"tcp://127.0.0.1:{self._port + 1}"

    def send(self, payload: bytes) -> None:
        """Sends one message; one that is to be lost is in the replays only."""
        with self._lock:
            number = self._first + len(self._sent)
            self._sent.append((number, payload))
        if self._losing:
            self._losing -= 1
            return
        self._live.send_multipart([b"", struct.pack(">Q", number), payload])

    def lose(self, count: int) -> None:
        """Keeps the next count messages from the live subscribers."""
        self._losing = count

    def restart(self) -> None:
        """Ends the process and starts one that has sent nothing, on the same ports."""
        self.close()
        self._open()

    def close(self) -> None:
        self._stop.set()
        self._server.join()
        self._live.close(linger=0)

    def _open(self) -> None:
        self._sent: list[tuple[int, bytes]] = []
        self._lock = threading.Lock()  # guards _sent
        self._stop = threading.Event()
        self._live = _bound(zmq.PUB, self.events)
        self._server = threading.Thread(target=self._serve, args=(_bound(zmq.ROUTER, self.replay),))
        self._server.start()

    def _serve(self, router: zmq.Socket) -> None:
        """Answers replays. The socket belongs to this thread alone from now on."""
        while not self._stop.is_set():
            if not router.poll(10):
                continue
            client, *request = router.recv_multipart()
            if len(request) != 2 or len(request[1]) != 8:
                continue  # engines leave such a request without an answer, too
            (start,) = struct.unpack(">Q", request[1])
            with self._lock:
                messages = [m for m in self._sent if m[0] >= start]
            topic = [b""] if self._topic_in_replay else []
            for number, payload in messages:
                router.send_multipart([client, b"", *topic, struct.pack(">Q", number), payload])
            router.send_multipart([client, b"", *topic, END, b""])
        router.close(linger=0)


def _bound(kind: int, endpoint: str) -> zmq.Socket:
    socket = zmq.Context.instance().socket(kind)
    for _ in range(200):  # libzmq closes a predecessor's sockets in the background
        try:
            socket.bind(endpoint)
            return socket
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            socket.poll(25)
    raise TimeoutError(f"{endpoint} stays in use")
