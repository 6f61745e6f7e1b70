"""The server is killed and started again on the same port, in every step of the flow."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from conftest import QUICK, MakeClient
from select_service_client import Backoff, ConnectionFailed, NotFound, Retry, Unavailable
from server import Server

# Waits for as long as a server may take to start.
PATIENT = Retry(overload=QUICK.overload, connection=Backoff(60, 0.05, 0.05, 0.5))

# What a step gets from a server that has lost everything, None for nothing odd.
# A pooled connection that died may take an output block with it.
STEPS: list[tuple[str, Any]] = [
    ("put_worker", None),
    ("select", Unavailable),
    ("create_reservation", Unavailable),
    ("prefill_complete", NotFound),
    ("output_block", (ConnectionFailed, False)),
    ("renew", NotFound),
    ("free", NotFound),
    ("loads", None),
]


def call(client: Any, step: str) -> Any:
    if step == "put_worker":
        return client.put_worker(worker_id=1, endpoint="http://e", block_size=4)
    if step == "select":
        return client.select(token_ids=[1] * 9, selection_id="r")
    if step == "create_reservation":
        return client.create_reservation(selection_id="r", worker_id=1, token_ids=[1] * 9, lease_seconds=60)
    return getattr(client, step)(*(() if step == "loads" else ("r",)))


@pytest.mark.parametrize("while_down", [False, True])
def test_killed_before_each_step(make: MakeClient, while_down: bool) -> None:
    """Each step either works on the new process or says clearly that the booking is gone.

    while_down: the step begins while nothing listens, and succeeds once the
    server is back.
    """
    server = Server()
    try:
        client = make(server.url, retry=PATIENT)
        for victim, expected in STEPS:
            for step, _ in STEPS:
                if step != victim:
                    if step == "free":
                        client.free("r")
                    else:
                        call(client, step)
                    continue
                server.kill()
                back = threading.Timer(0.15 if while_down else 0, server.start)
                back.start()
                if not while_down:
                    back.join()
                try:
                    outcome: Any = call(client, step)
                except Exception as error:
                    outcome = error
                back.join()
                wanted = expected if isinstance(expected, tuple) else (expected,)
                assert any(
                    outcome is want or (isinstance(want, type) and isinstance(outcome, want))
                    for want in wanted
                ) or (expected is None and not isinstance(outcome, Exception)), (step, outcome)
                break
            # The same client goes on with the new process, from the beginning.
            call(client, "put_worker")
            assert server.is_idle()
    finally:
        server.stop()


def test_lease_outlives_its_server(make: MakeClient) -> None:
    """A lease whose server was replaced ends without an error and without a trace."""
    server = Server()
    try:
        server.add_workers(1)
        client = make(server.url)
        with client.lease(token_ids=[1] * 9) as lease:
            server.restart()
            server.add_workers(1)
            with pytest.raises(NotFound):
                lease.prefill_complete()
            lease.post_output_block()
        assert server.is_idle()
        with client.lease(token_ids=[1] * 9):
            assert server.requests() == 1
        assert server.is_idle()
    finally:
        server.stop()


def test_lease_ends_while_nothing_listens(make: MakeClient) -> None:
    """The block ends without an error: the server is gone, and the booking with it."""
    server = Server()
    try:
        server.add_workers(1)
        client = make(server.url)
        with client.lease(token_ids=[1] * 9):
            server.kill()
    finally:
        server.stop()
