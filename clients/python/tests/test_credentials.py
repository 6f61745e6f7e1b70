"""TLS and tokens, against the real server."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from select_service_client import Client, ConnectionFailed, Credentials, Retry, SelectServiceError
from select_service_client._plan import Backoff
from server import BINARY, free_port

TOKEN = "a-token-of-the-tests-0123456789"
ONCE = Retry(connection=Backoff(1, 0, 0))


def certificate(folder: Path) -> Credentials:
    """A certificate of 127.0.0.1 that is its own authority."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    what = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    argv = [*what.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run(argv, check=True, capture_output=True)
    return Credentials(ca=cert, cert=cert, key=key)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Credentials]]:
    """A server that demands a certificate and a token, and what it accepts."""
    folder = tmp_path_factory.mktemp("tls")
    own = certificate(folder)
    assert own.ca
    assert own.cert
    assert own.key
    tokens = folder / "tokens.yaml"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tokens.write_text(f"tokens:\n- {{name: test, sha256: {digest}, roles: [operate, call]}}\n")
    port = free_port()
    argv = [BINARY, "--listen", "127.0.0.1", "--port", str(port), "--use-kv-events=false"]
    argv += ["--tls-cert", own.cert, "--tls-key", own.key, "--tls-client-ca", own.ca]
    argv += ["--tokens-file", str(tokens)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    url = f"https://127.0.0.1:{port}"
    context = ssl.create_default_context(cafile=own.ca)
    context.load_cert_chain(own.cert, own.key)
    with httpx.Client(verify=context, trust_env=False) as probe:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                probe.get(url + "/health")
                break
            except httpx.TransportError:
                time.sleep(0.05)
    yield url, own
    process.terminate()
    process.wait()


def test_given(secure: tuple[str, Credentials], tmp_path: Path) -> None:
    url, own = secure
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    by_text = Credentials(own.ca, own.cert, own.key, TOKEN)
    by_file = Credentials(own.ca, own.cert, own.key, token_file=str(path))
    for given in (by_text, by_file):
        with Client(url, credentials=given) as client:
            assert client.list_workers() == []
        assert TOKEN not in repr(given)


def test_environment(secure: tuple[str, Credentials], monkeypatch: pytest.MonkeyPatch) -> None:
    url, own = secure
    for name, value in (("CA", own.ca), ("CERT", own.cert), ("KEY", own.key), ("TOKEN", TOKEN)):
        monkeypatch.setenv(f"SELECT_SERVICE_{name}", value or "")
    with Client(url) as client:
        client.put_worker(worker_id=1, model_name="m", endpoint="http://w", block_size=4)
        with client.lease(model_name="m", token_ids=[1, 2, 3, 4]) as lease:
            lease.prefill_complete()
        client.delete_worker(1)


def test_refused(secure: tuple[str, Credentials], tmp_path: Path) -> None:
    url, own = secure
    for given in (Credentials(own.ca), Credentials(cert=own.cert, key=own.key), certificate(tmp_path)):
        with Client(url, credentials=given, retry=ONCE) as client, pytest.raises(ConnectionFailed):
            client.list_workers()
    for token in (None, "another-token-0123456789"):
        with (
            Client(url, credentials=Credentials(own.ca, own.cert, own.key, token)) as client,
            pytest.raises(SelectServiceError) as refused,
        ):
            client.list_workers()
        assert refused.value.status == 401


def test_wrong() -> None:
    for given in (Credentials(cert="x"), Credentials(token="a", token_file="b"), Credentials(token="a b")):
        with pytest.raises(ValueError, match="credentials: "):
            Client("https://localhost", credentials=given)
    for given in (Credentials(ca="/nowhere"), Credentials(cert="/nowhere", key="/nowhere")):
        with pytest.raises(ValueError, match="credentials: /nowhere"):
            Client("https://localhost", credentials=given)
    with (
        Client("https://localhost", credentials=Credentials(token_file="/nowhere"), retry=ONCE) as client,
        pytest.raises(ValueError, match=r"no token in /nowhere: .*No such file"),
    ):
        client.list_workers()
