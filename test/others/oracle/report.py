"""What is printed: the table, and a history that shows a difference."""

import json
import sys
from typing import Any

from history import Compare, History, Prompt, Submit, draw
from play import Difference, Outcome, Service, narrowed, play, shortest
from scenarios import Scenario


class Table:
    """A line per scenario, printed as it comes."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        print(f"{'engine':15}{'scenario':42}{'compared':>9}{'equal':>8}{'over':>7}{'under':>7}{'s':>6}")

    @property
    def met(self) -> bool:
        return all(row["met"] for row in self._rows)

    def add(self, engine: str, scenario: Scenario, outcome: Outcome, seconds: float) -> None:
        expected = scenario.expected
        row = {
            "engine": engine,
            "scenario": scenario.name,
            "compared": outcome.compared,
            "equal": outcome.equal,
            "over": outcome.over,
            "under": outcome.under,
            "engine_hit_tokens": outcome.hits,
            "allowed_over": expected.over,
            "allowed_under": expected.under,
            "why": expected.why,
            "met": expected.met(outcome),
        }
        self._rows.append(row)
        verdict = "" if row["met"] else "   NOT AS EXPECTED"
        print(
            f"{engine:15}{scenario.name:42}{outcome.compared:9}{outcome.equal:8}"
            f"{outcome.over:7}{outcome.under:7}{seconds:6.1f}{verdict}",
            flush=True,
        )

    def end(self) -> None:
        """Prints the sums, and a line for each scenario that is not as expected."""
        sums = [sum(row[name] for row in self._rows) for name in ("compared", "equal", "over", "under")]
        print(f"{'':15}{'all':42}{sums[0]:9}{sums[1]:8}{sums[2]:7}{sums[3]:7}")
        for row in self._rows:
            if not row["met"]:
                name = f"{row['engine'].split()[0]}: {row['scenario']}"
                print(f"FAIL: {name}: {row['over']} over, {row['under']} under; --scenario '{name}' --shrink")

    def json(self) -> str:
        return json.dumps(self._rows, indent=1) + "\n"


def explain(scenario: Scenario, seeds: list[str], service: Service, options: Any) -> Outcome:
    """Plays a scenario's histories; with --shrink the first difference is explained."""
    total = Outcome()
    shown = False
    for seed in seeds:
        history = draw(scenario.load, f"{scenario.name} {seed}")
        outcome = play(scenario.engine, history, service, strict=not options.no_expectations)
        for name in ("compared", "equal", "over", "under", "hits"):
            setattr(total, name, getattr(total, name) + getattr(outcome, name))
        wanted = [d for d in outcome.differences if _is(d, options.only)]
        if options.shrink and wanted and not shown:
            _show(scenario, seed, history, wanted[0], service, options.only)
            shown = True
    return total


def _is(difference: Difference, only: str | None) -> bool:
    over = difference.service > difference.engine
    return only is None or over == (only == "over")


def _show(
    scenario: Scenario,
    seed: str,
    history: History,
    difference: Difference,
    service: Service,
    only: str | None,
) -> None:
    """Prints the shortest history of the same kind of difference, with its events."""

    def differs(tried: History) -> Difference | None:
        found = play(scenario.engine, tried, service).differences
        return next((d for d in found if _is(d, only)), None)

    kept = shortest(narrowed(history, difference), lambda tried: differs(tried) is not None)
    shown = differs(kept)
    if shown is None:
        raise AssertionError("the history does not differ again: it is not deterministic")
    print(f"\n{scenario.name}, seed {seed}: shortest history that differs", file=sys.stderr)
    names: dict[Any, str] = {}
    for operation in kept:
        print(f"  {_operation(operation)}", file=sys.stderr)
    print("  events:", file=sys.stderr)
    play(
        scenario.engine,
        kept,
        service,
        log=lambda rank, event: print(f"    rank {rank}: {_event(event, names)}", file=sys.stderr),
    )
    print(
        f"  {shown.route} of {_prompt(shown.prompt)} at rank {shown.rank}: the engine has "
        f"{shown.engine} tokens, the service says {shown.service}\n",
        file=sys.stderr,
    )


def _operation(operation: Any) -> str:
    match operation:
        case Submit(prompt=prompt, output=output, rank=rank):
            flags = "".join(f" {name}" for name in ("skip_cache", "full_report") if getattr(operation, name))
            return f"Submit {_prompt(prompt)} output={len(output)} rank={rank}{flags}"
        case Compare(prompts=prompts):
            return "Compare " + ", ".join(_prompt(prompt) for prompt in prompts)
    return str(operation)


def _prompt(prompt: Prompt) -> str:
    extra = "".join(
        f" {name}={value}" for name in ("lora", "salt", "images") if (value := getattr(prompt, name))
    )
    return f"[{len(prompt)} tokens {prompt.tokens[:2]}...{prompt.tokens[-2:]}{extra}]"


def _event(event: Any, names: dict[Any, str]) -> str:
    """An event with its blocks called h1, h2, ... in the order of their appearance."""

    def name(block: Any) -> str:
        return names.setdefault(block, f"h{len(names) + 1}")

    group = getattr(event, "group_idx", None)
    where = "" if group is None else f"g{group} "
    if not hasattr(event, "block_hashes"):
        return "clear"
    blocks = ",".join(map(name, event.block_hashes))
    if not hasattr(event, "token_ids"):
        return f"remove {where}{blocks}"
    after = "" if event.parent_block_hash is None else f" after {name(event.parent_block_hash)}"
    return f"store {where}{blocks}{after} ({len(event.token_ids)} tokens)"
