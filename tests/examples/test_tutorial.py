"""The tutorial: its files are written and its commands run, in one shell, beside `towpath up`."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import COMMAND
from tests.server.serving import RunningServer, up

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^```python title=\"([\w.]+)\"\n(.*?)^```$", re.DOTALL | re.MULTILINE)


_WITHIN = 500
"""Seconds for two dozen commands: machines that run tests are busy."""


def lines() -> list[str]:
    blocks: list[str] = CONSOLE.findall(PAGE.read_text())
    return [line for block in blocks for line in block.splitlines()]


def shell(served: RunningServer, within: Path) -> str:
    """The output of the commands, up to the first that fails. Each command is one line."""
    commands = [line.removeprefix("$ ") for line in lines() if line.startswith("$ ")]
    path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"
    env = {
        **os.environ,
        "PATH": path,
        "REDIS_URL": served.said["store"],
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # No worker may outlive the shell.
    ends = "trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join([ends, *commands])],
        env=env, cwd=within, capture_output=True, text=True, check=False, timeout=_WITHIN,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.timeout(_WITHIN + 100)
def test_the_tutorial_leads_from_a_first_worker_to_a_survived_crash(tmp_path: Path) -> None:
    """Its commands print what the page shows."""
    files = dict(FILE.findall(PAGE.read_text()))
    assert set(files) == {"shop.py", "order.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with up(tmp_path) as served:
        said = shell(served, tmp_path)
        first = served.client(key="").get("/")
    for line in lines():
        assert line.startswith("$ ") or line in said, line
    assert '"cat.png at 200 pixels"' in said
    [why] = [line for line in said.splitlines() if line.startswith("chat/ann.3: ")]
    assert re.search(r"\bann\.1\b", why)
    assert "mails/typo  dead" in said  # as a table shows it
    assert "first: LEASE_ENDED" in said
    assert first.status_code == 200
    assert "Log in" in first.text


def test_the_page_has_all_its_steps() -> None:
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    told = " ".join(headings).lower()
    assert all(word in told for word in ("worker", "delayed", "lane", "crash", "dashboard"))
