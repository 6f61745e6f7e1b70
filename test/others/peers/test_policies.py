"""Policies of the policy file choose as those of 1.6.1, and are refused in its words."""

import math
import random
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from dialect_calls import Calls
from dialect_cost import Rank, Weights, cheapest, told
from dialect_decisions import DIALECT_16
from dialect_pair import Pair, prompt_tokens
from dialect_wire import Call, rank
from ports import free_ports
from programs import Program
from test_dialects import BUSY, Run, both, converse

OWN = Weights(credit=1.5, decay=0.5, scale=2, host=1.4, disk=0.5, request=0.7, prefix_only=True)


@dataclass(frozen=True)
class TwoTier:
    """The rule of dynamo-two-tier-cost-fn."""

    cache: float = 0.5
    balance_abs: int = 32
    balance_rel: float = 1.1

    def choices(self, ranks: dict[tuple[int, int], Rank], blocks: int) -> set[tuple[int, int]]:
        active = [load.requests for load in ranks.values()]
        longest = max(load.device for load in ranks.values())
        balanced = max(active) - min(active) <= self.balance_abs or max(active) <= self.balance_rel * min(active)
        if balanced and blocks and longest / blocks > self.cache:
            ranks = {key: load for key, load in ranks.items() if load.device == longest}
        least = min(load.requests for load in ranks.values())
        return {key for key, load in ranks.items() if load.requests == least}


@dataclass(frozen=True)
class Policy:
    """An instance of the policy file, and what it chooses."""

    kind: str
    parameters: str
    rule: TwoTier | Weights
    calls: int
    track: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.parameters}{'' if self.track else ' decode'}".strip()

    @property
    def file(self) -> str:
        return f"worker_selection: {{aggregated: p, instances: [{{name: p, type: {self.kind}, parameters: {{{self.parameters}}}}}]}}\n"


POLICIES = [
    Policy("dynamo-two-tier-cost-fn", "", TwoTier(), 700),
    Policy(
        "dynamo-two-tier-cost-fn",
        "cache_threshold: 0.1, balance_abs_threshold: 1, balance_rel_threshold: 1.5",
        TwoTier(0.1, 1, 1.5),
        700,
    ),
    Policy(
        "dynamo-default-cost-fn",
        "overlap_score_credit: 1.5, overlap_score_credit_decay: 0.5, prefill_load_scale: 2, "
        "host_cache_hit_weight: 1.4, disk_cache_hit_weight: 0.5, decode_active_request_weight: 0.7",
        OWN,
        1000,
    ),
    Policy(
        "dynamo-default-cost-fn",
        "overlap_score_credit: 1.5, decode_active_request_weight: 0.7",
        Weights(credit=1.5, request=0.7, track=False, prefix_only=True),
        400,
        track=False,
    ),
]


class PolicyPair(Pair):
    """Both under one policy."""

    policy: Policy

    def _cheapest(self, fields: dict, theirs=False) -> set[tuple[int, int]] | None:
        question = self.question(fields)
        scores, loads = (self.theirs.send(Call("POST", path, question)) for path in ("/overlap_scores", "/potential_loads"))
        if (scores.status, loads.status) != (200, 200):
            return None
        with suppress(AttributeError, KeyError, TypeError):  # members of a wrong form are refused
            length, eligible = prompt_tokens(fields), self._eligible(fields)
            ranks = told(scores.body, loads.body, length, self.weights)
            size, rule = scores.body["block_size"], self.policy.rule
            if isinstance(rule, Weights):
                # Of its own weights a request has but this one's way, on both sides.
                given = (fields.get("router_config_override") or {}).get("track_prefill_tokens")
                return cheapest(ranks, eligible, size, length, rule if given is None else replace(rule, track=given))
            ranks = {key: ranks[key] for key in eligible if key in ranks}
            return rule.choices(ranks, math.ceil(length / size)) if ranks else set()
        return None

    def _eligible(self, fields: dict) -> dict[tuple[int, int], float]:
        """An affinity target that is eligible leaves no others, except under two-tier."""
        target, pinned = fields.get("affinity_target"), fields.get("pinned_worker")
        if target is None or isinstance(self.policy.rule, TwoTier):
            return super()._eligible(fields)
        free = super()._eligible({key: value for key, value in fields.items() if key != "pinned_worker"})
        wanted = {
            key: factor
            for key, factor in free.items()
            if key[0] == target["worker_id"] and target.get("dp_rank", key[1]) == key[1]
        }
        left = wanted or free
        return {rank(pinned): 1.0} if pinned and rank(pinned) in left else {} if pinned else left


class TargetCalls(Calls):
    """Calls of which many have an affinity target or weights of their own, and none a session."""

    def _selection(self, path: str) -> Call:
        call = super()._selection(path)
        call.body.pop("session_context", None)
        call.body.pop("session_id", None)
        if self._maybe(0.15):
            call.body["router_config_override"] = self._override() | {"track_prefill_tokens": False}
        if self._maybe(0.3):
            call.body["affinity_target"] = {"worker_id": self._somebody(self._scope())}
            if self._maybe(0.4):
                call.body["affinity_target"]["dp_rank"] = self._chance.choice([0, 1, 7])
        return call


