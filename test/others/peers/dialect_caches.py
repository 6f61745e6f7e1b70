"""What the ranks of a pair's workers hold, on both sides the same."""

import time

from dialect_fleet import Stream, hashes, rolled
from dialect_wire import Call, comparable, rank, ranks_of, told_apart
from programs import Answer
from replicas import PATIENCE

_FOUND = ("device_blocks", "host_pinned_blocks", "disk_blocks")


class Caches:
    """The part of a Pair that publishes KV events and waits until both have them."""

    def exact(self, fields: dict) -> None:
        """The peer's index now and then has blocks that a rank does not hold. Ours
        must have the rank's, whose cache is then emptied before the call."""
        call = Call("POST", "/overlap_scores", self.question(fields))
        ours, theirs = self.ours.send(call), self.theirs.send(call)
        if ours.status != 200 or theirs.status != 200:
            return
        wrong = set()
        for row, other in zip(ours.body["workers"], theirs.body["workers"], strict=True):
            found = tuple(row[key] for key in _FOUND)
            if found != tuple(other[key] for key in _FOUND):
                self.note(call, ours, theirs)
                size, where = ours.body["block_size"], rank(row)
                held = self.fleet.found(*where, size, _rolling(fields, size))
                assert found == held, f"{call}: {where} holds {held}, ours finds {found}"
                wrong.add(where[0])
        for worker in sorted(wrong):
            self.inexact(worker)

    def inexact(self, worker: int) -> None:
        self.seen["K1"] += 1
        self.empty(worker)

    def empty(self, worker: int) -> None:
        """Empties the worker's caches: of all ranks, as the peer does not tell them apart."""
        self.fleet.forget(worker)
        if not self.hears(worker):
            return
        streams = [self.fleet.stream(worker, number) for number in ranks_of(self.records[worker])]
        for stream in streams:
            # One that is late would take from 1.3.1 what another rank has by then.
            deaf = self._send(worker, stream, [["AllBlocksCleared"]], PATIENCE)
            assert not deaf, f"{worker}/{stream.rank}: the clear does not arrive at {deaf}"
        for stream in streams:
            stream.publish(*stream.unmark())
        self._agree(lambda block: block[0] != worker)

    def hears(self, worker: int) -> bool:
        """Whether both listen to the worker's events."""
        record = self.records.get(worker)
        if not self.events or not record or record["lifecycle"] != "schedulable":
            return False
        scope, named = self.scope(record), record.get("kv_events_endpoints")
        return (
            scope is not None
            and not scope.eagle
            and all(
                self.fleet.stream(worker, number).endpoint
                == (named.get(str(number)) if named else record["kv_events_endpoint"])
                for number in ranks_of(record)
            )
        )

    def listen(self, worker: int) -> None:
        """Waits until both hear the events of all ranks."""
        if self.hears(worker):
            for number in ranks_of(self.records[worker]):
                self.publish(worker, number, [], again=True)

    def publish(self, worker: int, number: int, events: list, again=False) -> None:
        """Publishes events of a rank and waits until both have applied them. again:
        repeats itself until both listen."""
        stream = self.fleet.stream(worker, number)
        self.log.append(f"rank {worker}/{number}: {events}")
        deadline = time.monotonic() + PATIENCE
        while deaf := self._send(worker, stream, events, 0.05 if again else PATIENCE):
            assert again and time.monotonic() < deadline, f"{worker}/{number}: events do not arrive at {deaf}"
        gone = set(stream.marks)
        stream.publish(*stream.unmark())
        self._agree(lambda block: block[4] not in gone)

    def _send(self, worker: int, stream: Stream, events: list, patience: float) -> str:
        """Publishes events with a mark and returns who has not applied them in time,
        empty if both have."""
        record, deadline = self.records[worker], time.monotonic() + patience
        tokens, mark = stream.mark(record["block_size"])
        stream.publish(*events, mark)
        names = {key: record[key] for key in ("model_name", self.dialect.group)}
        call, where = Call("POST", "/overlap_scores", names | {"token_ids": tokens}), (worker, stream.rank)
        for who, wire in (("ours", self.ours), ("the peer", self.theirs)):
            while not any(rank(row) == where and row["device_blocks"] for row in wire.send(call).body["workers"]):
                if time.monotonic() > deadline:
                    return who
        return ""

    def _agree(self, good) -> None:
        """Waits until both hold the same blocks, all of them good."""
        call, start = Call("GET", "/dump"), time.monotonic()
        while True:
            ours, theirs = (comparable(call, wire.send(call)) for wire in (self.ours, self.theirs))
            theirs = self.decided(call, ours, theirs)
            if ours == theirs and all(good(block) for scope in theirs.body.values() for block in scope["events"]):
                return
            wrong = self._inexact(ours, theirs) if time.monotonic() > start + 0.3 else set()
            for worker in wrong:
                self.log.append(told_apart(call, ours, theirs))
                self.inexact(worker)
            if wrong:
                return
            assert time.monotonic() < start + PATIENCE, told_apart(call, ours, theirs)

    def _inexact(self, ours: Answer, theirs: Answer) -> set[int]:
        """The workers of which the peer's index has other blocks than ours, if ours
        has what they hold."""
        mine, other = ({block for scope in side.body.values() for block in scope["events"]} for side in (ours, theirs))
        workers = {block[0] for block in mine ^ other}
        for worker in workers:
            if {(block[1], block[2], block[4]) for block in mine if block[0] == worker} != self.fleet.blocks(worker):
                return set()
        return workers


def _rolling(fields: dict, size: int) -> list[int]:
    """The rolling hashes of a prompt without pictures."""
    ids = (fields.get("mm_routing_info") or {}).get("routing_token_ids") or fields.get("token_ids")
    if ids is None:
        return rolled(fields["block_hashes"])
    return hashes(ids, size, fields.get("lora_name"))[1]
