"""How the server proves who it is, and how this program does."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

# How old a token that was read from a file may be, in seconds.
_TOKEN_AGE = 1.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files and texts for TLS and for tokens.

    ca is a file (PEM) with the server's authorities, by default those that httpx has;
    cert and key are the files of the certificate that is shown to the server. The
    three are read when a client is made. token is sent with each request; token_file
    has it instead, and is read again when it changes. What is not given is taken from
    the environment: SELECT_SERVICE_CA, SELECT_SERVICE_CERT, SELECT_SERVICE_KEY,
    SELECT_SERVICE_TOKEN, SELECT_SERVICE_TOKEN_FILE.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None

    def or_environment(self, environment: Mapping[str, str] = os.environ) -> Credentials:
        """With what is not given from the environment."""

        def variable(name: str) -> str | None:
            return environment.get(f"SELECT_SERVICE_{name}") or None

        filled = replace(self, ca=self.ca or variable("CA"))
        if not (self.cert or self.key):
            filled = replace(filled, cert=variable("CERT"), key=variable("KEY"))
        if not (self.token or self.token_file):
            token = variable("TOKEN")
            filled = replace(filled, token=token, token_file=None if token else variable("TOKEN_FILE"))
        return filled

    def check(self) -> None:
        """Raises ValueError for what could never work, without its secrets."""
        if bool(self.cert) != bool(self.key):
            raise ValueError("credentials: cert and key belong together")
        if self.token and self.token_file:
            raise ValueError("credentials: give token or token_file, not both")
        if self.token:
            _check_token(self.token)

    def context(self) -> ssl.SSLContext | None:
        """What connections are made with; None for httpx's own."""
        if not (self.ca or self.cert):
            return None
        files = [self.ca]
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                files = [self.cert, self.key]
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:  # it names no file
            raise ValueError(f"credentials: {', '.join(filter(None, files))}: {error}") from error
        return context

    def auth(self) -> httpx.Auth | None:
        """What adds the token to requests; None for none."""
        return Bearer(self.token, self.token_file) if self.token or self.token_file else None


class Bearer(httpx.Auth):
    """Adds a token to requests. Safe for threads."""

    def __init__(self, token: str | None, path: str | None) -> None:
        self._token, self._path = token or "", path
        self._read = -_TOKEN_AGE
        self._lock = threading.Lock()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["authorization"] = f"Bearer {self._current()}"
        yield request

    def _current(self) -> str:
        if self._path is None:
            return self._token
        with self._lock:
            now = time.monotonic()
            if now - self._read >= _TOKEN_AGE:
                try:
                    token = Path(self._path).read_text("ascii").strip()
                    _check_token(token)
                    self._token, self._read = token, now
                except (OSError, ValueError) as error:  # it may be being replaced
                    if not self._token:
                        text = f"credentials: no token in {self._path}: {error}"
                        raise httpx.LocalProtocolError(text) from error
            return self._token


def _check_token(token: str) -> None:
    if not token or not all("!" <= c <= "~" for c in token):
        raise ValueError("credentials: a token is one line of visible ASCII characters without spaces")
