"""The end of the interpreter, of threads and of forked children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence

import pytest

from select_service_client import Client, _core, _exit
from server import Server, eventually, relay


def python(code: str, *args: str) -> subprocess.Popen[str]:
    argv: Sequence[str] = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# How Python ends with Ctrl-C: by the signal, but now and then only with an error.
INTERRUPTED = (-signal.SIGINT, 1)


def finished(process: subprocess.Popen[str], *status: int) -> str:
    _, err = process.communicate(timeout=120)
    assert process.returncode in (status or (0,)), err
    assert "Exception ignored" not in err, err
    return err


# Who was started in the background, as CI may be, ignores SIGINT, and so do its
# children until they say otherwise.
HOLD = """
    import asyncio, signal, sys, threading
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from select_service_client import AsyncClient, Client, _exit
"""

# The end of the interpreter may take longer here than it does for users: what is
# tested is that all is freed, on a machine that may be slow.
PATIENT = (
    HOLD
    + """
    _exit.BUDGET, _exit.READ = 20, 10
"""
)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in this process."""
    monkeypatch.setattr(_exit, "BUDGET", 20)
    monkeypatch.setattr(_exit, "READ", 10, raising=False)
    monkeypatch.setattr(_core, "_RESCUE_TIME", 60, raising=False)


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "sys.exit(0)",
        "del client",
        "client.lease(token_ids=[2], lease_seconds=600, if_exists='return').__enter__()",
        "threading.Thread(target=client.lease(token_ids=[2], lease_seconds=600).__enter__).start()",
    ],
)
def test_exit_frees_open_leases(fleet: Server, end: str) -> None:
    """Blocks that are never left, because the interpreter ends inside of them."""
    code = (
        PATIENT
        + f"""
    client = Client(sys.argv[1])
    leases = [client.lease(token_ids=[1] * 9, lease_seconds=600) for _ in range(20)]
    for lease in leases:
        lease.__enter__()
    assert sum(r["active_requests"] for r in client.loads()[0]["loads"]) == 20
    {end}
    """
    )
    finished(python(code, fleet.url))
    assert fleet.is_idle()


def test_exit_with_an_exception(fleet: Server) -> None:
    code = (
        PATIENT
        + """
    async def main():
        lease = AsyncClient(sys.argv[1]).lease(token_ids=[1] * 9, lease_seconds=600)
        await lease.__aenter__()
        raise ZeroDivisionError
    asyncio.run(main())
    """
    )
    assert "ZeroDivisionError" in finished(python(code, fleet.url), 1)
    assert fleet.is_idle()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_interrupt(fleet: Server, kind: str) -> None:
    """Ctrl-C inside of blocks."""
    code = (
        PATIENT
        + """
    import time
    def hold():
        with Client(sys.argv[1]).lease(token_ids=[1] * 9, lease_seconds=600):
            print("in", flush=True)
            time.sleep(60)
    async def ahold():
        async with AsyncClient(sys.argv[1]).lease(token_ids=[1] * 9, lease_seconds=600):
            print("in", flush=True)
            await asyncio.sleep(60)
    hold() if sys.argv[2] == "sync" else asyncio.run(ahold())
    """
    )
    process = python(code, fleet.url, kind)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    assert fleet.requests() == 1
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in finished(process, *INTERRUPTED)
    assert fleet.is_idle()


