"""What a rank costs: the contract's formula, from what a service tells of itself."""

import math
from dataclasses import dataclass, replace

from dialect_wire import rank

# Sums in another order may differ in their last digits; a rank that costs this
# little more than the cheapest counts as equal to it.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Weights:
    """The configuration of the cost, with the contract's defaults."""

    credit: float = 1.0
    decay: float = 0.0
    scale: float = 1.0
    host: float = 0.75
    disk: float = 0.25
    temperature: float = 0.0
    request: float = 0.0
    track: bool = True
    prefix_only: bool = False  # without prefill, cached blocks count against decode

    def overridden(self, override: dict | None) -> "Weights":
        given = {key: value for key, value in (override or {}).items() if value is not None}
        if (old := given.get("overlap_score_weight")) is not None:
            self = replace(self, scale=old, credit=0.0 if old == 0 else self.credit)
        names = {
            "overlap_score_credit": "credit",
            "prefill_load_scale": "scale",
            "router_temperature": "temperature",
            "track_prefill_tokens": "track",
        }
        return replace(self, **{names[key]: value for key, value in given.items() if key in names})


@dataclass(frozen=True)
class Rank:
    """What a service has told of a rank and one prompt."""

    device: int
    host: int  # blocks behind the device's
    disk: int  # blocks behind the host's
    cached: int  # tokens, by the weights of the service's tiers
    prefill: int  # tokens booked
    decode: int  # blocks with this prompt's
    requests: int


def told(scores: dict, loads: list[dict], tokens: int, configured: Weights) -> dict[tuple[int, int], Rank]:
    """Reads answers of /overlap_scores and /potential_loads about a prompt. If prefill
    is tracked the loads have this prompt's, by the configured weights of the tiers."""
    size, found = scores["block_size"], {rank(row): row for row in scores["workers"]}
    ranks = {}
    for row in loads:
        overlap = found.get(rank(row), {})
        device, host, disk = (
            overlap.get(key, 0)
            for key in ("device_blocks", "host_pinned_extension_blocks", "disk_extension_blocks")
        )
        hit = cached(size, device, host, disk, configured)
        uncached = tokens - min(tokens, hit) if configured.track else 0
        ranks[rank(row)] = Rank(
            device,
            host,
            disk,
            hit,
            prefill=row["potential_prefill_tokens"] - uncached,
            decode=row["potential_decode_blocks"],
            requests=row["active_requests"],
        )
    return ranks


def cached(size: int, device: int, host: int, disk: int, weights: Weights) -> int:
    """Cached tokens, rounded half away from zero."""
    return math.floor(size * (device + weights.host * host + weights.disk * disk) + 0.5)


def cheapest(ranks: dict[tuple[int, int], Rank], taints: dict[tuple[int, int], float], size: int, tokens: int, w: Weights):
    """The ranks that may be chosen: those of minimal cost, or with a temperature
    all. taints has the factor of each rank that is eligible."""
    eligible = {key: ranks[key] for key in taints if key in ranks}
    if not eligible or w.temperature > 0:
        return set(eligible)
    floor = min(load.prefill for load in eligible.values())
    costs = {key: _cost(load, floor, size, tokens, w) * taints[key] for key, load in eligible.items()}
    least = min(costs.values())
    return {key for key, cost in costs.items() if cost <= least + _ROUNDING * max(1.0, abs(least))}


def _cost(load: Rank, floor: int, size: int, tokens: int, w: Weights) -> float:
    decay = 1.0
    if w.track and w.decay:
        excess = (load.prefill - floor) / size
        decay = 1 / (1 + w.decay * excess / max(1, math.ceil(tokens / size)))
    credit = w.credit * decay * load.device + w.host * load.host + w.disk * load.disk
    requests = w.request * load.requests
    if not w.track:
        return (max(0.0, load.decode - credit) if w.prefix_only else load.decode) + requests
    raw = (load.prefill + max(tokens, load.cached)) / size
    return w.scale * max(0.0, raw - credit) + load.decode + requests


def attraction(held: set[str], preferred: dict[str, float]) -> float:
    """The factor of the preferred taints that a worker holds."""
    return math.exp(-math.tanh(sum(weight for taint, weight in preferred.items() if taint in held)))
