"""What is tried again and what never is, behind a relay that loses requests and answers."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from conftest import MakeClient
from select_service_client import (
    Backoff,
    BadRequest,
    Client,
    Conflict,
    ConnectionFailed,
    NotFound,
    Overloaded,
    Retry,
)
from server import Server, eventually, relay


class Losing:
    """Loses the first few requests of a kind."""

    def __init__(self, verdict: str, method: str, path: str, times: int = 1) -> None:
        self._verdict, self._method, self._path, self._left = verdict, method, path, times
        self.seen: list[str] = []

    def __call__(self, method: str, path: str) -> str:
        self.seen.append(f"{method} {path.removeprefix('/v1.6')}")
        if method == self._method and path.endswith(self._path) and self._left > 0:
            self._left -= 1
            return self._verdict
        return "pass"


@pytest.mark.parametrize("verdict", ["refuse", "lose"])
@pytest.mark.parametrize("times", [1, 3])
def test_booking_is_repeated(make: MakeClient, fleet: Server, verdict: str, times: int) -> None:
    """A lost answer is asked for again, and the load is booked once."""
    fate = Losing(verdict, "POST", "/select_and_reserve", times)
    with relay(fleet, fate) as url:
        client = make(url)
        booked = client.select_and_reserve(token_ids=[1] * 9, expected_output_tokens=5)
        assert "overlap" in booked
        assert fleet.requests() == 1
        client.free(client.booking_id(booked))
    assert len([call for call in fate.seen if call == "POST /select_and_reserve"]) == times + 1
    assert fleet.is_idle()


@pytest.mark.parametrize("verdict", ["refuse", "lose"])
def test_reservation_is_repeated(make: MakeClient, fleet: Server, verdict: str) -> None:
    with relay(fleet, Losing(verdict, "POST", "/reservations")) as url:
        client = make(url)
        client.create_reservation(selection_id="r", worker_id=1, token_ids=[1] * 9)
        assert fleet.requests() == 1
        client.free("r")


@pytest.mark.parametrize("verdict", ["refuse", "lose"])
def test_idempotent_calls_are_repeated(make: MakeClient, fleet: Server, verdict: str) -> None:
    """A free whose answer was lost is done: the 404 of the repetition is success."""

    def through(method: str, path: str) -> Client:
        context = relay(fleet, Losing(verdict, method, path))
        opened.append(context)
        client: Client = make(context.__enter__())
        return client

    opened: list[object] = []
    try:
        through("POST", "/reservations").create_reservation(
            selection_id="r", worker_id=1, token_ids=[1], lease_seconds=60
        )
        through("POST", "/prefill_complete").prefill_complete("r")
        through("POST", "/renew").renew("r")
        through("GET", "/loads").loads()
        through("DELETE", "/r").free("r")
        through("PUT", "/workers").reconcile_workers(
            [{"worker_id": 1, "endpoint": "http://e", "block_size": 4}]
        )
    finally:
        for context in opened:
            context.__exit__(None, None, None)  # type: ignore[attr-defined]
    assert fleet.is_idle()


@pytest.mark.parametrize(("verdict", "blocks"), [("refuse", 0), ("lose", 1)])
def test_output_block_is_never_repeated(make: MakeClient, fleet: Server, verdict: str, blocks: int) -> None:
    """It would be counted twice; an unsent one is repeated, see the next test."""
    fate = Losing(verdict, "POST", "/output_block")
    with relay(fleet, fate) as url:
        client = make(url)
        client.create_reservation(selection_id="r", worker_id=1, token_ids=[1])
        with pytest.raises(ConnectionFailed) as error:
            client.output_block("r")
        assert error.value.sent
        assert sum(row["potential_decode_blocks"] for row in client.loads()[0]["loads"]) == blocks
        client.free("r")
    assert fate.seen.count("POST /reservations/r/output_block") == 1


def test_nothing_listens(make: MakeClient) -> None:
    """What was never sent is always repeated, as often as allowed."""
    client = make("http://127.0.0.1:9", retry=Retry(connection=Backoff(3, 0.01, 0.01, 0.1)))
    for call in (lambda: client.output_block("r"), client.loads, lambda: client.select(token_ids=[1])):
        with pytest.raises(ConnectionFailed) as error:
            call()
        assert not error.value.sent
        assert error.value.kind == "connection"


def test_booking_without_any_answer_is_freed(make: MakeClient, fleet: Server) -> None:
    """All attempts took effect unseen: the caller gets an error, and no load stays."""
    fate = Losing("lose", "POST", "/select_and_reserve", times=100)
    with relay(fleet, fate) as url:
        client = make(url, retry=Retry(connection=Backoff(2, 0.01, 0.01)))
        with pytest.raises(ConnectionFailed):
            client.select_and_reserve(token_ids=[1] * 9)
        assert fate.seen.count("POST /select_and_reserve") == 2
        eventually(fleet.is_idle)


def test_taken_id_is_not_freed(make: MakeClient, fleet: Server) -> None:
    """A conflict is about somebody else's booking."""
    client = make(fleet.url)
    client.create_reservation(selection_id="theirs", worker_id=1, token_ids=[1] * 9)
    with relay(fleet, Losing("refuse", "POST", "/select_and_reserve")) as url:
        other = make(url)
        with pytest.raises(Conflict, match="already reserved"):
            other.select_and_reserve(selection_id="theirs", token_ids=[2])
        assert other._core.held() == set()  # no free is on its way
    assert fleet.requests() == 1
    client.free("theirs")


