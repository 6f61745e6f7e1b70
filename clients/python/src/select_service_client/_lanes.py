"""One ordered queue per reservation id.

Calls about one reservation reach the server in the order in which they were
made, however many threads and tasks make them. Its free is the last: output
blocks that still wait then are dropped, as those that come later are, because
the free ends their load anyway.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial

# Bounds: output blocks that wait in one lane, and ids remembered as freed.
MAX_WAITING = 1024
MAX_FREED = 65_536


class Ticket:
    """A place in a lane. turn is done when all calls before it are, or it is unwanted."""

    __slots__ = ("brief", "lane", "last", "late", "turn", "unwanted")

    def __init__(self, lane: str, *, brief: bool = False, last: bool = False, late: bool = False) -> None:
        self.lane = lane
        self.turn: Future[None] = Future()
        self.last = last  # a free
        self.late = late  # an output block, which is nothing behind a free
        # A call that the server answers at once: a free does not wait long for it.
        self.brief = brief or late
        # A free is under way meanwhile: the call is not to be made, or not again.
        self.unwanted = False


class Lanes:
    """The lanes of all ids in use. Safe for threads; nothing blocks.

    The garbage collector may end a dropped call, which gives its place up, at any
    allocation: also of a thread that is changing a lane. So changes are queued,
    and made one after the other; an interrupted one is made again. Who makes a
    ticket and takes its place inside of a try, to leave it in the end, leaves
    nothing wherever an interrupt comes.
    """

    def __init__(self) -> None:
        # Changes to be made, the first perhaps half way. Each may be made twice.
        self._changes: deque[Callable[[], None]] = deque()
        # Guards all below. Its owner may find itself inside of a change, and leaves
        # its own to the frame that makes that one.
        self._lock = threading.RLock()
        self._changing = False
        self._lanes: dict[str, deque[Ticket]] = {}
        self._freed: OrderedDict[str, None] = OrderedDict()
        self.dropped = 0  # output blocks that found their lane full

    def take(self, ticket: Ticket) -> None:
        """Takes the next place for it, unless it has or had one.

        Behind that of a free, output blocks of this id are late. One that is late,
        or finds too many that wait, is unwanted from the start.
        """
        self._do(partial(self._enter, ticket))

    def enter(self, lane: str, *, brief: bool = False) -> Ticket:
        """Takes the next place."""
        return self._taken(Ticket(lane, brief=brief))

    def enter_late(self, lane: str) -> Ticket | None:
        """Takes a place for an output block; None if it is too late or too many wait."""
        ticket = self._taken(Ticket(lane, late=True))
        return None if ticket.unwanted else ticket

    def enter_last(self, lane: str) -> Ticket:
        """Takes a place for the free."""
        return self._taken(Ticket(lane, last=True))

    def _taken(self, ticket: Ticket) -> Ticket:
        try:
            self.take(ticket)
        except BaseException:
            self.leave(ticket)
            raise
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Gives a place up, whether its turn has come or not; once more does nothing."""
        self._do(partial(self._leave, ticket))

    def overtake(self, ticket: Ticket) -> bool:
        """Waits no longer for the brief calls and the free ahead, which are unwanted now.

        A booking has to be waited for, and with it the frees behind it. True: there
        is such a free, which may have to be overtaken when its turn has come.
        """
        self._do(partial(self._overtake, ticket))
        with self._lock:
            return any(other.last for other in self._ahead(ticket))

    def close(self, lane: str) -> None:
        """From now on, output blocks of this id are late; those that wait are dropped."""
        self._do(partial(self._close, lane))

    def open(self, lane: str) -> None:
        """The id is booked anew."""
        self._do(partial(self._open, lane))

    # The changes

    def _do(self, change: Callable[[], None]) -> None:
        self._changes.append(change)
        with self._lock:
            if self._changing:
                return
            try:
                self._changing = True
                while self._changes:
                    try:
                        self._changes[0]()
                    except Exception:  # a fault, not an interrupt: it would come again
                        self._changes.popleft()
                        raise
                    self._changes.popleft()
            finally:
                self._changing = False

    def _enter(self, ticket: Ticket) -> None:
        if ticket.turn.done():
            return
        waiting = self._lanes.get(ticket.lane, ())
        if ticket not in waiting:
            if ticket.late and ticket.lane in self._freed:
                self._refuse(ticket)
                return
            if ticket.late and len(waiting) >= MAX_WAITING:
                self.dropped += 1
                self._refuse(ticket)
                return
            self._lanes.setdefault(ticket.lane, deque()).append(ticket)
        if ticket.last:
            self._close(ticket.lane)
        _come(self._lanes[ticket.lane][0])

    def _refuse(self, ticket: Ticket) -> None:
        ticket.unwanted = True
        _come(ticket)

    def _leave(self, ticket: Ticket) -> None:
        queue = self._lanes.get(ticket.lane)
        if queue is None:
            return
        if ticket in queue:
            queue.remove(ticket)
        if queue:
            _come(queue[0])
        else:
            del self._lanes[ticket.lane]

    def _overtake(self, ticket: Ticket) -> None:
        passed = [other for other in self._ahead(ticket) if other.brief or (other.last and other.turn.done())]
        for other in passed:  # all, before any of them has its turn
            other.unwanted = True
        for other in reversed(passed):
            _come(other)
            self._leave(other)

    def _ahead(self, ticket: Ticket) -> list[Ticket]:
        queue = list(self._lanes.get(ticket.lane, ()))
        return queue[: queue.index(ticket)] if ticket in queue else []

    def _close(self, lane: str) -> None:
        self._freed[lane] = None
        self._freed.move_to_end(lane)
        if len(self._freed) > MAX_FREED:
            self._freed.popitem(last=False)
        for ticket in list(self._lanes.get(lane, ())):
            if ticket.late:
                ticket.unwanted = True
                if not ticket.turn.done():
                    _come(ticket)
                    self._leave(ticket)

    def _open(self, lane: str) -> None:
        self._freed.pop(lane, None)


def _come(ticket: Ticket) -> None:
    if not ticket.turn.done():
        with suppress(InvalidStateError):  # a finalizer inside of this one
            ticket.turn.set_result(None)
