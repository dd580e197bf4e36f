"""A webhook of GitHub, posted to a server that is a process, up to the INSERT of its row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from tests.apps.reviews.deliveries import GITHUB_SECRET, github, payload
from tests.architecture.sources import ROOT
from tests.warm import Bounded
from towpath.embedded import EmbeddedServer

_WARM = 5
_PATIENCE = 60.0
_SERVED = "tests.architecture.figures.served"


def measured() -> list[str]:
    """The frames of ours that are nested there, the outermost first."""
    with tempfile.TemporaryDirectory(prefix="towpath-figures-") as home, EmbeddedServer() as store:
        rows = Path(home, "rows")
        words = ["serve", "--url", store.url, "--database", f"sqlite:///{home}/ledger.db"]
        process = Bounded[str](
            [sys.executable, "-m", _SERVED, str(rows), *words, "--port", "0", "--json"],
            cwd=ROOT,
            env=os.environ | {"TOWPATH_REVIEWS__GITHUB_SECRETS": GITHUB_SECRET},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            _post(json.loads(process.stdout.readline())["address"])
            process.send_signal(signal.SIGTERM)
            process.wait(_PATIENCE)
        finally:
            process.kill()
            process.communicate(timeout=_PATIENCE)
        seen = rows.read_text().splitlines()
        assert len(seen) == _WARM + 1, f"{len(seen)} rows of {_WARM + 1} webhooks"
        return json.loads(seen[-1])


def _post(address: str) -> None:
    """Several, so that the last one finds everything loaded."""
    with httpx.Client(base_url=address, timeout=_PATIENCE) as forge:
        for number in range(1, _WARM + 2):
            body = payload("github_pull_request", {"pull_request.number": number, "number": number})
            sent = github("pull_request", body, delivery=f"figures-{number}")
            path = "/api/v1/webhooks/github"
            forge.post(path, content=sent.body, headers=sent.headers).raise_for_status()
