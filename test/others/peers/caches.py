"""What engines hold in the recovery tests, and the services that index it."""

from collections import defaultdict

from events import Prompt, Rank
from programs import Program
from replicas import BLOCK_SIZE, eventually

LONG = Prompt(range(1000, 1000 + 10 * BLOCK_SIZE + 5))
FORK = Prompt([*LONG.tokens[: 2 * BLOCK_SIZE], *range(5000, 5000 + 4 * BLOCK_SIZE)])
TUNED = Prompt(LONG.tokens, adapter="an-adapter")
STRANGER = Prompt(range(9000, 9000 + 4 * BLOCK_SIZE))
PROMPTS = {
    "long": LONG,
    "beginning": LONG.head(4),
    "fork": FORK,
    "adapter": TUNED,
    "another adapter": Prompt(LONG.tokens, adapter="another"),
    "stranger": STRANGER,
    "no block": LONG.head(0),
}

# The workers of each model and their numbers of ranks.
FLEET = {"m": {1: 2, 2: 1}, "n": {3: 1}}

# What is found per model, prompt and (worker, rank): blocks on the device, with
# the host's, and with the disk's behind them. Ranks not named have nothing.
FOUND = {
    "m": {
        "long": {(1, 0): (8, 8, 8), (1, 1): (3, 6, 6), (2, 0): (2, 2, 4)},
        "beginning": {(1, 0): (4, 4, 4), (1, 1): (3, 4, 4), (2, 0): (2, 2, 4)},
        "fork": {(1, 0): (2, 2, 2), (1, 1): (2, 2, 2), (2, 0): (4, 5, 6)},
        "adapter": {(1, 0): (3, 3, 3)},
    },
    "n": {"long": {(3, 0): (1, 1, 1)}, "beginning": {(3, 0): (1, 1, 1)}, "fork": {(3, 0): (1, 1, 1)}},
}


class Engines:
    """The fleet's ranks."""

    def __init__(self):
        self.ranks = {
            (worker, rank): Rank(rank)
            for workers in FLEET.values()
            for worker, size in workers.items()
            for rank in range(size)
        }

    def heard(self) -> None:
        for rank in self.ranks.values():
            rank.heard()

    def fill(self) -> None:
        """Publishes what FOUND says, in the order in which engines come to it."""
        ranks = self.ranks
        ranks[1, 0].store(LONG, 0, 5)
        ranks[1, 0].store(TUNED, 0, 3)
        ranks[1, 0].store(LONG, 5, 8)
        ranks[1, 1].store(LONG, 0, 5)
        ranks[1, 1].store(LONG, 3, 5, "CPU")
        ranks[1, 1].remove(LONG, 3, 5)
        ranks[1, 1].store(LONG, 5, 6, "CPU")
        ranks[2, 0].store(LONG, 0, 2)
        ranks[2, 0].store(LONG, 2, 4, "DISK")
        ranks[2, 0].store(FORK, 2, 4)
        ranks[2, 0].store(FORK, 4, 5, "CPU")
        ranks[2, 0].store(FORK, 5, 6, "DISK")
        ranks[3, 0].store(LONG, 0, 1)

    def close(self) -> None:
        for rank in self.ranks.values():
            rank.close()


class SelectionIndex:
    """The index of a selection service."""

    def __init__(self, system, *dumps: str):
        self._group = system.group
        self.program: Program = system.selection(events=True, dumps=dumps)

    def register(self, engines: Engines) -> None:
        for model, workers in FLEET.items():
            for worker, size in workers.items():
                body = {
                    "worker_id": worker,
                    "model_name": model,
                    self._group: "default",
                    "endpoint": f"http://worker-{worker}",
                    "block_size": BLOCK_SIZE,
                    "max_num_batched_tokens": 8192,
                    "data_parallel_size": size,
                    "kv_events_endpoints": {
                        str(rank): engines.ranks[worker, rank].endpoint for rank in range(size)
                    },
                }
                answer = self.program.call("POST", "/workers", body)
                assert answer["lifecycle"] == "schedulable", answer

    def found(self, model: str, prompt: Prompt) -> dict:
        rows = self.program.call("POST", "/overlap_scores", self._asked(model, prompt))["workers"]
        return {
            (row["worker_id"], row["dp_rank"]): (
                row["device_blocks"],
                row["host_pinned_blocks"],
                row["disk_blocks"],
            )
            for row in rows
            if row["disk_blocks"]
        }

    want = staticmethod(lambda found: found)

    def _asked(self, model: str, prompt: Prompt) -> dict:
        return {"model_name": model, self._group: "default", **prompt.form}

    def shows(self, everything: dict) -> None:
        """Waits until every prompt is found as wanted, in every model."""
        wanted = {
            (model, name): self.want(everything[model].get(name, {})) for model in FLEET for name in PROMPTS
        }

        def found():
            return {(model, name): self.found(model, PROMPTS[name]) for model, name in wanted}

        eventually(found, wanted, f"what {self.program.url} finds")


class StandaloneIndex(SelectionIndex):
    """The standalone indexer, which tells less: the device's blocks per rank, and
    per worker the most that one of its ranks has in each tier."""

    def __init__(self, system, *dumps: str):
        self._group = system.group
        self.program = system.indexer(dumps=dumps)

    def register(self, engines: Engines) -> None:
        for model, workers in FLEET.items():
            for worker, size in workers.items():
                for rank in range(size):
                    body = {
                        "instance_id": worker,
                        "endpoint": engines.ranks[worker, rank].endpoint,
                        "model_name": model,
                        self._group: "default",
                        "block_size": BLOCK_SIZE,
                        "dp_rank": rank,
                    }
                    self.program.call("POST", "/register", body)

    def found(self, model: str, prompt: Prompt) -> dict:
        instances = self.program.call("POST", "/query", self._asked(model, prompt))["instances"]
        return {
            int(worker): (
                {int(rank): tokens for rank, tokens in tiers["dp"].items() if tokens},
                (tiers["gpu"], tiers["cpu"], tiers["disk"]),
            )
            for worker, tiers in instances.items()
        }

    @staticmethod
    def want(found: dict) -> dict:
        ranks, tiers = defaultdict(dict), defaultdict(lambda: (0, 0, 0))
        for (worker, rank), blocks in found.items():
            tokens = tuple(BLOCK_SIZE * count for count in blocks)
            ranks[worker][rank] = tokens[0]
            tiers[worker] = tuple(map(max, tiers[worker], tokens))
        return {worker: (ranks[worker], tiers[worker]) for worker in ranks}
