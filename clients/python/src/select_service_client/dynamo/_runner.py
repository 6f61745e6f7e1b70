"""Runs plans as the methods of Dynamo's class run: begun at once, awaited or not."""

from __future__ import annotations

import asyncio
import math
import operator
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from select_service_client import _json
from select_service_client._core import Core
from select_service_client._errors import SelectServiceError
from select_service_client._lanes import Ticket
from select_service_client._operation import run_here
from select_service_client._plan import Plan, T

from ._errors import SelectionServiceError, translate

# Every one that is alive, for forks.
_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


class Runner:
    """What the methods have in common.

    Those that return a future check their arguments, then that there is an event
    loop for it, and have no effect before.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        # Guards all state of the adapter. Its owner may find itself inside again: the
        # garbage collector ends dropped plans wherever a thread is.
        self._lock = threading.RLock()
        _runners.add(self)

    def _after_fork(self) -> None:
        """Forgets, in a forked child, what is the parent's. The core does so itself."""
        self._lock = threading.RLock()

    def _start(self, plan: Plan[T], ticket: Ticket | None = None) -> asyncio.Future[T]:
        """Runs a plan, which being cancelled cancels."""
        loop = asyncio.get_running_loop()
        return asyncio.wrap_future(self._background(plan, ticket), loop=loop)

    def _start_kept(self, plan: Plan[T], ticket: Ticket | None = None) -> asyncio.Future[T]:
        """Runs a plan to its end, even if cancelled."""
        return asyncio.shield(self._start(plan, ticket))

    def _background(self, plan: Plan[T], ticket: Ticket | None = None) -> Future[T]:
        try:
            return self._core.submit(_translated(plan), ticket)
        except RuntimeError:
            raise SelectionServiceError("selection service is shutting down", "not_ready", 503) from None

    def _now(self, plan: Plan[T]) -> T:
        """Runs a plan in the calling thread."""
        if self._core.background.closed:
            plan.close()
            raise SelectionServiceError("selection service is shutting down", "not_ready", 503)
        return run_here(self._core, _translated(plan))


def checked(convert: Callable[[], T]) -> T:
    """The result of a conversion, which fails as one of Dynamo's."""
    try:
        return convert()
    except (TypeError, ValueError) as error:
        raise translate(error) from None


def text(value: Any, name: str) -> str:
    """An argument that has to be a string."""
    if not isinstance(value, str):
        raise TypeError(
            f"argument {name!r}: {type(value).__name__!r} object cannot be converted to 'PyString'"
        )
    return value


def texts(**values: Any) -> dict[str, str | None]:
    """Arguments that are strings or None."""
    return {name: None if value is None else text(value, name) for name, value in values.items()}


def fraction(value: Any, name: str) -> float:
    """An argument that has to be from 0 to 1."""
    try:
        number = math.fsum([value])  # takes any real number but no string, as float() does
    except TypeError as error:
        raise TypeError(f"argument {name!r}: {error}") from None
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be between 0.0 and 1.0")
    return number


def worker_number(value: Any) -> int:
    """An argument that has to be an unsigned 64-bit integer."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"argument 'worker_id': {error}") from None
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number > _json.MAX_U64:
        raise OverflowError("int too big to convert")
    return number


def _translated(plan: Plan[T]) -> Plan[T]:
    try:
        return (yield from plan)
    except SelectServiceError as error:
        raise translate(error) from error


def _after_fork() -> None:
    for runner in list(_runners):
        runner._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
