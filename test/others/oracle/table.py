"""Prints tables that oracle.py wrote as JSON side by side, as Markdown.

    table.py ours=ours.json 'Dynamo 1.6.1=peer.json' ...

A cell is what was over and what under, empty if all was equal.
"""

import json
import sys
from pathlib import Path


def main(columns: list[str]) -> None:
    names = [column.split("=", 1)[0] for column in columns]
    tables = [
        {
            (row["engine"], row["scenario"]): row
            for row in json.loads(Path(column.split("=", 1)[1]).read_text())
        }
        for column in columns
    ]
    engine = ""
    for key, row in tables[0].items():
        if key[0] != engine:
            engine = key[0]
            print(f"\n| {engine} | compared | " + " | ".join(names) + " |\n|---|" + "---|" * (len(names) + 1))
        cells = [_cell(table.get(key)) for table in tables]
        print(f"| {key[1]} | {row['compared']:,} | " + " | ".join(cells) + " |")
    for table in tables:
        rows = [table[key] for key in tables[0] if key in table]
        print(
            [sum(row[name] for row in rows) for name in ("compared", "equal", "over", "under")],
            file=sys.stderr,
        )


def _cell(row: dict[str, int] | None) -> str:
    if row is None:
        return "?"
    parts = [f"{row[name]:,} {name}" for name in ("over", "under") if row[name]]
    return ", ".join(parts)


if __name__ == "__main__":
    main(sys.argv[1:])
