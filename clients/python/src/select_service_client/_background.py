"""A daemon thread with an event loop, for what must outlive its caller."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any

import httpx

from ._drive import arun
from ._plan import Plan, T


class Background:
    """Runs plans one beside the other. The thread is started by the first one."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        # Guards all below.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: httpx.AsyncClient | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    def submit(self, plan: Plan[T]) -> Future[T]:
        """Runs a plan; cancelling the future cancels it. RuntimeError after close."""
        try:
            loop, http = self._running()
        except RuntimeError:
            plan.close()
            raise
        return self.start(arun(plan, http), loop)

    def start(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> Future[T]:
        """Runs a coroutine on the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, loop or self._running()[0])
        except RuntimeError:
            work.close()
            raise

    @property
    def http(self) -> httpx.AsyncClient:
        """The loop's HTTP client."""
        return self._running()[1]

    @property
    def closed(self) -> bool:
        """Whether it takes no more work."""
        return self._closed

    def close(self, timeout: float = 1.0) -> None:
        """Gives running plans the time to end and stops the thread."""
        with self._lock:
            self._closed = True
            loop, thread, http = self._loop, self._thread, self._http
            if self._pid != os.getpid():  # a fork has no thread
                loop = thread = None
        if loop is None or thread is None or http is None or not thread.is_alive():
            return
        done = asyncio.run_coroutine_threadsafe(_finish(http, timeout), loop)
        if thread is not threading.current_thread():
            with suppress(FutureTimeout):
                done.result(timeout + 1)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(1)

    def _running(self) -> tuple[asyncio.AbstractEventLoop, httpx.AsyncClient]:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._loop is None or self._http is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._http = httpx.AsyncClient(**self._options)
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="select-service-client", daemon=True
                )
                self._thread.start()
                self._pid = os.getpid()
            return self._loop, self._http


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _finish(http: httpx.AsyncClient, timeout: float) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    await http.aclose()
