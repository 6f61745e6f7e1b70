"""A test's own model on the Conductor API, with the publishers that feed it."""

import itertools
import json
import time
import urllib.error

import hashes
from bed import PATIENCE
from engine import BLOCK_SIZE, Chain
from mooncake import Store, objects
from service import Service

_models = itertools.count(1)
_markers = itertools.count()


def row(longest: int, dp: dict, **media: int) -> dict:
    """What a query says of an instance, from numbers of blocks."""
    counts = {"longest_matched": longest, "GPU": 0, "CPU": 0, "DISK": 0} | media
    tokens = {name: BLOCK_SIZE * blocks for name, blocks in counts.items()}
    return tokens | {"DP": {str(rank): BLOCK_SIZE * blocks for rank, blocks in dp.items()}}


class Conductor:
    """The Conductor API of a running service: its own port or a prefix."""

    def __init__(self, url: str):
        self._service = Service(url)

    def get(self, path: str):
        return self._service.call("GET", path)

    def post(self, path: str, body: dict) -> tuple[int, dict]:
        """The status and the answer of a request."""
        try:
            return 200, self._service.call("POST", path, body)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


class Source:
    """A registered publisher whose events count for an instance."""

    def __init__(self, yard: "Yard", publisher, record: dict, asks: dict):
        self.publisher = publisher
        self.record = record
        self._yard = yard
        self._asks = asks  # the identity under which its events are found

    def apply(self, *groups) -> None:
        """Publishes one batch and waits until the service has applied it.

        A stream is applied in order, so a marker in a later message tells.
        """
        if groups:
            self.publisher.publish(*groups)
        self._await(self._publish_marker(), "the service does not apply what is published")

    def join(self) -> None:
        """Waits until live messages arrive; those published before may be lost."""
        deadline, markers = time.monotonic() + PATIENCE, []
        while not any(self._found(marker) for marker in markers):
            assert time.monotonic() < deadline, "no live message arrives"
            markers.append(self._publish_marker())
            time.sleep(0.05)

    def status(self) -> dict:
        """What the service says of this registration."""
        rows = self._yard.conductor.get("/services")["services"]
        (found,) = [r for r in rows if self.record.items() <= r.items()]
        return found

    def becomes(self, **want) -> None:
        """Waits until the service says this of the registration."""
        deadline = time.monotonic() + PATIENCE
        while not want.items() <= (got := self.status()).items():
            assert time.monotonic() < deadline, f"the service says {got}, want {want}"
            time.sleep(0.02)

    def unregister(self) -> None:
        """Ends this registration alone: what is not given would match any."""
        body = {"lora_name": "", "additionalsalt": ""} | self.record
        assert self._yard.conductor.post("/unregister", body)[0] == 200
        self._yard.sources.remove(self)

    def _await(self, marker, otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._found(marker):
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.005)

    def _publish_marker(self) -> dict:
        """Stores a block that no test asks for; returns what finds it."""
        marker = Chain((next(_markers),) * (BLOCK_SIZE + 1), process="marker")
        if isinstance(self.publisher, Store):  # found under the name that it has there
            blocks = objects(marker, 0, 1)
            self.publisher.publish(self.publisher.put("cpu", blocks=blocks))
            return {"seq_hashes": [blocks[0].name]}
        self.publisher.publish(self.publisher.stored(marker, 0, 1))
        return {"token_ids": marker.tokens}

    def _found(self, marker: dict) -> bool:
        instances = self._yard.query(marker, **self._asks)
        return instances.get(self.record["instance_id"], {"longest_matched": 0})["longest_matched"] > 0


class Yard:
    """Registers publishers under a model of its own and clears up at the end."""

    def __init__(self, conductor: Conductor):
        self.conductor = conductor
        self.model = f"conductor-{next(_models)}"
        self.sources: list[Source] = []
        self._parts: list = []

    def add(self, part):
        """Takes a part over: it is closed at the end."""
        self._parts.append(part)
        return part

    def register(self, publisher, instance="i1", rank=0, kind=None, asks=None, **record) -> Source:
        """Registers a publisher; record goes before, None leaves a field out.

        The type of an engine is its own, that of others "standard". What finds
        its events is the registration's identity, unless asks says otherwise.
        """
        body = {
            "endpoint": publisher.events,
            "replay_endpoint": publisher.replay,
            "type": kind or _kind(publisher),
            "modelname": self.model,
            "instance_id": instance,
            "block_size": BLOCK_SIZE,
            "dp_rank": rank,
        } | record
        body = {k: v for k, v in body.items() if v is not None}
        status, answer = self.conductor.post("/register", body)
        assert (status, answer) == (200, {"status": "registered successfully", "instance_id": instance})
        names = {"lora_name": "lora_name", "additionalsalt": "cache_salt", "tenant_id": "tenant_id"}
        identity = {names[k]: v for k, v in body.items() if k in names}
        source = Source(self, publisher, body, identity | (asks or {}))
        self.sources.append(source)
        return source

    def joined(self, publisher, **settings) -> Source:
        """A registered publisher whose live messages arrive."""
        source = self.register(publisher, **settings)
        source.join()
        return source

    def query(self, prompt: dict, conductor=None, **identity) -> dict:
        """The rows of all instances of a tenant, for tokens or for hashes."""
        path = "/query" if "token_ids" in prompt else "/query_by_hash"
        body = {"model": self.model, "block_size": BLOCK_SIZE} | prompt | identity
        status, answer = (conductor or self.conductor).post(path, body)
        assert status == 200, answer
        tenant = identity.get("tenant_id", "default")
        assert list(answer) == [tenant]
        return answer[tenant]

    def rows(self, chain: Chain, seed=hashes.SEED, **identity) -> tuple[dict, dict]:
        """The same question by tokens and by the standard's hashes."""
        by_hash = {"seq_hashes": hashes.rolling(chain.tokens, BLOCK_SIZE, seed)}
        return self.query({"token_ids": chain.tokens}, **identity), self.query(by_hash, **identity)

    def check(self, want: dict, chain: Chain, **identity) -> None:
        """Both questions have this answer: a row for each instance, no more."""
        got = self.rows(chain, **identity)
        assert got == (want, want), f"the answers are {got}, want {want}"

    def shows(self, want: dict, chain: Chain, **identity) -> None:
        """Waits until both questions have this answer."""
        deadline = time.monotonic() + PATIENCE
        while (got := self.rows(chain, **identity)) != (want, want):
            assert time.monotonic() < deadline, f"the answers stay {got}, want {want}"
            time.sleep(0.02)

    def close(self) -> None:
        for source in list(self.sources):
            source.unregister()
        for part in reversed(self._parts):
            part.close()


def _kind(publisher) -> str:
    if isinstance(publisher, Store):
        return "Mooncake"
    engine = getattr(publisher, "publisher", None)
    return {"vllm": "vLLM", "sglang": "SGLang"}[engine.engine] if engine else "standard"
