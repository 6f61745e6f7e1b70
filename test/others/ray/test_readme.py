"""The documentation's section for Ray works as it is printed."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SECTION = "Ray in ten minutes"
PATIENCE = 900  # s, for all blocks together, the installation included


def blocks():
    """The code blocks of the section, in order, as (language, text)."""
    page = (ROOT / "docs" / "start" / "ray.md").read_text()
    section = page.split(f"\n## {SECTION}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def expected(program: str) -> list[str]:
    """What a block of Python prints: the comments at its end."""
    lines = program.rstrip().splitlines()
    tail = len(lines)
    while lines[tail - 1].startswith("# "):
        tail -= 1
    return [line.removeprefix("# ") for line in lines[tail:]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_section_works_as_printed(tmp_path, request):
    port = free_port()
    # What the section needs of a clone. The packages come from pip's cache.
    (tmp_path / "bin").mkdir()
    binary = Path(request.config.getoption("--service")).resolve()
    (tmp_path / "bin" / "select-service").symlink_to(binary)
    (tmp_path / "clients").symlink_to(ROOT / "clients")

    script = ["set -eu"]
    printed = []
    for language, text in blocks():
        text = text.replace("8092", str(port))
        if language == "sh":
            script.append(text)
        else:
            assert language == "python", language
            program = tmp_path / f"block{len(printed)}.py"
            program.write_text(text)
            script.append(f".venv-ray/bin/python {program} > {program}.out")
            printed.append((program, expected(text)))
    assert len(script) > 3, "the section has lost its blocks"
    assert len(printed) > 1, "the section has lost its programs"

    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith(("SELECT_SERVICE_", "DYN_", "RAY_"))},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, stderr = shell.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail("the section does not come to its end")
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)  # the service, too
        except ProcessLookupError:
            pass
    assert shell.returncode == 0, stderr
    for program, want in printed:
        assert Path(f"{program}.out").read_text().splitlines() == want, program.read_text()