def test_errors_are_not_repeated(make: MakeClient, fleet: Server) -> None:
    fate = Losing("pass", "", "")
    with relay(fleet, fate) as url:
        client = make(url)
        with pytest.raises(BadRequest):
            client.select()
        with pytest.raises(NotFound):
            client.prefill_complete("nobody's")
    assert len(fate.seen) == 2


def test_deadline(make: MakeClient) -> None:
    """No wait goes beyond it."""
    client = make("http://127.0.0.1:9", retry=Retry(connection=Backoff(100, 0.05, 0), deadline=0.3))
    begin = time.monotonic()
    with pytest.raises(ConnectionFailed):
        client.loads()
    assert time.monotonic() - begin < 5


# Overload


def test_backoff_is_the_documented_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """min(60, 2^attempt + up to a second), five attempts."""
    monkeypatch.setattr(random, "uniform", lambda a, b: (a + b) / 2)
    assert [Retry().overload.wait(n) for n in range(1, 6)] == [1.5, 2.5, 4.5, 8.5, None]
    assert Backoff(attempts=20).wait(7) == 60


def test_overload(make: MakeClient) -> None:
    """A shedding server with real bookings: refused until load is freed, then accepted."""
    server = Server("--active-prefill-tokens-threshold", "10")
    try:
        server.add_workers(1)
        client = make(server.url, retry=Retry(overload=Backoff(3, 0.01, 0.01)))
        first = client.booking_id(client.select_and_reserve(token_ids=[1] * 11))
        for call in (client.select, client.select_and_reserve):
            with pytest.raises(Overloaded, match="all eligible workers are overloaded") as error:
                call(token_ids=[1])
            assert (error.value.status, error.value.kind) == (503, "overloaded")
        assert server.requests() == 1

        patient = make(server.url, retry=Retry(overload=Backoff(12, 0.05, 0.01)))
        freed = threading.Timer(0.3, lambda: server.send("DELETE", f"/reservations/{first}"))
        freed.start()
        second = patient.booking_id(patient.select_and_reserve(token_ids=[1]))
        freed.join()
        # What is not refused for load is answered at once.
        patient.create_reservation(selection_id="stated", worker_id=1, token_ids=[1] * 99)
        patient.free("stated")
        patient.free(second)
        assert server.is_idle()
    finally:
        server.stop()


def test_selection_waits_in_the_queue(make: MakeClient) -> None:
    """It is not cut by the time of other calls, after which it would queue as the last."""
    server = Server("--router-queue-threshold", "1")
    fate = Losing("pass", "", "")
    try:
        server.add_workers(1, max_num_batched_tokens=10)
        first = server.send("POST", "/v1.6/select_and_reserve", {"token_ids": [1] * 50}).json()[
            "selection_id"
        ]
        with relay(server, fate) as url:
            client = make(url, timeout=1)
            freed = threading.Timer(2.5, lambda: server.send("DELETE", f"/reservations/{first}"))
            freed.start()
            booking = client.booking_id(client.select_and_reserve(token_ids=[2] * 5))
            freed.join()
            client.free(booking)
        assert fate.seen.count("POST /select_and_reserve") == 1
    finally:
        server.stop()


def test_retry_after_is_a_lower_bound(make: MakeClient) -> None:
    """The server's header is kept, with jitter on top of it."""
    server = Server("--active-prefill-tokens-threshold", "0", "--overload-retry-after-secs", "1")
    try:
        server.add_workers(1)
        client = make(server.url, retry=Retry(overload=Backoff(2, 0.01, 0.5)))
        booking = client.booking_id(client.select_and_reserve(token_ids=[1]))
        begin = time.monotonic()
        with pytest.raises(Overloaded):
            client.select(token_ids=[1])
        assert time.monotonic() - begin >= 1
        client.free(booking)
    finally:
        server.stop()


def test_answer_that_trickles(make: MakeClient) -> None:
    """The limit is for the attempt, not for each piece of its answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 300\r\n\r\n")
                for _ in range(300):
                    connection.sendall(b" ")
                    if ended.wait(0.1):
                        break

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            client = make(url, timeout=3, retry=Retry(connection=Backoff(1)))
            with pytest.raises(ConnectionFailed, match="takes too long") as failure:
                client.loads()
            assert failure.value.sent
        finally:
            ended.set()
            thread.join()


def test_connections_notice_a_lost_host(fleet: Server) -> None:
    """Also while a request is not acknowledged, when no probes are sent."""
    with Client(fleet.url) as client:
        http = client._core.http
        with http.stream("GET", "/health") as answer:
            kept = answer.extensions["network_stream"].get_extra_info("socket")
            assert kept.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


def test_connections_after_an_interrupt(fleet: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may leave the pool of connections broken: the next call has another one."""
    with Client(fleet.url) as client:
        client.loads()
        broken = client._core.http

        def interrupted(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(broken, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.loads()
        assert not broken.is_closed  # other threads may be using it
        assert client.loads()
        broken.close()
