"""Client of select-service: chooses LLM workers and books their load.

Client blocks, AsyncClient is awaited; both have every route of the service, the
slot tracker under .slots and Mooncake's indexer API under .conductor. lease() is
the way to book that cannot leak. select_service_client.dynamo has the class that
Dynamo's callers, such as Ray Serve LLM, expect.
"""

from ._client import AsyncClient, Client
from ._errors import (
    BadRequest,
    Conflict,
    ConnectionFailed,
    NotFound,
    Overloaded,
    QueueFull,
    SelectServiceError,
    ServerError,
    Unavailable,
    UnexpectedAnswer,
)
from ._lease import AsyncLease, Lease
from ._plan import Backoff, Retry

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "Backoff",
    "BadRequest",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Lease",
    "NotFound",
    "Overloaded",
    "QueueFull",
    "Retry",
    "SelectServiceError",
    "ServerError",
    "Unavailable",
    "UnexpectedAnswer",
]
