"""The exceptions of Dynamo's class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from select_service_client._errors import (
    BadRequest,
    Conflict,
    ConnectionFailed,
    NotFound,
    Overloaded,
    QueueFull,
    SelectServiceError,
    Unavailable,
)

# Where Dynamo is installed its own classes are the bases, so that what catches
# them catches ours. They come from its library, which needs none of its modules.
if TYPE_CHECKING:

    class DynamoException(Exception):
        """The base of Dynamo's exceptions."""

    _Base = DynamoException
else:
    try:
        from dynamo._core import DynamoException
    except ImportError:

        class DynamoException(Exception):
            """The base of Dynamo's exceptions."""

    try:
        from dynamo._core import SelectionServiceError as _Base
    except ImportError:
        _Base = DynamoException


class SelectionServiceError(_Base):
    """A failure that is not malformed input, which is a ValueError.

    kind is a stable word, status_code the HTTP status that the failure stands for.
    """

    def __init__(self, message: str = "", kind: str = "internal", status_code: int = 500) -> None:
        super().__init__(message)
        self.kind = kind
        self.status_code = status_code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.kind, self.status_code)


def translate(error: Exception) -> Exception:
    """The exception that Dynamo's class raises for one of this client."""
    text = getattr(error, "error", str(error))
    if isinstance(error, BadRequest):
        # The only 400 of the scheduler; the others tell of malformed input.
        if text.startswith("pinned worker"):
            return SelectionServiceError(text, "scheduler", 400)
        return ValueError(text)
    if isinstance(error, (TypeError, ValueError)):
        return ValueError(text)
    for kind, (word, status) in _KINDS.items():
        if isinstance(error, kind):
            return SelectionServiceError(text, word, status)
    if isinstance(error, Unavailable):
        word = "scheduler" if text.startswith(("no endpoints", "pinned worker")) else "not_ready"
        return SelectionServiceError(text, word, 503)
    if isinstance(error, SelectServiceError):
        return SelectionServiceError(text, "internal", error.status or 500)
    return error


_KINDS: dict[type[Exception], tuple[str, int]] = {
    NotFound: ("not_found", 404),
    Conflict: ("conflict", 409),
    QueueFull: ("scheduler", 429),
    Overloaded: ("scheduler", 503),
    ConnectionFailed: ("not_ready", 503),
}
