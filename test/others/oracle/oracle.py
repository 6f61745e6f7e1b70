"""Compares what engines have cached with what the service says, over random histories.

Prints a table per scenario and ends with 1 if one is outside its expectation.
See README.md.
"""

import argparse
import contextlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import wheels


def main() -> int:
    if sys.version_info < (3, 11):
        print("oracle: the engines need Python 3.11 or newer", file=sys.stderr)
        return 2
    options = _options()
    for wheel in options.wheel:
        wheel.install()
    # The engines' modules can be imported from here on.
    from report import Table, explain
    from rule import Rules
    from scenarios import ANYTHING, SCENARIOS
    from service import running

    wanted = [
        (wheel, scenario)
        for wheel in options.wheel
        for scenario in SCENARIOS[wheel.engine]
        if options.scenario in f"{wheel.engine}: {scenario.name}"
    ]
    if not wanted:
        print(f"oracle: no scenario has {options.scenario!r} in its name", file=sys.stderr)
        return 2
    table = Table()
    playing = running(options.command, options.group) if options.command else contextlib.nullcontext(Rules())
    with playing as service:
        for wheel, scenario in wanted:
            if options.short:
                scenario = scenario.shorter()
            if options.rounds:
                scenario = replace(scenario, load=replace(scenario.load, rounds=options.rounds))
            if options.no_expectations:
                scenario = replace(scenario, expected=ANYTHING)
            seeds = [options.seed] if options.seed else [str(i + 1) for i in range(scenario.histories)]
            started = time.monotonic()
            outcome = explain(scenario, seeds, service, options)
            table.add(str(wheel), scenario, outcome, time.monotonic() - started)
    table.end()
    if options.json:
        options.json.write_text(table.json())
    return 0 if table.met else 1


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__.split("\n")[0])
    parser.add_argument("--wheel", action="append", type=lambda path: wheels.Wheel(Path(path)), required=True)
    parser.add_argument(
        "--command", type=json.loads, help="the service's, as a JSON array; without it rule.py"
    )
    parser.add_argument("--group", default="tenant_id", help="the contract's name of a tenant")
    parser.add_argument("--scenario", default="", help="only scenarios with this in their name")
    parser.add_argument("--seed", help="only the history of this seed")
    parser.add_argument("--rounds", type=int, help="the rounds of a history")
    parser.add_argument("--no-expectations", action="store_true", help="only measure")
    parser.add_argument(
        "--short", action="store_true", help="one history of half the rounds of each scenario"
    )
    parser.add_argument("--shrink", action="store_true", help="print the shortest history that differs")
    parser.add_argument("--only", choices=("over", "under"), help="shrink only to such a difference")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
