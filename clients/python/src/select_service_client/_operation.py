"""A call of the API, written once for the client that blocks and the one that awaits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, overload

from ._core import Core
from ._drive import arun, run
from ._plan import Plan, T

P = ParamSpec("P")


class Caller:
    """Something that makes calls through a client's core."""

    def __init__(self, core: Core) -> None:
        self._core = core


def run_here(core: Core, plan: Plan[T]) -> T:
    """Runs a plan in this thread."""
    http = core.http
    try:
        return run(plan, http)
    except Exception:
        raise
    except BaseException:
        # Ctrl-C may have broken its pool, for ever. Others may be using it: not closed.
        if core._http is http and not http.is_closed:
            core._http = None
        raise


class SyncCaller(Caller):
    """Runs its operations in the calling thread."""

    def _run(self, plan: Plan[T]) -> T:
        return run_here(self._core, plan)


class AsyncCaller(Caller):
    """Runs its operations on the calling event loop."""

    async def _run(self, plan: Plan[T]) -> T:
        return await arun(plan, self._core.ahttp)


class Operation(Generic[P, T]):
    """A method that returns a plan, to be declared with @operation.

    On a SyncCaller it is a method that returns the plan's result, on an
    AsyncCaller a coroutine function.
    """

    def __init__(self, plan: Callable[Concatenate[Any, P], Plan[T]]) -> None:
        self.plan = plan
        functools.update_wrapper(self, plan)

    @overload
    def __get__(self, instance: SyncCaller, owner: type | None = None) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, instance: AsyncCaller, owner: type | None = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Operation[P, T]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds the operation to a client."""
        if instance is None:
            return self

        @functools.wraps(self.plan)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return instance._run(self.plan(instance, *args, **kwargs))

        return call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls it with the client first, as a function of the class."""
        return self.__get__(args[0])(*args[1:], **kwargs)


operation = Operation
