"""The exceptions: each pickles, and carries what the server said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar


class SelectServiceError(Exception):
    """Base of everything that this client raises about a call.

    status is the HTTP status, None where there was no answer. error is the
    server's text, details its `details` object if it sent one. kind is a stable
    word for the class of the error, as Dynamo's Python class has it.
    """

    kind: ClassVar[str] = "unexpected"

    def __init__(
        self, error: str, status: int | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(error)
        self.error = error
        self.status = status
        self.details = dict(details) if details is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        # With notes and whatever was added.
        return type(self), (self.error, self.status, self.details), self.__dict__

    def __str__(self) -> str:
        return self.error if self.status is None else f"{self.status}: {self.error}"


class BadRequest(SelectServiceError):
    """400, 413, 415, 422: the request itself is wrong; a repeat would be as well."""

    kind = "bad_request"


class AccessDenied(SelectServiceError):
    """401, 403: no token or a wrong one, or a role, tenant or model that it does not have."""

    kind = "access_denied"


class NotFound(SelectServiceError):
    """404: no such worker, reservation, kept selection, model or route."""

    kind = "not_found"


class RouteNotFound(NotFound):
    """404: the server does not have this route, whatever it is about."""


class Conflict(SelectServiceError):
    """409: the id is taken by another request, or the catalog is not yours to change."""

    kind = "conflict"


class Unavailable(SelectServiceError):
    """503 that is no matter of load: no worker fits, or the service shuts down."""

    kind = "not_ready"


class Overloaded(SelectServiceError):
    """503: every eligible worker is above a threshold, still so after all attempts."""

    kind = "overloaded"


class QueueFull(Overloaded):
    """429 or 503 with details: a limit of the wait queue."""

    kind = "queue_rejected"


class ServerError(SelectServiceError):
    """500 and other faults of the server."""

    kind = "internal"


class UnexpectedAnswer(SelectServiceError):
    """An answer that is not the service's: another server, or a proxy's page."""


class ConnectionFailed(SelectServiceError):
    """No answer. If sent, the request may have reached the server and taken effect."""

    kind = "connection"

    def __init__(
        self,
        error: str,
        status: int | None = None,
        details: Mapping[str, Any] | None = None,
        *,
        sent: bool = True,
    ) -> None:
        super().__init__(error, status, details)
        self.sent = sent


_BY_STATUS: dict[int, type[SelectServiceError]] = {
    400: BadRequest,
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    405: BadRequest,
    409: Conflict,
    413: BadRequest,
    415: BadRequest,
    422: BadRequest,
    429: QueueFull,
    503: Unavailable,
}


def is_overload(status: int, content: bytes) -> bool:
    """Whether this is a refusal for load, which is worth another attempt."""
    return status == 503 and _object(content).get("type") == "service_unavailable"


def error_of(status: int, content: bytes) -> SelectServiceError:
    """The exception for an answer that is no success."""
    body = _object(content)
    text = body.get("error")
    if not isinstance(text, str):
        page = content[:200].decode(errors="replace")
        return UnexpectedAnswer(f"HTTP {status} without an error of the service: {page!r}", status)
    details = body.get("details")
    kind = _BY_STATUS.get(status, ServerError)
    if is_overload(status, content):
        kind = Overloaded
    elif status == 503 and isinstance(details, dict):
        kind = QueueFull
    elif status == 404 and text == "route not found":
        kind = RouteNotFound
    return kind(text, status, details if isinstance(details, dict) else None)


def _object(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