@pytest.mark.parametrize(
    "call",
    [
        "Client(sys.argv[1]).select_and_reserve(token_ids=[1] * 9)",
        "Client(sys.argv[1]).lease(token_ids=[1] * 9, lease_seconds=600).__enter__()",
        "asyncio.run(book(AsyncClient(sys.argv[1])))",
    ],
)
def test_interrupt_while_booking(fleet: Server, call: str) -> None:
    """Ctrl-C when the server has booked and its answer is still on its way."""
    code = (
        PATIENT
        + f"""
    async def book(client):
        await client.select_and_reserve(token_ids=[1] * 9)
    {call}
    """
    )
    with relay(fleet, lambda _, path: "mute" if path.endswith("/select_and_reserve") else "pass") as url:
        process = python(code, url)
        eventually(lambda: fleet.requests() == 1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert "KeyboardInterrupt" in err
        assert "Exception ignored" not in err
        assert fleet.is_idle()


@pytest.mark.usefixtures("patient")
def test_rescue_that_is_cut_short(fleet: Server) -> None:
    """A booking that is being freed in the background is freed by the end, if need be."""
    deletes: list[str] = []

    def fate(method: str, path: str) -> str:
        if method == "DELETE":
            deletes.append(path)
        return "hang" if method == "DELETE" and len(deletes) == 1 else "pass"

    with relay(fleet, fate) as url:
        client = Client(url)
        client.create_reservation(selection_id="r", worker_id=1, token_ids=[1])
        client._core.abandon("r")
        eventually(lambda: deletes)
        client._core.background.close(timeout=0)
        assert client._core.held() == {"r"}
        _exit.free_held()
        assert client._core.held() == set()
        client.close()
    assert fleet.is_idle()


@pytest.mark.usefixtures("patient")
def test_booking_that_is_late(fleet: Server) -> None:
    """The end waits a little for a booking that reaches the server after its first free."""
    seen: list[str] = []

    def fate(method: str, path: str) -> str:
        seen.append(method)
        if len(seen) == 2:
            body = {"selection_id": "r", "worker_id": 1, "token_ids": [1]}
            assert fleet.send("POST", "/v1.6/reservations", body).status_code == 201
        return "pass"

    with relay(fleet, fate) as url:
        client = Client(url)
        client._core.background.close()
        client._core.abandon("r")
        client.close()
    assert seen == ["DELETE", "DELETE"]
    assert fleet.is_idle()


def test_kill(fleet: Server) -> None:
    """A process that is killed frees nothing: the server ends its leases."""
    code = (
        HOLD
        + """
    with Client(sys.argv[1]).lease(token_ids=[1] * 9, lease_seconds=1):
        print("in", flush=True)
        threading.Event().wait()
    """
    )
    process = python(code, fleet.url)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()
    eventually(fleet.is_idle)


def test_exit_does_not_hang(fleet: Server) -> None:
    """With a server that accepts and says nothing, the end comes within seconds."""
    code = (
        HOLD
        + """
    import socket, time
    client = Client(sys.argv[1])
    client.lease(token_ids=[1], lease_seconds=1).__enter__()
    mute = socket.create_server(("127.0.0.1", 0))
    object.__setattr__(client._core.options, "url", f"http://127.0.0.1:{mute.getsockname()[1]}")
    print(time.time(), flush=True)
    """
    )
    out, err = (process := python(code, fleet.url)).communicate(timeout=120)
    assert process.returncode == 0, err
    assert time.time() - float(out) < 30
    eventually(fleet.is_idle)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork(fleet: Server) -> None:
    """A child neither frees its parent's leases nor is hindered by its parent's threads."""
    code = (
        PATIENT
        + """
    import os
    client = Client(sys.argv[1])
    with client.lease(token_ids=[1] * 9, lease_seconds=600) as lease:
        child = os.fork()
        if child == 0:
            with Client(sys.argv[1]) as own, own.lease(token_ids=[1] * 9, lease_seconds=600) as mine:
                mine.post_output_block()
            sys.exit(0)  # leaves the parent's block, too, and runs the end of the interpreter
        assert os.waitpid(child, 0)[1] == 0
        rows = Client(sys.argv[1]).loads()[0]["loads"]
        assert sum(row["active_requests"] for row in rows) == 1, rows
    """
    )
    finished(python(code, fleet.url))
    assert fleet.is_idle()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_client_used_on_both_sides_of_a_fork(fleet: Server, kind: str) -> None:
    """Parent and child use one client at the same time, and each gets its own answers."""
    code = (
        PATIENT
        + """
    import os
    def calls(client, me):
        for turn in range(150):
            id_ = f"{me}-{turn}"
            booked = client.select_and_reserve(token_ids=[1, 2, 3, 4], selection_id=id_)
            assert booked["selection_id"] == id_, (id_, booked)
            client.slots.health()
            client.free(id_)
        with client.lease(token_ids=[1], lease_seconds=600) as lease:
            lease.post_output_block()
    async def acalls(client, me):
        for turn in range(150):
            id_ = f"{me}-{turn}"
            booked = await client.select_and_reserve(token_ids=[1, 2, 3, 4], selection_id=id_)
            assert booked["selection_id"] == id_, (id_, booked)
            await client.free(id_)
    if sys.argv[2] == "sync":
        client = Client(sys.argv[1])
        client.health()
        with client.lease(token_ids=[1] * 9, lease_seconds=600) as lease:
            lease.post_output_block()
            lease.output_block()
            child = os.fork()
            calls(client, "child" if child == 0 else "parent")
            if child == 0:
                assert not lease.alive
                sys.exit(0)
    else:
        client = AsyncClient(sys.argv[1])
        asyncio.run(acalls(client, "before"))
        child = os.fork()
        if child == 0:
            asyncio.run(acalls(client, "child"))
            sys.exit(0)
        other = AsyncClient(sys.argv[1])
        asyncio.run(acalls(other, "parent"))
    assert os.waitpid(child, 0)[1] == 0
    """
    )
    finished(python(code, fleet.url, kind))
    assert fleet.is_idle()
