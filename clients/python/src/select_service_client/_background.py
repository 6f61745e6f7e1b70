"""A daemon thread with an event loop, for what must outlive its caller."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import httpx

from ._drive import arun
from ._plan import Plan, T


class Background:
    """Runs plans one beside the other. The thread is started by the first one.

    No lock is held: finalizers submit, too, in the middle of whatever their thread
    is doing. The thread ends when this object is closed, or dropped.
    """

    def __init__(self, connect: Callable[[], httpx.AsyncClient]) -> None:
        self._connect = connect
        self._workers: dict[int, _Worker] = {}  # by process: a fork has no thread
        self._closed = False

    def submit(self, plan: Plan[T]) -> Future[T]:
        """Runs a plan; cancelling the future cancels it. RuntimeError after close."""
        try:
            worker = self._running()
        except RuntimeError:
            plan.close()
            raise
        return self.start(arun(plan, worker.http))

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on the loop. RuntimeError after close."""
        try:
            worker = self._running()
            future = asyncio.run_coroutine_threadsafe(work, worker.loop)
        except RuntimeError:
            work.close()
            raise
        if worker.ended:  # it may not have seen the work
            future.cancel()
        return future

    @property
    def http(self) -> httpx.AsyncClient:
        """The loop's HTTP client."""
        return self._running().http

    @property
    def closed(self) -> bool:
        """Whether it takes no more work."""
        return self._closed

    def close(self, timeout: float = 1.0) -> None:
        """Gives running plans the time to end and stops the thread."""
        self._closed = True
        worker = self._workers.get(os.getpid())
        if worker is None or not worker.thread.is_alive():
            return
        end = _end(timeout)
        try:
            asyncio.run_coroutine_threadsafe(end, worker.loop)
        except RuntimeError:  # it has ended
            end.close()
        if worker.thread is not threading.current_thread():
            worker.thread.join(timeout + 2)

    def _running(self) -> _Worker:
        if self._closed:
            raise RuntimeError("the client is closed")
        worker = self._workers.get(os.getpid())
        if worker is None:
            # Nobody sees it before it runs: what is submitted is always served.
            made = self._launch(_Worker(self._connect()))
            worker = self._workers.setdefault(os.getpid(), made)
            if worker is not made:  # another thread was first
                made.stop()
            if self._closed:  # meanwhile
                self.close(timeout=0)
                raise RuntimeError("the client is closed")
        return worker

    def _launch(self, worker: _Worker) -> _Worker:
        # The end of the interpreter is the business of _exit.py.
        dropped = weakref.finalize(self, worker.stop)
        dropped.atexit = False  # type: ignore[misc]  # a property
        try:
            worker.thread.start()
        except RuntimeError:  # no thread can be made, or not any more
            worker.loop.close()
            raise
        return worker


class _Worker:
    """A thread with its loop and its connections."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.loop = asyncio.new_event_loop()
        self.ended = False  # what is submitted from now on may never run
        self.thread = threading.Thread(target=self._serve, name="select-service-client", daemon=True)

    def stop(self) -> None:
        """Ends the thread soon; does not wait, and may be called by finalizers."""
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.ended = True
            self.loop.run_until_complete(_finish(0))
            self.loop.run_until_complete(self.http.aclose())
            self.loop.close()


async def _end(timeout: float) -> None:
    await _finish(timeout)
    asyncio.get_running_loop().stop()


async def _finish(timeout: float) -> None:
    """Gives the loop's tasks the time to end, and cancels those that do not."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
