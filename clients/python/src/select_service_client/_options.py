"""How the server is spoken to, and the HTTP clients for it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from ._credentials import Credentials
from ._plan import Retry
from ._types import Dialect

# Notices within a minute that the server's host is gone, where no read time-out does.
_KEEP_ALIVE: list[tuple[int, int, int]] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
if hasattr(socket, "TCP_KEEPIDLE"):
    _KEEP_ALIVE += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ]
if hasattr(socket, "TCP_USER_TIMEOUT"):  # probes are not sent while a request is not acknowledged
    _KEEP_ALIVE.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000))


@dataclass(frozen=True, slots=True)
class Options:
    """How the server is spoken to.

    prefix goes before every path: "" suits Dynamo's own services and the names
    that a server was started with, None the dialect's prefix. Times are in seconds
    and for one attempt; selections may have to wait in the server's queue, so
    theirs is another, None for as long as the server takes.
    """

    url: str
    dialect: Dialect = "1.6"
    prefix: str | None = None
    timeout: float = 30.0
    connect_timeout: float = 2.0
    selection_timeout: float | None = None
    retry: Retry = field(default_factory=Retry)
    headers: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials = field(default_factory=lambda: Credentials().or_environment())

    def check(self) -> None:
        """Raises ValueError for what could never work."""
        if self.dialect not in ("1.3", "1.6"):
            raise ValueError(f"dialect must be '1.3' or '1.6', got {self.dialect!r}")
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ValueError(f"invalid URL {self.url!r}: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"the URL must begin with http:// or https:// and a host, got {self.url!r}")
        check_headers(self.headers)
        self.credentials.check()
        self._tls()  # certificates that cannot be read

    def http(self, read: float | None = None) -> dict[str, Any]:
        """What an HTTP client is made with. Proxies of the environment are not used."""
        timeout = self.timeout if read is None else read
        return {
            **self._tls(),
            "base_url": self.url,
            "headers": dict(self.headers),
            "auth": self.credentials.auth(),
            "timeout": httpx.Timeout(timeout, connect=min(timeout, self.connect_timeout)),
            "limits": _LIMITS,
            "trust_env": False,
        }

    def client(self, read: float | None = None) -> httpx.Client:
        """An HTTP client that blocks."""
        transport = httpx.HTTPTransport(
            **self._tls(), limits=_LIMITS, trust_env=False, socket_options=_KEEP_ALIVE
        )
        return httpx.Client(**self.http(read), transport=transport)

    def async_client(self) -> httpx.AsyncClient:
        """An HTTP client for an event loop."""
        transport = httpx.AsyncHTTPTransport(
            **self._tls(), limits=_LIMITS, trust_env=False, socket_options=_KEEP_ALIVE
        )
        return httpx.AsyncClient(**self.http(), transport=transport)

    def _tls(self) -> dict[str, Any]:
        # Redirects are not followed: with http there is never any TLS to set up.
        if not self.url.startswith("https:"):
            return {"verify": False}
        context = self.credentials.context()
        return {} if context is None else {"verify": context}


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises ValueError for values that cannot be sent."""
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"the header {name} must be printable ASCII, got {value!r}")


# As many connections as calls: selections that wait in the server's queue must not
# keep the frees, which they wait for, from being made.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
