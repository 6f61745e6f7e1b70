"""The end of the interpreter: reservations that this process owes are freed."""

from __future__ import annotations

import atexit
import os
import time

import httpx

from ._core import Core, cores

# The most that the end of the interpreter is held up, in seconds. What is not
# freed by then the server ends with its lease.
BUDGET = 2.0
# The most that one of its requests waits for an answer, in seconds.
READ = 1.0
# Between attempts to free what may not be booked yet, or was not freed, in seconds.
PAUSE = 0.1


def free_held() -> None:
    """Frees what the clients of this process hold, without their threads."""
    deadline = time.monotonic() + BUDGET
    for core in list(cores):
        core.background.close(timeout=0)
        _free(core, deadline)


def close(core: Core) -> None:
    """Ends a client: gives what runs behind a moment, and frees what is left."""
    core.background.close(timeout=1.0)
    _free(core, time.monotonic() + BUDGET)


def _free(core: Core, deadline: float) -> None:
    owed = core.held()
    if not owed:
        return
    with core.options.client(read=READ) as http:
        while True:
            for booking in list(owed):
                if time.monotonic() > deadline:
                    return
                request = core.lifecycle("DELETE", booking)
                try:
                    answer = http.request(request.method, request.path, headers=request.headers)
                except httpx.TransportError:
                    return
                if core.settle(booking, answer.status_code):
                    owed.discard(booking)
            if not owed:
                return
            time.sleep(PAUSE)  # these may be on their way to the server, or it is in trouble


def _after_fork() -> None:
    for core in list(cores):
        core.after_fork()


atexit.register(free_held)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
