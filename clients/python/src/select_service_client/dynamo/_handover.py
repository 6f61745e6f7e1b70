"""What a call has made while its caller gave it up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from select_service_client._plan import T


class Handover:
    """Undoes what was made if nobody takes it, whichever of the two comes first.

    A future can be cancelled when its call is over already and the result is on
    its way to the caller's event loop. Then the call does not learn of it.
    """

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo
        # Guards the two below. given_up may come from the garbage collector.
        self._lock = threading.RLock()
        self._made = self._given_up = False

    def made(self) -> None:
        """The call has taken effect; said at most once."""
        with self._lock:
            self._made = True
            undo = self._given_up
        if undo:
            self._undo()

    def given_up(self) -> None:
        """The caller does not take the result; once more does nothing."""
        with self._lock:
            undo = self._made and not self._given_up
            self._given_up = True
        if undo:
            self._undo()


class Handed(asyncio.Future[T]):
    """A call's future, which learns whether its result was taken.

    A task that is cancelled between the arrival of the result and its own next
    turn never sees the result, although the future was not cancelled. Only the
    await itself can tell. Whoever hands the future to gather or wait instead
    still has it, and the result with it.
    """

    def __init__(
        self, call: Future[T], loop: asyncio.AbstractEventLoop, given_up: Callable[[], None]
    ) -> None:
        super().__init__(loop=loop)
        self._call, self._on_given_up = call, given_up
        self._awaiting, self._taken = 0, False
        self.add_done_callback(Handed._check_cancelled)
        call.add_done_callback(self._arrived)

    def __await__(self) -> Generator[Any, None, T]:
        self._awaiting += 1
        try:
            result = yield from super().__await__()
            self._taken = True
            return result
        finally:
            self._awaiting -= 1
            if self.done() and not self._taken and not self._awaiting:
                self._on_given_up()

    __iter__ = __await__

    def _check_cancelled(self) -> None:
        if self.cancelled():
            self._call.cancel()
            self._on_given_up()

    def _arrived(self, _: Future[T]) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            self.get_loop().call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self.done():
            return
        if self._call.cancelled():
            self.cancel()
        elif (error := self._call.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(self._call.result())
