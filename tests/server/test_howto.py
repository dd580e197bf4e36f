"""Every line of the pages about serving over HTTP and about messages runs."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.architecture.sources import ROOT
from tests.cli.command import Command
from tests.programs import COMMAND
from tests.server.serving import RunningServer, up
from tests.waiting import eventually

HOW_TO = ROOT / "docs" / "how-to"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def run(page: Path, served: RunningServer, *, least: int, within: Path | None = None) -> str:
    """The output of the lines of *page*, run in one shell up to the first that fails."""
    blocks = "".join(BLOCK.findall(page.read_text()))
    lines = [line.removeprefix("$ ") for line in blocks.splitlines() if line.startswith("$ ")]
    assert sum("curl" in line for line in lines) >= least
    path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"
    told = {
        "ADDRESS": served.address,
        "KEY": served.key,
        "TOWPATH_DATA": served.said["data"],
        "PATH": path,
    }
    ran = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input="\n".join(lines),
        env={**os.environ, **told},
        cwd=within,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_lines_of_the_page_about_serving_run(running: RunningServer) -> None:
    said = run(HOW_TO / "serve-over-http.md", running, least=16)
    assert '"id":"m-17","state":"done"' in said
    assert said.count('"id":"call-') == 2
    assert 'towpath_queue_depth{queue="mails",state="delayed"} 1.0' in said


def test_the_lines_of_the_readme_run(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        said = run(ROOT / "README.md", served, least=3)
    assert '"id":"m-17","state":"done"' in said


def test_the_lines_of_the_page_about_messages_run(tmp_path: Path) -> None:
    """The keys allow no more than the page says."""
    with up(tmp_path) as served:
        said = run(HOW_TO / "one-message-at-a-time-per-user.md", served, least=5)
    assert '"queue_length":1,"is_processing":false' in said
    assert "event: answer" in said
    assert '"answer":{"text":"hi ann"}' in said
    assert "whsec_" in said


def test_the_lines_of_the_page_about_reviews_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secrets.token_hex(32)
    monkeypatch.setenv("SECRET", secret)
    page = HOW_TO / "review-pull-requests.md"
    reviewer = tmp_path / "reviewer.py"
    reviewer.write_text(
        page.read_text().partition('```python title="reviewer.py"\n')[2].partition("```")[0]
    )
    env = {
        "TOWPATH_REVIEWS__GITHUB_SECRETS": secret,
        "TOWPATH_REVIEWS__REVIEWER_COMMAND": json.dumps([sys.executable, str(reviewer)]),
    }
    with up(tmp_path, **env) as served:
        said = run(page, served, least=5)
        client, path = served.client(), "/api/v1/reviews/github-d-1"
        eventually(lambda: client.get(path).json()["state"] == "COMPLETED")
        told = client.get(path).json()["review"]
    assert told["summary"] == "Looked at a1a1a1a1a1a1 of octo/repo."
    assert '{"id":"github-d-1","state":"PENDING","existed":false,"superseded":[]}' in said
    assert "github:octo/repo#7" in said
    assert "api-by-hand" in said


def test_the_application_of_the_page_about_applications_is_mounted(tmp_path: Path) -> None:
    page = (HOW_TO / "write-an-application.md").read_text()
    text = page.partition('```python title="pings.py"\n')[2].partition("```")[0]
    (tmp_path / "pings.py").write_text(text)
    settings = page.partition('    applications = ["')[2].partition("\n\nThe package")[0]
    (tmp_path / "towpath.toml").write_text(dedent(f'    applications = ["{settings}\n'))
    with up(tmp_path) as served:
        client = served.client()
        job = client.post("/api/v1/pings").json()["job"]
        path = f"/api/v1/queues/pings/jobs/{job}"
        eventually(lambda: client.get(path).json()["state"] == "done")
        assert client.get(path).json()["result"] == "here"
        assert client.get("/readyz").json()["parts"]["pings"] == {"ok": True}
        assert "towpath_pings_asked_total 1.0" in client.get("/metrics").text
        assert "/api/v1/pings" in client.get("/openapi.json").json()["paths"]
        towpath = Command(served.said["store"], tmp_path)
        assert towpath("pings", "count").out == "0\n"
        assert "pings.word" in towpath("config").out
        assert ", pings" in towpath("doctor").out


def test_the_lines_of_the_page_about_uploads_run(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        said = run(HOW_TO / "upload-files.md", served, least=7, within=tmp_path)
    assert '"missing":[[0,0],[2,2]]' in said
