"""The two drivers of plans: one blocks, one awaits."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import asynccontextmanager
from typing import Any

import httpx

from ._plan import Answer, Failure, Plan, Request, Sleep, T, Wait

# The errors of a request that cannot be sent at all: a wrong URL, a wrong header.
_WRONG = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)

# The errors after which the server cannot have seen the request.
_UNSENT = (*_WRONG, httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

# How much later than httpx's limits an attempt is ended, in seconds. They hold for
# each wait anew, but tell whether the request was sent.
_LATER = 0.1


def run(plan: Plan[T], http: httpx.Client) -> T:
    """Runs a plan in this thread."""
    try:
        step = next(plan)
        while True:
            reply: Answer | Failure | bool | None = None
            try:
                if isinstance(step, Request):
                    reply = _send(step, http)
                elif isinstance(step, Sleep):
                    time.sleep(step.seconds)
                else:
                    reply = _wait(step)
            except BaseException as error:
                step = plan.throw(error)  # it tidies up and raises again
            else:
                step = plan.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


async def arun(plan: Plan[T], http: httpx.AsyncClient) -> T:
    """Runs a plan on the running event loop."""
    try:
        step = next(plan)
        while True:
            reply: Answer | Failure | bool | None = None
            try:
                if isinstance(step, Request):
                    reply = await _asend(step, http)
                elif isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                else:
                    reply = await _await(step)
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        plan.close()  # also when this coroutine is dropped half way


def _wait(step: Wait) -> bool:
    try:
        step.future.result(step.seconds)
    except FutureTimeout:
        return False
    return True


async def _await(step: Wait) -> bool:
    # Not wait_for: a turn is given up by its plan, not by its future.
    done, _ = await asyncio.wait({asyncio.wrap_future(step.future)}, timeout=step.seconds)
    return bool(done)


def _send(request: Request, http: httpx.Client) -> Answer | Failure:
    end = math.inf if request.timeout is None else time.monotonic() + request.timeout + _LATER
    chunks: list[bytes] = []
    try:
        with http.stream(request.method, request.path, **_arguments(request, http)) as answer:
            for chunk in answer.iter_bytes():
                if time.monotonic() > end:
                    raise httpx.ReadTimeout("the answer takes too long")
                chunks.append(chunk)
    except httpx.RequestError as error:
        return _failure(error)
    return _answer(answer, b"".join(chunks))


async def _asend(request: Request, http: httpx.AsyncClient) -> Answer | Failure:
    try:
        async with _limit(None if request.timeout is None else request.timeout + _LATER):
            answer = await http.request(request.method, request.path, **_arguments(request, http))
    except httpx.RequestError as error:
        return _failure(error)
    except asyncio.TimeoutError:
        return _failure(httpx.ReadTimeout("the answer takes too long"))
    return _answer(answer, answer.content)


if sys.version_info >= (3, 11):
    _limit = asyncio.timeout
else:

    @asynccontextmanager
    async def _limit(seconds: float | None) -> AsyncIterator[None]:
        """asyncio.timeout. Not wait_for, which loses cancellations there."""
        task, late = asyncio.current_task(), False

        def end() -> None:
            nonlocal late
            late = True
            if task is not None:
                task.cancel()

        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, end)
        try:
            yield
        except asyncio.CancelledError:
            if late:
                raise asyncio.TimeoutError from None
            raise
        finally:
            if timer is not None:
                timer.cancel()


def _arguments(request: Request, http: httpx.Client | httpx.AsyncClient) -> dict[str, Any]:
    limits = [limit for limit in (request.timeout, http.timeout.connect) if limit is not None]
    return {
        "content": request.content,
        "headers": request.headers,
        "timeout": httpx.Timeout(request.timeout, connect=min(limits, default=None)),
    }


def _failure(error: httpx.RequestError) -> Failure:
    return Failure(error, sent=not isinstance(error, _UNSENT), wrong=isinstance(error, _WRONG))


def _answer(answer: httpx.Response, content: bytes) -> Answer:
    retry_after = answer.headers.get("retry-after", "")
    return Answer(answer.status_code, content, float(retry_after) if retry_after.isdecimal() else None)
