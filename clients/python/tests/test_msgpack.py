"""Requests in msgpack: what JSON says, in less, and JSON where that is not known."""

from __future__ import annotations

import http.server
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from conftest import QUICK
from select_service_client import BadRequest, Client, _json, _msgpack
from server import Server, eventually


def from_msgpack(content: bytes) -> Any:
    """A reader of what the client writes."""
    value, rest = _value(memoryview(content))
    assert not rest
    return value


def _value(b: memoryview) -> tuple[Any, memoryview]:
    code, b = b[0], b[1:]

    def take(n: int) -> bytes:
        nonlocal b
        taken, b = bytes(b[:n]), b[n:]
        return taken

    def number(n: int, signed: bool = False) -> int:
        return int.from_bytes(take(n), "big", signed=signed)

    if code < 0x80:
        return code, b
    if code < 0x90 or code in (0xDE, 0xDF):
        count = code & 0x0F if code < 0x90 else number(2 if code == 0xDE else 4)
        members = {}
        for _ in range(count):
            name, b = _value(b)
            members[name], b = _value(b)
        return members, b
    if code < 0xA0 or code in (0xDC, 0xDD):
        count = code & 0x0F if code < 0xA0 else number(2 if code == 0xDC else 4)
        items = []
        for _ in range(count):
            item, b = _value(b)
            items.append(item)
        return items, b
    if code < 0xC0 or code == 0xDB:
        return take(code & 0x1F if code < 0xC0 else number(4)).decode(), b
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], b
    if code == 0xC6:
        return take(number(4)), b
    if code == 0xCB:
        return struct.unpack(">d", take(8))[0], b
    return number(8, signed=code == 0xD3), b


def test_the_same_members_as_json() -> None:
    rest = {
        "model_name": "ü" * 40,
        "lora_name": None,
        "is_eagle": True,
        "isl_tokens": 2**48,
        "priority_jump": -1.5,
        "strict_priority": 127,
        "block_mm_infos": [None, {"mm_objects": [{"mm_hash": 2**64 - 1, "offsets": [[0, -7]]}]}],
        "taints": list(range(20)),
        "kv_events_endpoints": {0: "a", 1: "b"},
        **{f"x{i}": i for i in range(20)},
    }
    packed = _msgpack.encode(
        {**rest, "token_ids": range(3), "block_hashes": [-1, 2**64 - 1], "sequence_hashes": []}
    )
    assert packed is not None
    content, same = packed
    words = {"token_ids": b"\0\0\0\0\1\0\0\0\2\0\0\0", "block_hashes": b"\xff" * 16, "sequence_hashes": b""}
    assert from_msgpack(content) == {**json.loads(json.dumps(rest)), **words}
    assert json.loads(_json.encode(same))["token_ids"] == [0, 1, 2]
    assert from_msgpack(_msgpack.add(content, "if_exists", "return"))["if_exists"] == "return"
    for members in range(13, 18):
        content, _ = _msgpack.encode({**{str(i): i for i in range(members)}, "token_ids": []}) or (b"", {})
        assert len(from_msgpack(_msgpack.add(content, "a", "b"))) == members + 2


@pytest.mark.parametrize("tokens", [[-1], [1.5], ["1"], [2**32], [None], {"a": 1}, 7])
def test_what_is_no_word_is_sent_as_json(tokens: Any) -> None:
    assert _msgpack.encode({"token_ids": tokens}) is None


class JSONOnly(http.server.BaseHTTPRequestHandler):
    """A service that knows only JSON; it keeps the types of bodies."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        kind = self.headers["content-type"]
        self.seen.append(kind)
        answer = (
            b'{"worker_id": 1, "selection_id": "r"}'
            if kind == "application/json"
            else b'{"error": "JSON only"}'
        )
        self.send_response(200 if kind == "application/json" else 415)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def json_only() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), JSONOnly)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_knows_only_json_is_asked_once() -> None:
    JSONOnly.seen.clear()
    with json_only() as url, Client(url, retry=QUICK) as client:
        for _ in range(3):
            assert client.select(token_ids=[1, 2], block_mm_infos=[None])["worker_id"] == 1
    assert JSONOnly.seen == ["application/msgpack"] + ["application/json"] * 3


def test_the_real_server_reads_it(server: Server) -> None:
    server.add_workers(1)
    with Client(server.url, retry=QUICK) as client:
        booked = client.select_and_reserve(token_ids=range(70_000), selection_id="r")
        assert booked["effective_prefill_tokens"] == 70_000
        assert not client._core.only_json
        with pytest.raises(BadRequest, match="token_ids"):
            client.select(token_ids=[1, -1])
        hashes = client.select(block_hashes=[-1], sequence_hashes=[2**64 - 1], isl_tokens=4)
        assert hashes["worker_id"] == 1
        client.free("r")
    eventually(server.is_idle)
