"""One ordered queue per reservation id.

Calls about one reservation reach the server in the order in which they were
made, however many threads and tasks make them: an output block cannot overtake
the free, and one that comes after it is dropped here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from concurrent.futures import Future

# Bounds: output blocks that wait in one lane, and ids remembered as freed.
MAX_WAITING = 1024
MAX_FREED = 65_536


class Ticket:
    """A place in a lane. turn is done when all calls before it are."""

    __slots__ = ("lane", "left", "turn")

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.turn: Future[None] = Future()
        self.left = False  # guarded by the lanes


class Lanes:
    """The lanes of all ids in use. Safe for threads; nothing blocks."""

    def __init__(self) -> None:
        # Guards all below; held for memory work only.
        self._lock = threading.Lock()
        self._lanes: dict[str, deque[Ticket]] = {}
        self._freed: OrderedDict[str, None] = OrderedDict()
        self.dropped = 0  # output blocks that found their lane full

    def enter(self, lane: str) -> Ticket:
        """Takes the next place."""
        with self._lock:
            return self._enter(lane)

    def enter_late(self, lane: str) -> Ticket | None:
        """Takes a place for an output block; None if it is too late or too many wait."""
        with self._lock:
            if lane in self._freed:
                return None
            if len(self._lanes.get(lane, ())) >= MAX_WAITING:
                self.dropped += 1
                return None
            return self._enter(lane)

    def _enter(self, lane: str) -> Ticket:
        ticket = Ticket(lane)
        queue = self._lanes.setdefault(lane, deque())
        queue.append(ticket)
        if queue[0] is ticket:
            ticket.turn.set_result(None)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Gives a place up, whether its turn has come or not; once more does nothing."""
        following = None
        with self._lock:
            if ticket.left:
                return
            ticket.left = True
            queue = self._lanes[ticket.lane]
            first = queue[0] is ticket
            queue.remove(ticket)
            if not queue:
                del self._lanes[ticket.lane]
            elif first:
                following = queue[0]
        if following is not None:
            following.turn.set_result(None)

    def close(self, lane: str) -> None:
        """From now on, output blocks of this id are late."""
        with self._lock:
            self._freed[lane] = None
            self._freed.move_to_end(lane)
            if len(self._freed) > MAX_FREED:
                self._freed.popitem(last=False)

    def open(self, lane: str) -> None:
        """The id is booked anew."""
        with self._lock:
            self._freed.pop(lane, None)

    def is_closed(self, lane: str) -> bool:
        """Whether the id was freed and not booked again."""
        with self._lock:
            return lane in self._freed
