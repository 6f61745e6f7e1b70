"""The recorded payloads are what the publishers of this folder send."""

from pathlib import Path

import record

FILE = Path(__file__).parents[3] / "testdata/mooncake/payloads.json"


def test_recorded_payloads(pytestconfig):
    """With --record the file is written, else it is compared."""
    now = record.render(record.record())
    if pytestconfig.getoption("--record"):
        FILE.write_text(now)
    assert FILE.read_text() == now