@pytest.mark.ours
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_both_choose_alike(policy, pytestconfig):
    chance = random.Random(f"{policy} {pytestconfig.getoption('--seed')}")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(policy.file)
        file.flush()
        run = Run(str(policy), DIALECT_16, policy.calls, "1.6", env=BUSY | {
            "DYN_ROUTER_POLICY_CONFIG": file.name,
            "DYN_ROUTER_TRACK_PREFILL_TOKENS": str(policy.track).lower(),
        }, weights=Weights(track=policy.track))
        with both(run, chance, pytestconfig) as pair:
            pair.__class__, pair.policy = PolicyPair, policy
            calls = TargetCalls(chance, pair)
            converse(pair, calls, run.calls, chance)


def instance(kind: str, parameters: str = "", name: str = "p", role: str = "aggregated: p") -> str:
    return f"worker_selection: {{{role}, instances: [{{name: {name}, type: {kind}, parameters: {{{parameters}}}}}]}}"


TWO, COST = "dynamo-two-tier-cost-fn", "dynamo-default-cost-fn"
REFUSED = [
    "worker_selection: {}",
    "worker_selection: {aggregated: x}",
    "worker_selection: {aggregated: 7}",
    'worker_selection: {aggregated: ""}',
    "worker_selection: {prefill: x}",
    instance(TWO, name="default"),
    instance(TWO, name='"a b"'),
    instance(TWO, name='""'),
    instance('"x/y"'),
    f"worker_selection: {{instances: [{{name: p, type: {TWO}}}, {{name: p, type: {TWO}}}]}}",
    f"worker_selection: {{instances: [{{name: p, type: {TWO}, parameters: null}}]}}",
    f"worker_selection: {{instances: [{{name: p, type: {TWO}, parameters: [1]}}]}}",
    *(
        instance(TWO, parameters)
        for parameters in (
            "cache_threshold: 2",
            "cache_threshold: -0.1",
            "cache_threshold: .nan",
            "cache_threshold: abc",
            'cache_threshold: "0.5"',
            "cache_threshold: null",
            "cache_threshold: true",
            "cache_threshold: [1]",
            "balance_abs_threshold: -1",
            "balance_abs_threshold: 1.5",
            "balance_abs_threshold: x",
            "balance_rel_threshold: 0.5",
            "balance_rel_threshold: .inf",
        )
    ),
    *(
        instance(COST, parameters)
        for parameters in (
            "x: 1",
            "overlap_score_credit: -1",
            "overlap_score_credit: x",
            "overlap_score_credit_decay: .inf",
            "prefill_load_scale: -1, overlap_score_credit: -1",
            "router_temperature: -1",
            "shared_cache_multiplier: -1",
        )
    ),
    instance(TWO) + "\nrequest_classifier: {type: thunderagent}",
    "router: {x: 1}",
    "router: {use_kv_events: abc}",
    "router: {host_cache_hit_weight: abc}",
    "router: {router_approximate_cache_policy: foo}",
    "router: {router_prefill_load_model: x}",
]
ACCEPTED = [
    instance(TWO),
    instance(TWO, "cache_threshold: 1"),
    instance(TWO, role="prefill: p"),
    instance(TWO, role="aggregated: default"),
    instance("nope", role="aggregated: default"),
    instance(TWO, "x: 1", role="aggregated: null"),
    instance(COST, "overlap_score_credit: null, host_cache_hit_weight: 5, shared_cache_multiplier: 7"),
    "router: {}",
    "router: {disk_cache_hit_weight: 0.5, router_replica_sync: true, serve_indexer: false}",
]


@pytest.fixture(scope="module")
def commands(pytestconfig):
    """What starts ours and 1.6.1."""
    python = dict(peer.split("=", 1) for peer in pytestconfig.getoption("--peer")).get("1.6.1")
    if python is None:
        pytest.skip("there is no 1.6.1")
    return [pytestconfig.getoption("--service"), "--listen", "127.0.0.1"], [python, "-m", "dynamo.select_service"]


def refusal(argv: list[str], file: str, **env: str) -> str | None:
    """Why the program does not start with a policy file; None: it does."""
    port = free_ports(1)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as policies:
        policies.write(file)
        policies.flush()
        if file:
            env["DYN_ROUTER_POLICY_CONFIG"] = policies.name
        try:
            program = Program([*argv, "--port", str(port)], port, **env)
        except RuntimeError as failure:
            return str(failure)
        program.stop()
    return None


@pytest.mark.ours
@pytest.mark.parametrize("file", REFUSED)
def test_both_refuse_in_the_same_words(file, commands):
    ours, theirs = (refusal(argv, file) for argv in commands)
    words = theirs.strip().rpartition("Exception: ")[2]
    assert words in ours


@pytest.mark.ours
@pytest.mark.parametrize("file", ACCEPTED)
def test_both_accept(file, commands):
    assert [refusal(argv, file) for argv in commands] == [None, None]


@pytest.mark.ours
def test_the_variable_goes_first(commands):
    file = instance(TWO) + "\n"
    for name, words in {
        "default": None,
        " ": None,
        "p": None,
        "two": 'unknown worker-selection instance "two"; configured instances: p',
    }.items():
        for argv in commands:
            why = refusal(argv, file, DYN_ROUTER_WORKER_SELECTION_POLICY=name)
            assert (why is None) == (words is None) and (words or "") in (why or ""), name
    for argv in commands:
        why = refusal(argv, "", DYN_ROUTER_WORKER_SELECTION_POLICY="two")
        assert 'unknown worker-selection instance "two"; configured instances: <none>' in why
