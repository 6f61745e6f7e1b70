"""The Python client's adapter beside Dynamo's own Python package, whose class it stands for."""

import json
import subprocess
from pathlib import Path

import httpx
import pytest

CLIENT = Path(__file__).resolve().parents[3] / "clients" / "python"
RECORDED = "1.6.1"  # the release whose class the adapter has

# As where the client is installed: the folder's .pth file is read.
INSTALLED = f"""
import os, site
os.environ["SELECT_SERVICE_DYNAMO_URL"] = "http://127.0.0.1:1"
site.addsitedir({str(Path(httpx.__file__).parents[1])!r})
site.addsitedir({str(CLIENT / "src")!r})
"""

BESIDE = """
import dynamo._core, dynamo.llm, dynamo.llm.exceptions as theirs
from select_service_client.dynamo import SelectionService, SelectionServiceError
assert dynamo.llm.SelectionService is SelectionService is not dynamo._core.SelectionService
assert dynamo.llm.KvRouter is dynamo._core.KvRouter
for name in ("DynamoException", "InvalidArgument", "SelectionServiceError", "Unknown"):
    assert getattr(theirs, name) is getattr(dynamo._core, name), name
assert SelectionServiceError.__mro__[1:3] == (theirs.SelectionServiceError, theirs.DynamoException)
for error, base in ((theirs.InvalidArgument("a"), theirs.DynamoException),
                    (SelectionServiceError("a"), theirs.SelectionServiceError)):
    try:
        raise error
    except base:
        pass
service = SelectionService(timeout=1)
service.shutdown()
try:
    service.list_workers()
except theirs.SelectionServiceError as error:
    assert (error.kind, error.status_code, str(error)) == ("not_ready", 503, "selection service is shutting down")
else:
    raise AssertionError
"""

SIGNATURES = """
import json
from dynamo.llm import SelectionService as theirs
names = {name: getattr(theirs, name) for name in dir(theirs) if not name.startswith("_")}
print(json.dumps({"__init__": theirs.__text_signature__, **{n: m.__text_signature__ for n, m in names.items()}}))
"""


def run(python, code):
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ours
def test_only_the_class_is_replaced(peer):
    """Dynamo's exceptions stay, and catch its own errors and ours."""
    run(peer.python, INSTALLED + BESIDE)


def test_signatures(pytestconfig):
    """What the client's own tests compare the adapter with is the class of the release."""
    peer = pytestconfig.peers.get(RECORDED)
    if peer is None:
        pytest.skip(f"without {RECORDED}")
    recorded = json.loads((CLIENT / "tests" / "dynamo_1_6_1.json").read_text())
    assert json.loads(run(peer.python, SIGNATURES)) == recorded
