"""JSON as the service wants it: exact 64-bit numbers, string keys."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ._errors import UnexpectedAnswer

MAX_U64 = 2**64 - 1


def worker_id(value: Any) -> int:
    """A worker's id: an unsigned 64-bit integer.

    A float has lost digits and a bool is a mistake, so both are refused, as are
    strings; integers of other libraries are taken.
    """
    number = integer(value, "worker_id")
    if number < 0:
        raise ValueError(f"worker_id must be between 0 and 2**64 - 1, got {number}")
    return number


def integer(value: Any, name: str) -> int:
    """An exact integer of any library, of at most 64 bits with or without a sign."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if not -(2**63) <= number <= MAX_U64:
        raise ValueError(f"{name} must have at most 64 bits, got {number}")
    return number


def by_rank(value: Mapping[Any, Any], name: str) -> dict[str, Any]:
    """A map whose keys are ranks, as integers or in decimal."""
    result: dict[str, Any] = {}
    for rank, item in value.items():
        key = rank if isinstance(rank, str) else str(integer(rank, f"a rank of {name}"))
        if key in result:
            raise ValueError(f"{name} names rank {key} twice")
        result[key] = item
    return result


def body(request: Mapping[str, Any]) -> dict[str, Any]:
    """Checks and converts the members that JSON alone would get wrong."""
    result = dict(request)
    for name, convert in _CONVERT.items():
        if result.get(name) is not None:
            result[name] = convert(result[name], name)
    return result


def encode(value: Any) -> bytes:
    """JSON text; NaN and infinity are refused."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_default).encode()


def decode(content: bytes) -> Any:
    """The value of an answer; integers are exact."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise UnexpectedAnswer(f"the answer is not JSON: {content[:200]!r}") from error


def _default(value: Any) -> Any:
    if hasattr(value, "tolist"):  # arrays and numbers of numpy and its like
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return operator.index(value)


def _tokens(value: Any, name: str) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview, str)):  # a text is not its tokens
        raise TypeError(f"{name} must be integers, got {type(value).__name__}")
    return list(value) if isinstance(value, Iterator) else value


def _integers(value: Iterable[Any], name: str) -> list[int]:
    return [integer(item, name) for item in value]


def _worker_ids(value: Iterable[Any], name: str) -> list[int]:
    return [worker_id(item) for item in value]


def _pinned(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**value, "worker_id": worker_id(value["worker_id"])}


def _workers(value: Iterable[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    return [body(item) for item in value]


_CONVERT: dict[str, Any] = {
    "token_ids": _tokens,
    "worker_id": lambda value, name: worker_id(value),
    "allowed_worker_ids": _worker_ids,
    "pinned_worker": _pinned,
    "affinity_target": _pinned,
    "sequence_hashes": _integers,
    "block_hashes": _integers,
    "seq_hashes": _integers,
    "kv_events_endpoints": by_rank,
    "replay_endpoints": by_rank,
    "load_endpoints": by_rank,
    "workers": _workers,
}
