"""The exceptions cross process borders whole, as Ray's actors need it."""

from __future__ import annotations

import pickle

import pytest

import select_service_client
from select_service_client import AccessDenied, ConnectionFailed, Overloaded, QueueFull, SelectServiceError
from select_service_client._errors import error_of
from select_service_client.dynamo import SelectionServiceError

KINDS = [
    value
    for value in vars(select_service_client).values()
    if isinstance(value, type) and issubclass(value, SelectServiceError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_pickle(kind: type[SelectServiceError]) -> None:
    error = kind("text", 409, {"limit": 2**64 - 1})
    error.__cause__ = ValueError("not carried")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.error, copy.status, copy.details, copy.kind) == (
        "text",
        409,
        {"limit": 2**64 - 1},
        kind.kind,
    )
    assert str(copy) == str(error) == "409: text"


def test_pickle_of_the_rest() -> None:
    assert pickle.loads(pickle.dumps(ConnectionFailed("no", sent=False))).sent is False
    dynamo = pickle.loads(pickle.dumps(SelectionServiceError("gone", "not_found", 404)))
    assert (str(dynamo), dynamo.kind, dynamo.status_code) == ("gone", "not_found", 404)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, b'{"error":"e","type":"service_unavailable","code":503}', Overloaded),
        (503, b'{"error":"e","details":{"current":1}}', QueueFull),
        (401, b'{"error":"e"}', AccessDenied),
        (403, b'{"error":"e"}', AccessDenied),
        (429, b'{"error":"e","details":{"current":1}}', QueueFull),
        (503, b'{"error":"e"}', select_service_client.Unavailable),
        (422, b'{"error":"e"}', select_service_client.BadRequest),
        (500, b'{"error":"e"}', select_service_client.ServerError),
        (502, b"<html>bad gateway</html>", select_service_client.UnexpectedAnswer),
        (404, b"[]", select_service_client.UnexpectedAnswer),
    ],
)
def test_kind_of_an_answer(status: int, body: bytes, kind: type[SelectServiceError]) -> None:
    error = error_of(status, body)
    assert type(error) is kind
    assert error.status == status
