"""The end of the interpreter, of threads and of forked children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence

import pytest

from server import Server, eventually


def python(code: str, *args: str) -> subprocess.Popen[str]:
    argv: Sequence[str] = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str], status: int = 0) -> str:
    _, err = process.communicate(timeout=30)
    assert process.returncode == status, err
    assert "Exception ignored" not in err, err
    return err


# Who was started in the background, as CI may be, ignores SIGINT, and so do its
# children until they say otherwise.
HOLD = """
    import asyncio, signal, sys, threading
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from select_service_client import AsyncClient, Client
"""


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "sys.exit(0)",
        "del client",
        "threading.Thread(target=client.lease(token_ids=[2], lease_seconds=600).__enter__).start()",
    ],
)
def test_exit_frees_open_leases(fleet: Server, end: str) -> None:
    """Blocks that are never left, because the interpreter ends inside of them."""
    code = (
        HOLD
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
        HOLD
        + """
    async def main():
        lease = AsyncClient(sys.argv[1]).lease(token_ids=[1] * 9, lease_seconds=600)
        await lease.__aenter__()
        raise ZeroDivisionError
    asyncio.run(main())
    """
    )
    assert "ZeroDivisionError" in finished(python(code, fleet.url), status=1)
    assert fleet.is_idle()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_interrupt(fleet: Server, kind: str) -> None:
    """Ctrl-C inside of blocks."""
    code = (
        HOLD
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
    assert "KeyboardInterrupt" in finished(process, status=-signal.SIGINT)
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
    """
    )
    finished(python(code, fleet.url))
    eventually(fleet.is_idle)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork(fleet: Server) -> None:
    """A child neither frees its parent's leases nor is hindered by its parent's threads."""
    code = (
        HOLD
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
