"""Requests with prompts in msgpack: tokens and hashes as words, the rest as JSON has it."""

from __future__ import annotations

import array
import json
import struct
import sys
from collections.abc import Mapping
from typing import Any

from . import _json

# The lists that are sent as little-endian words, with the bytes of a word.
_WORDS = {"token_ids": 4, "block_hashes": 8, "sequence_hashes": 8}

_CODES = {array.array(code).itemsize: code for code in "LIQ"}


def encode(request: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]] | None:
    """The request in msgpack, and without iterators, to be sent as JSON after all.

    None if it has no lists of words, or something in them that is none: what is wrong
    with that, the server says.
    """
    words: dict[str, bytes] = {}
    for name, width in _WORDS.items():
        value = request.get(name)
        if value is not None:
            try:
                words[name] = _words(value, width)
            except (TypeError, ValueError, OverflowError):
                return None
    if not words:
        return None
    rest = json.loads(_json.encode({name: value for name, value in request.items() if name not in words}))
    parts = [_length(len(rest) + len(words), 0x80, 0xDE)]
    for name, value in rest.items():
        _append(parts, name)
        _append(parts, value)
    for name, text in words.items():
        _append(parts, name)
        parts.append(struct.pack(">BI", 0xC6, len(text)))
        parts.append(text)
    return b"".join(parts), {**rest, **{name: request[name] for name in words}}


def add(content: bytes, name: str, value: str) -> bytes:
    """A request with one member more."""
    short = content[0] != 0xDE
    count, rest = (
        (content[0] & 0x0F, content[1:]) if short else (int.from_bytes(content[1:3], "big"), content[3:])
    )
    parts = [_length(count + 1, 0x80, 0xDE), rest]
    _append(parts, name)
    _append(parts, value)
    return b"".join(parts)


def _words(value: Any, width: int) -> bytes:
    if width == 8:
        value = [number & _json.MAX_U64 for number in value]  # signed or not, the bits count
    packed = array.array(_CODES[width], value)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _length(count: int, short: int, long: int) -> bytes:
    if count < 16:
        return bytes([short | count])
    return struct.pack(">BH", long, count) if count < 1 << 16 else struct.pack(">BI", long + 1, count)


def _append(parts: list[bytes], value: Any) -> None:
    """Appends what JSON text was read as."""
    if value is None:
        parts.append(b"\xc0")
    elif isinstance(value, bool):
        parts.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        if 0 <= value < 0x80:
            parts.append(bytes([value]))
        elif -(1 << 63) <= value <= _json.MAX_U64:
            parts.append(struct.pack(">Bq", 0xD3, value) if value < 0 else struct.pack(">BQ", 0xCF, value))
        else:
            parts.append(struct.pack(">Bd", 0xCB, value))  # no integer for the server either
    elif isinstance(value, float):
        parts.append(struct.pack(">Bd", 0xCB, value))
    elif isinstance(value, str):
        text = value.encode()
        parts.append(bytes([0xA0 | len(text)]) if len(text) < 32 else struct.pack(">BI", 0xDB, len(text)))
        parts.append(text)
    elif isinstance(value, list):
        parts.append(_length(len(value), 0x90, 0xDC))
        for item in value:
            _append(parts, item)
    else:
        parts.append(_length(len(value), 0x80, 0xDE))
        for name, item in value.items():
            _append(parts, name)
            _append(parts, item)
