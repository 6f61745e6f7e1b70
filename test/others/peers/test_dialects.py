"""Each dialect answers like the release that it is of, but for what was decided."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from dialect_calls import Calls
from dialect_cost import Weights
from dialect_decisions import DIALECT_13, DIALECT_16, Dialect
from dialect_fleet import Fleet
from dialect_occasions import OCCASIONS
from dialect_pair import Pair
from dialect_wire import Wire
from ports import free_ports
from programs import Program

SESSIONS = ["--session-affinity-ttl-secs", "600"]
BUSY = {
    "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD": "0.3",
    "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD": "0.001",
}


@dataclass(frozen=True)
class Run:
    """A sequence of calls: how ours is started and called, and both are configured."""

    name: str
    dialect: Dialect
    calls: int
    contract: str
    prefix: str = ""
    env: dict[str, str] = field(default_factory=dict)
    weights: Weights = Weights()
    events: bool = True

    def __str__(self) -> str:
        return self.name


RUNS = [
    Run("1.3", DIALECT_13, 2000, "1.3"),
    Run("1.6", DIALECT_16, 2000, "1.6", env=BUSY),
    Run("1.6 without events", DIALECT_16, 500, "1.6", events=False),
    Run("v1.3 of 1.6", DIALECT_13, 300, "1.6", prefix="/v1.3"),
    Run("v1.6 of 1.3", DIALECT_16, 300, "1.3", prefix="/v1.6", env=BUSY),
    Run(
        "1.3 weighed",
        DIALECT_13,
        300,
        "1.3",
        env={
            "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "0.5",
            "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY": "1",
            "DYN_ROUTER_PREFILL_LOAD_SCALE": "2",
        },
        weights=Weights(credit=0.5, decay=1, scale=2),
    ),
    Run(
        "1.6 weighed",
        DIALECT_16,
        300,
        "1.6",
        env={
            "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "1.5",
            "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY": "0.5",
            "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT": "0.5",
            "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT": "0.7",
        },
        weights=Weights(credit=1.5, decay=0.5, host=0.5, request=0.7),
    ),
    Run(
        "1.6 decode",
        DIALECT_16,
        300,
        "1.6",
        env={"DYN_ROUTER_TRACK_PREFILL_TOKENS": "false"},
        weights=Weights(track=False),
    ),
]


@pytest.mark.ours
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_both_answer_alike(run, pytestconfig):
    chance = random.Random(f"{run} {pytestconfig.getoption('--seed')}")
    with both(run, chance, pytestconfig) as pair:
        calls = Calls(chance, pair)
        converse(pair, calls, run.calls, chance)


@pytest.mark.ours
@pytest.mark.parametrize("run", [run for run in RUNS if run.name in ("1.3", "1.6")], ids=str)
def test_every_difference_shows(run, pytestconfig):
    """None of the differences is only a claim: each makes one where it should."""
    assert {decision for decision, _ in OCCASIONS} >= {decision.name for decision in run.dialect.decisions}
    chance = random.Random(run.name)
    with both(run, chance, pytestconfig) as pair:
        calls = Calls(chance, pair)
        settle(pair, calls)
        for decision, occasion in OCCASIONS:
            before = pair.seen[decision]
            occasion(pair, calls)
            shows = decision in {decision.name for decision in run.dialect.decisions}
            assert (pair.seen[decision] > before) == shows, f"{decision}, {occasion.__name__}: {pair.seen}"


@contextmanager
def both(run: Run, chance: random.Random, pytestconfig) -> Iterator[Pair]:
    """Ours and the peer, started for a sequence of calls."""
    python = dict(peer.split("=", 1) for peer in pytestconfig.getoption("--peer")).get(run.dialect.release)
    if python is None:
        pytest.skip(f"there is no {run.dialect.release}")
    fleet, programs = Fleet(chance), []
    try:
        for argv in (
            [pytestconfig.getoption("--service"), "--listen", "127.0.0.1", "--contract", run.contract],
            [python, "-m", "dynamo.select_service", "--threads", "2"],
        ):
            programs.append(start(argv, run))
        ours, theirs = (program.url for program in programs)
        pair = Pair(
            run.dialect,
            Wire(ours, run.prefix),
            Wire(theirs),
            fleet,
            run.weights,
            events=run.events,
            prefix_only=run.contract == "1.6",
        )
        try:
            yield pair
        except AssertionError as failure:
            failure.add_note("\n".join(["the last calls:", *pair.log[-12:]]))
            raise
    finally:
        fleet.close()
        for program in programs:
            program.stop()


def start(argv: list[str], run: Run) -> Program:
    port = free_ports(1)
    env = run.env | {"DYN_ROUTER_USE_KV_EVENTS": str(run.events).lower(), "DYN_USE_KV_EVENTS": str(run.events).lower()}
    if run.dialect.old:
        env["DYN_ROUTER_QUEUE_THRESHOLD"] = "16"  # the peer's default, ours has none (D5)
    elif run.prefix == "":
        argv = argv + SESSIONS
    return Program([*argv, "--port", str(port)], port, **env)


def converse(pair: Pair, calls: Calls, number: int, chance: random.Random) -> None:
    """Makes so many calls of both, with turns of the engines between them."""
    settle(pair, calls)
    for _ in range(number):
        if chance.random() < 0.25 and (where := calls.turn()):
            if events := pair.fleet.turn(*where, pair.records[where[0]]["block_size"]):
                pair.publish(*where, events)
        pair.play(calls.next())


def settle(pair: Pair, calls: Calls) -> None:
    """Registers the workers that stay."""
    for call in calls.anchors():
        pair.exchange(call)
        pair.read()
        pair.listen(call.fields["worker_id"])
    pair.find_home()


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "compatibility.md"


@pytest.mark.parametrize("dialect", [DIALECT_13, DIALECT_16], ids=lambda dialect: dialect.release)
def test_the_page_lists_the_differences(dialect):
    """The page's tables and the ones that the calls are held against are the same."""
    page = PAGE.read_text()
    assert rows(page, "Differences", dialect) == Counter(decision.name for decision in dialect.decisions)
    assert rows(page, "Calls not made", dialect) == Counter(defect.name for defect in dialect.defects)


def rows(page: str, title: str, dialect: Dialect) -> Counter:
    """The decisions of a section's table that are marked for the release."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    head, _, *body = ([cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|"))
    column = head.index(dialect.release)
    return Counter(row[0] for row in body if row[column] == "x")
