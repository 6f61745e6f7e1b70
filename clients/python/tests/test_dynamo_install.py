"""`from dynamo.llm import SelectionService` gives the client's class, with and without Dynamo."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from server import Server

URL = "SELECT_SERVICE_DYNAMO_URL"

IMPORT = """
    import sys
    assert "httpx" not in sys.modules  # Python's start is as fast as without us
    {first}
    from dynamo.llm import SelectionService
    from dynamo.llm.exceptions import SelectionServiceError
    import dynamo.llm
    assert SelectionService.__module__ == "select_service_client.dynamo._service"
    dynamo.llm.SelectionService().list_workers()
"""

# As much of Dynamo as the adapter touches, with the layout of ai-dynamo-runtime
# 1.6.1. test/others/peers has the same checks with Dynamo itself.
DYNAMO = {
    "_core.py": """
        class DynamoException(Exception): ...
        class SelectionServiceError(DynamoException): ...
        class InvalidArgument(DynamoException): ...
        class SelectionService: ...
    """,
    "llm/__init__.py": """
        from dynamo._core import SelectionService
        class KvRouter: ...
    """,
    "llm/exceptions.py": """
        from dynamo._core import DynamoException, InvalidArgument, SelectionServiceError
        class HttpError(Exception): ...
    """,
    "runtime.py": "kept = 1",
}

BESIDE = """
    import dynamo._core, dynamo.llm, dynamo.llm.exceptions, dynamo.runtime
    from select_service_client.dynamo import DynamoException, SelectionService, SelectionServiceError
    assert dynamo.llm.SelectionService is SelectionService
    assert dynamo.llm.KvRouter.__module__ == "dynamo.llm" and dynamo.runtime.kept
    theirs = dynamo.llm.exceptions
    for name in ("DynamoException", "InvalidArgument", "SelectionServiceError"):
        assert getattr(theirs, name) is getattr(dynamo._core, name), name
    assert theirs.HttpError and DynamoException is theirs.DynamoException
    assert issubclass(SelectionServiceError, theirs.SelectionServiceError)
    try:
        SelectionService(url="http://127.0.0.1:1", retry=None, timeout=1).shutdown()
        raise SelectionServiceError("text", "not_ready", 503)
    except theirs.DynamoException as error:
        assert (error.kind, error.status_code, str(error)) == ("not_ready", 503, "text")
    import pickle
    copy = pickle.loads(pickle.dumps(error_of := SelectionServiceError("text", "conflict", 409)))
    assert (copy.kind, copy.args) == ("conflict", error_of.args)
"""


def python(code: str, *path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    if path:
        env["PYTHONPATH"] = os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")])
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def dynamo(at: Path) -> Path:
    """Writes the stand-in of Dynamo, a namespace package, to a folder."""
    for name, text in DYNAMO.items():
        file = at / "dynamo" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return at


def test_without_dynamo(server: Server) -> None:
    """By environment, by install(), and not at all."""
    done = python(IMPORT.format(first=""), SELECT_SERVICE_DYNAMO_URL=server.url)
    assert done.returncode == 0, done.stderr
    first = f"import select_service_client.dynamo as d; d.install({server.url!r})"
    done = python(IMPORT.format(first=first))
    assert done.returncode == 0, done.stderr
    assert "No module named 'dynamo'" in python(IMPORT.format(first="")).stderr
    first = "import select_service_client.dynamo as d; d.install()"
    assert "needs the service's URL" in python(IMPORT.format(first=first)).stderr


def test_beside_dynamo(tmp_path: Path) -> None:
    """Where Dynamo is installed too, only the class is replaced, and what catches its errors catches ours."""
    done = python(BESIDE, dynamo(tmp_path), SELECT_SERVICE_DYNAMO_URL="http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr


def test_installed_late(tmp_path: Path) -> None:
    """The same where Dynamo was imported before; until its names are used, install() loads none of it."""
    late = """
        import sys
        import select_service_client.dynamo as d
        d.install("http://127.0.0.1:1")
        assert not [name for name in sys.modules if name == "dynamo" or name.startswith("dynamo.")]
    """
    done = python(late, dynamo(tmp_path))
    assert done.returncode == 0, done.stderr
    first = """
        import dynamo.llm.exceptions
        import select_service_client.dynamo as d
        d.install("http://127.0.0.1:1")
    """
    done = python(textwrap.dedent(first) + textwrap.dedent(BESIDE), tmp_path)
    assert done.returncode == 0, done.stderr


def test_beside_dynamo_of_another_finder(tmp_path: Path) -> None:
    """Dynamo may be found by any finder, such as that of an editable installation."""
    editable = f"""
        import sys
        from importlib.machinery import PathFinder
        class Editable:
            def find_spec(name, path=None, target=None):
                return PathFinder.find_spec(name, [{str(dynamo(tmp_path))!r}]) if name == "dynamo" else None
        sys.meta_path.append(Editable)
        import select_service_client.dynamo as d
        d.install("http://127.0.0.1:1")
    """
    done = python(textwrap.dedent(editable) + textwrap.dedent(BESIDE))
    assert done.returncode == 0, done.stderr


def test_beside_older_dynamo(tmp_path: Path) -> None:
    """A release without this error gets it, below its own base class."""
    core = dynamo(tmp_path) / "dynamo" / "_core.py"
    core.write_text("class DynamoException(Exception): ...\n")
    (tmp_path / "dynamo" / "llm" / "__init__.py").write_text("")
    (tmp_path / "dynamo" / "llm" / "exceptions.py").write_text("from dynamo._core import DynamoException\n")
    code = """
        from dynamo.llm import SelectionService
        from dynamo.llm.exceptions import DynamoException, SelectionServiceError
        import dynamo._core
        assert SelectionService.__module__ == "select_service_client.dynamo._service"
        assert issubclass(SelectionServiceError, DynamoException)
        assert DynamoException is dynamo._core.DynamoException
    """
    done = python(code, tmp_path, SELECT_SERVICE_DYNAMO_URL="http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
