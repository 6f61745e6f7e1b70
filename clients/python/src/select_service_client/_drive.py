"""The two drivers of plans: one blocks, one awaits."""

from __future__ import annotations

import asyncio
import time

import httpx

from ._plan import Answer, Failure, Plan, Request, Sleep, T

# The errors after which the server cannot have seen the request.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


def run(plan: Plan[T], http: httpx.Client) -> T:
    """Runs a plan in this thread."""
    try:
        step = next(plan)
        while True:
            reply: Answer | Failure | None = None
            try:
                if isinstance(step, Request):
                    reply = _send(step, http)
                elif isinstance(step, Sleep):
                    time.sleep(step.seconds)
                else:
                    step.future.result()
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
            reply: Answer | Failure | None = None
            try:
                if isinstance(step, Request):
                    reply = await _asend(step, http)
                elif isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                else:
                    # Shielded: a turn is given up by its plan, not by its future.
                    await asyncio.shield(asyncio.wrap_future(step.future))
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        plan.close()  # also when this coroutine is dropped half way


def _send(request: Request, http: httpx.Client) -> Answer | Failure:
    try:
        answer = http.request(request.method, request.path, content=request.content, headers=request.headers)
    except httpx.TransportError as error:
        return _failure(error)
    return _answer(answer)


async def _asend(request: Request, http: httpx.AsyncClient) -> Answer | Failure:
    try:
        answer = await http.request(
            request.method, request.path, content=request.content, headers=request.headers
        )
    except httpx.TransportError as error:
        return _failure(error)
    return _answer(answer)


def _failure(error: httpx.TransportError) -> Failure:
    return Failure(error, sent=not isinstance(error, _UNSENT))


def _answer(answer: httpx.Response) -> Answer:
    retry_after = answer.headers.get("retry-after", "")
    return Answer(answer.status_code, answer.content, float(retry_after) if retry_after.isdigit() else None)
