"""Plans: what a call does, without saying how it waits.

A plan is a generator. It yields what it wants done (a request sent, time to
pass, its turn) and is given the outcome. The two drivers in _drive.py do it, one
by blocking and one by awaiting, so that every rule about retries, order and
leases is written once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from . import _json
from ._errors import ConnectionFailed, error_of, is_overload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; the path is relative to the server's URL."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None  # of each attempt, in seconds; None: it has all the time
    # Makes the same in JSON, for a server that answers 415; None: it is in JSON.
    plain: Callable[[], Request] | None = None

    def within(self, seconds: float) -> Request:
        """The same with at most so many seconds."""
        shorter = seconds if self.timeout is None else min(self.timeout, seconds)
        return replace(self, timeout=shorter)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer of any status."""

    status: int
    content: bytes
    retry_after: float | None = None  # seconds

    def value(self) -> Any:
        """What a success says; raises the error of anything else."""
        if not 200 <= self.status < 300:
            raise error_of(self.status, self.content)
        return _json.decode(self.content) if self.content else None


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer. If not sent, the server cannot have seen the request.

    wrong: it never can, because its URL or a header is invalid.
    """

    cause: Exception
    sent: bool
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """Time to pass, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A future that somebody else completes: the outcome is whether it has, in time."""

    future: Future[None]
    seconds: float | None = None  # the most to wait


Step: TypeAlias = Request | Sleep | Wait
Plan: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with jitter: min(cap, base · 2^n + up to jitter) seconds.

    attempts counts the first one. The defaults are the retry strategy that
    Dynamo's request rejection asks of its clients.
    """

    attempts: int = 5
    base: float = 1.0
    jitter: float = 1.0
    cap: float = 60.0

    def wait(self, failed: int) -> float | None:
        """How long to wait after so many failed attempts, None to give up."""
        return None if failed >= self.attempts else self.pause(failed)

    def pause(self, failed: int) -> float:
        """The same, however many attempts there have been."""
        exponent = min(failed - 1, 64)  # floats end, attempts need not
        return min(self.cap, self.base * 2.0**exponent + random.uniform(0, self.jitter))


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a call is tried again.

    overload is for refusals for load, connection for calls without an answer,
    and deadline is the most that a call may take with all its attempts and waits,
    in seconds.
    """

    overload: Backoff = Backoff()
    connection: Backoff = Backoff(attempts=6, base=0.1, jitter=0.1, cap=5.0)
    deadline: float | None = None

    def within(self, seconds: float) -> Retry:
        """The same with at most so many seconds."""
        return replace(self, deadline=seconds if self.deadline is None else min(self.deadline, seconds))


class Exchange:
    """A request with its repetitions, until there is a definite answer.

    safe: it may be repeated although an earlier attempt may have taken effect;
    repeated then makes what is sent, by default the same. wanted is asked before
    every repetition.
    """

    def __init__(
        self,
        retry: Retry,
        request: Request,
        *,
        safe: bool,
        repeated: Callable[[], Request] | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._retry = retry
        self._request = request
        self._safe = safe
        self._repeated = repeated
        self._wanted = wanted
        # lost: an earlier attempt had no answer and may have taken effect.
        # doubtful: it may have taken effect, and the caller has no answer yet that
        # says whether it has; one that says so is the caller's to read.
        self.lost = self.doubtful = False

    def run(self) -> Plan[Answer]:
        """Sends the request and returns an answer of any status.

        Raises ConnectionFailed, or ValueError for a request that cannot be sent.
        """
        retry, request = self._retry, self._request
        deadline = None if retry.deadline is None else time.monotonic() + retry.deadline
        refused = failed = 0
        while True:
            if deadline is not None:
                request = request.within(max(deadline - time.monotonic(), 0.001))
            self.doubtful = True
            reply: Answer | Failure = yield request
            if isinstance(reply, Answer) and reply.status in (502, 504):  # of a proxy
                reply = Failure(error_of(reply.status, reply.content), sent=True)
            if isinstance(reply, Failure):
                error: Exception = _failed(self._request, reply)
                failed += 1
                wait = retry.connection.wait(failed)
                self.doubtful = self.lost = self.lost or reply.sent
                if reply.wrong:
                    raise ValueError(str(reply.cause)) from reply.cause
                if reply.sent and not self._safe:
                    wait = None
                if self.lost and self._repeated is not None:
                    request, self._repeated = self._repeated(), None
            elif reply.status == 415 and request.plain is not None:  # it has not been done
                request = request.plain()
                continue
            elif is_overload(reply.status, reply.content):
                error = error_of(reply.status, reply.content)
                self.doubtful = self.lost
                refused += 1
                wait = retry.overload.wait(refused)
                if wait is not None and reply.retry_after is not None:
                    # A fixed number would bring all clients back at once.
                    asked = reply.retry_after + random.uniform(0, retry.overload.jitter)
                    wait = min(retry.overload.cap, max(wait, asked))
            else:
                self.doubtful = self.lost or reply.status < 300
                return reply
            if wait is None or (deadline is not None and time.monotonic() + wait >= deadline):
                raise error
            yield Sleep(wait)
            if not self._wanted():
                raise error


def _failed(request: Request, failure: Failure) -> ConnectionFailed:
    cause = failure.cause
    error = ConnectionFailed(
        f"{request.method} {request.path}: {type(cause).__name__}: {cause}", sent=failure.sent
    )
    error.__cause__ = cause
    return error
