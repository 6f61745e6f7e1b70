"""What requests may hold, and what types and tools see of the package."""

from __future__ import annotations

import inspect
import pickle
from typing import Any
from unittest.mock import create_autospec

import httpx
import pytest
import typing_extensions

import select_service_client
from conftest import MakeClient
from select_service_client import Client, ConnectionFailed, SelectServiceError, WorkerRequest
from server import Server, relay


@pytest.mark.parametrize("tokens", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc"])
def test_text_is_no_prompt(make: MakeClient, fleet: Server, tokens: Any) -> None:
    with pytest.raises(TypeError, match="token_ids"):
        make(fleet.url).select(token_ids=tokens)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_numbers_have_64_bits(make: MakeClient, fleet: Server, number: int) -> None:
    client = make(fleet.url)
    with pytest.raises(ValueError, match="64 bits"):
        client.overlap_scores(sequence_hashes=[number], isl_tokens=4)
    with pytest.raises(ValueError, match="64 bits"):
        client.slots.potential_loads("default", [number])


@pytest.mark.parametrize("url", ["localhost:8092", "127.0.0.1:8092", "ftp://host", "http://", "http://a:b"])
def test_wrong_url(make: MakeClient, url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        make(url)


@pytest.mark.parametrize("name", ["a\nb", "é"])
def test_wrong_header(make: MakeClient, fleet: Server, name: str) -> None:
    """It is refused at once, and no booking is looked for."""
    client = make(fleet.url)
    for call in (client.select, client.select_and_reserve):
        with pytest.raises(ValueError, match="header"):
            call(token_ids=[1], policy_class=name)
    assert client._core.held() == set()
    with pytest.raises(ValueError, match="header"):
        make(fleet.url, headers={"authorization": name})


def test_iterator_as_a_prompt(make: MakeClient, fleet: Server) -> None:
    """It is whole in the repetition, too."""
    lost: list[str] = []

    def fate(method: str, path: str) -> str:
        if path.endswith("/select_and_reserve"):
            lost.append(path)
        return "lose" if len(lost) == 1 else "pass"

    with relay(fleet, fate) as url:
        client = make(url)
        booked = client.select_and_reserve(token_ids=(token for token in range(9)))
        assert booked["isl_tokens"] == 9
        client.free(client.booking_id(booked))


def test_errors_of_the_caller_pass_a_dump(make: MakeClient, fleet: Server) -> None:
    """Only the dump's own failures are the client's errors."""
    client = make(fleet.url)
    with pytest.raises(httpx.ReadTimeout), client.dump_stream():
        raise httpx.ReadTimeout("of another server")
    with (
        relay(fleet, lambda *_: "refuse") as url,
        pytest.raises(ConnectionFailed, match="dump"),
        make(url).dump_stream(),
    ):
        pytest.fail("there is no dump")


def test_answer_that_cannot_be_decoded() -> None:
    def garbage(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))

    client = Client("http://localhost:9", retry=select_service_client.Retry(deadline=0.1))
    client._core._http = httpx.Client(transport=httpx.MockTransport(garbage), base_url="http://localhost:9")
    with pytest.raises(SelectServiceError, match="DecodingError"):
        client.loads()
    client.close()


def test_pickled_errors_keep_what_was_added() -> None:
    error: Any = ConnectionFailed("no", sent=False)
    error.request = "r"
    error.__notes__ = ["seen by nobody"]
    copy: Any = pickle.loads(pickle.dumps(error))
    assert (copy.sent, copy.request, copy.__notes__) == (False, "r", ["seen by nobody"])


def test_types_at_run_time() -> None:
    """Tools that make schemas of types can read them."""
    for name in select_service_client.__all__:
        value = getattr(select_service_client, name)
        if typing_extensions.is_typeddict(value):
            assert typing_extensions.get_type_hints(value)
    assert typing_extensions.get_type_hints(WorkerRequest)["worker_id"] is int


def test_autospec() -> None:
    """A mock of the client has its methods, and tools see their arguments."""
    mock = create_autospec(Client)("http://localhost:9")
    mock.free("r")
    mock.select(token_ids=[1])
    with pytest.raises(AttributeError):
        mock.choose(token_ids=[1])
    assert list(inspect.signature(Client.free).parameters) == ["self", "booking"]


def test_operation_as_a_function(fleet: Server) -> None:
    with Client(fleet.url) as client:
        assert Client.loads(client) == client.loads()
