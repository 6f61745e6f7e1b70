"""What the service costs from 8 to 4,000 workers, as JSON lines and as a plot.

python3 test/others/bench/growth.py SELBENCH TRACE SERVER OUT.svg [ROUNDS]

SELBENCH is the built load harness, SERVER a start command with {port}. 800,000 cached
blocks are spread over 8, 64, 256 and 1,000 workers; at last 3,000 idle workers of eight
ranks each join the 1,000. Needs matplotlib. The lines of the harness go to OUT.jsonl.
"""

import json
import subprocess
import sys

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

# workers with caches, blocks of each, idle workers of eight ranks
FLEETS = [(8, 100_000, 0), (64, 12_500, 0), (256, 3_125, 0), (1_000, 800, 0), (1_000, 800, 3_000)]
PANELS = [
    ("Server CPU of /select, µs", [("select.1k.cpu_us", "1k tokens"), ("select.8k.cpu_us", "8k tokens")]),
    ("Resident memory, MiB", [("reads.rss_mib", "800,000 cached blocks")]),
    ("First byte of /dump, ms", [("reads.dump_first_byte_ms", "/dump")]),
    ("CPU of a scrape of /metrics, ms", [("reads.scrape_cpu_ms", "/metrics")]),
]


def measure(selbench, trace, server, rounds, fleet, lines):
    workers, blocks, idle = fleet
    command = [
        *(selbench, "-trace", trace, "-names", "server", "-a", server, "-env-a", "", "-rounds", rounds),
        *("-workers", str(workers), "-cap", str(blocks), "-idle", str(idle), "-ranks", "8"),
        *("-checks", "0", "-prompts", "1024,8192", "-ops", "select,reads"),
    ]
    medians = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as harness:
        for line in harness.stdout:
            lines.write(line)
            row = json.loads(line)
            if row["kind"] == "error":
                raise SystemExit(f"{workers + idle} workers: {row['error']}")
            if row["kind"] == "summary":
                medians[row["metric"]] = row["server"]["median"]
    if harness.returncode:
        raise SystemExit(f"selbench ended with {harness.returncode}")
    return medians


def draw(figures, path):
    pyplot.rcParams.update({"svg.fonttype": "none", "font.size": 10})  # text stays text
    x = [workers + idle for workers, _, idle in FLEETS]
    labels = [f"{n:,}" for n in x[:-1]] + [f"{x[-1]:,}\n25,000 ranks"]
    _, panels = pyplot.subplots(2, 2, figsize=(10, 6.6), layout="constrained")
    for panel, (title, series) in zip(panels.flat, PANELS):
        for (metric, name), color in zip(series, ("#0072b2", "#d55e00")):
            panel.plot(x, [f[metric] for f in figures], marker="o", color=color, label=name)
        panel.set_title(title)
        panel.set_xscale("log")
        panel.set_xticks(x, labels)
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
        panel.set_xlabel("workers")
        panel.grid(axis="y", alpha=0.3)
        if len(series) > 1:
            panel.legend()
    pyplot.savefig(path, metadata={"Date": None})


def main(selbench, trace, server, out, rounds="3"):
    with open(out.removesuffix(".svg") + ".jsonl", "w") as lines:
        figures = [measure(selbench, trace, server, rounds, fleet, lines) for fleet in FLEETS]
    draw(figures, out)
    for (workers, _, idle), f in zip(FLEETS, figures):
        print(f"{workers + idle:6,}", "  ".join(f"{m} {f[m]:.1f}" for _, series in PANELS for m, _ in series))


main(*sys.argv[1:])
