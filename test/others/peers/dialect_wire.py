"""Calls over a connection that stays, and what of their answers is comparable."""

import http.client
import json
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from programs import Answer

JSON = "application/json"


@dataclass(frozen=True)
class Call:
    """A request: body is JSON text, or what becomes it, or nothing."""

    method: str
    path: str
    body: object = None
    headers: dict = field(default_factory=dict)

    @property
    def route(self) -> str:
        return urlsplit(self.path).path

    @property
    def fields(self) -> dict:
        """The body's members, as far as it has any."""
        return self.body if isinstance(self.body, dict) else {}

    def __str__(self) -> str:
        headers = "".join(f" -H '{name}: {value}'" for name, value in self.headers.items())
        return f"{self.method} {self.path}{headers} {'' if self.body is None else self.text()}"

    def text(self) -> str:
        return self.body if isinstance(self.body, str) else json.dumps(self.body)


class Wire:
    """One connection to a service, whose routes begin with a prefix."""

    def __init__(self, url: str, prefix: str = ""):
        self._address, self._prefix = urlsplit(url).netloc, prefix
        self._connection = http.client.HTTPConnection(self._address, timeout=30)

    def send(self, call: Call) -> Answer:
        body = None if call.body is None else call.text().encode()
        headers = {"content-type": JSON} | call.headers
        headers = {name: value for name, value in headers.items() if value is not None}
        try:
            self._connection.request(call.method, self._prefix + call.path, body, headers)
            response = self._connection.getresponse()
            answer = Answer(response.status, _decoded(response.read()))
            # If the body was not read the connection ends with it.
            if answer.status >= 400 or call.route.endswith("/prefill_complete"):
                self._connection.close()
            return answer
        except BaseException:
            self._connection.close()  # the next call opens it again
            raise

    def get(self, path: str):
        answer = self.send(Call("GET", path))
        assert answer.status in (200, 503), (path, answer)
        return answer.body

    def beside(self) -> "Wire":
        """Another connection to the same routes."""
        return Wire(f"http://{self._address}", self._prefix)

    def close(self) -> None:
        self._connection.close()


def _decoded(body: bytes):
    try:
        return json.loads(body or b"null")
    except ValueError:
        return body.decode(errors="replace")


# What parsers say is not compared, only that they refuse alike.
_PARSED = re.compile(r"^(Failed to |Expected request with |Invalid URL: )")
_PORT = re.compile(r"(invalid TCP port): .*")


def comparable(call: Call, answer: Answer) -> Answer:
    """The answer without what the contract leaves open: the order of some
    lists, and the texts of parsers."""
    body = answer.body
    if isinstance(body, dict) and isinstance(text := body.get("error"), str):
        body = body | {"error": "parser" if _PARSED.match(text) else _PORT.sub(r"\1", text)}
    elif isinstance(body, str) and _PARSED.match(body):
        body = "parser"
    elif answer.status < 300 or call.route == "/ready":
        body = _ordered(call.route, body)
    return Answer(answer.status, body)


def _ordered(route: str, body):
    if route == "/potential_loads":
        return sorted(body, key=rank)
    if route == "/loads":
        return [scope | {"loads": sorted(scope["loads"], key=rank)} for scope in body]
    if route == "/dump":
        # keys_shown is ours alone, which the peer ignores.
        return {
            scope: {key: value for key, value in dump.items() if key != "keys_shown"} | {"events": blocks(dump["events"])}
            for scope, dump in body.items()
        }
    if route == "/workers" and isinstance(body, list):
        return [_record(record) for record in body]
    if route == "/ready":
        return body | {"workers": [_record(record) for record in body["workers"]]}
    if isinstance(body, dict) and "lifecycle" in body:
        return _record(body)
    return body


def rank(row: dict) -> tuple[int, int]:
    return row["worker_id"], row["dp_rank"]


def ranks_of(record: dict) -> range:
    """The ranks of a worker."""
    start = record["data_parallel_start_rank"] or 0
    return range(start, start + (1 if record["data_parallel_size"] is None else record["data_parallel_size"]))


def _record(record: dict) -> dict:
    reasons = [_PORT.sub(r"\1", reason) for reason in record.get("not_schedulable_reasons", [])]
    return record | {"taints": sorted(record["taints"])} | ({"not_schedulable_reasons": reasons} if reasons else {})


def blocks(events: list[dict]) -> list[tuple]:
    """The single blocks of a dump: who has which block behind which in a tier."""
    rows = []
    for entry in events:
        stored = entry["event"]["data"]["stored"]
        parent = stored["parent_hash"]
        for block in stored["blocks"]:
            rows.append(
                (
                    entry["worker_id"],
                    entry["event"]["dp_rank"],
                    entry["storage_tier"],
                    parent,
                    block["block_hash"],
                    block["tokens_hash"],
                )
            )
            parent = block["block_hash"]
    return sorted(rows, key=str)


def differences(ours, theirs, where: str = "") -> list[str]:
    """Where two answers' bodies differ."""
    if type(ours) is type(theirs) is dict:
        keys = [*theirs, *(key for key in ours if key not in theirs)]
        pairs = [(f"{where}.{key}", ours.get(key, "(none)"), theirs.get(key, "(none)")) for key in keys]
    elif type(ours) is type(theirs) is list and len(ours) == len(theirs):
        pairs = [(f"{where}[{number}]", *both) for number, both in enumerate(zip(ours, theirs, strict=True))]
    elif type(ours) is type(theirs) is list:
        return [f"{where}: only ours {row}" for row in ours if row not in theirs] + [
            f"{where}: only the peer's {row}" for row in theirs if row not in ours
        ]
    else:
        return [] if ours == theirs else [f"{where}: ours {ours!r}, the peer's {theirs!r}"]
    return [line for name, mine, other in pairs for line in differences(mine, other, name)]


def told_apart(call: Call, ours: Answer, theirs: Answer) -> str:
    """A report of two different answers."""
    lines = differences(ours.body, theirs.body)
    return "\n  ".join([str(call), f"status: ours {ours.status}, the peer's {theirs.status}", *lines])
