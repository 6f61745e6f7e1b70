"""What a call has made while its caller gave it up."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Handover:
    """Undoes what was made if nobody takes it, whichever of the two comes first.

    A future can be cancelled when its call is over already and the result is on
    its way to the caller's event loop. Then the call does not learn of it.
    """

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo
        # Guards seen.
        self._lock = threading.Lock()
        self._seen = 0

    def made(self) -> None:
        """The call has taken effect; said at most once."""
        self._note()

    def given_up(self) -> None:
        """The caller does not take the result; said at most once."""
        self._note()

    def _note(self) -> None:
        with self._lock:
            self._seen += 1
            both = self._seen == 2
        if both:
            self._undo()
