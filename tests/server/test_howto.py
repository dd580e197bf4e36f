"""Every line of the page about serving over HTTP runs."""

import os
import re
import shutil
import subprocess

import pytest

from tests.architecture.sources import ROOT
from tests.server.serving import Serving

PAGE = ROOT / "docs" / "how-to" / "serve-over-http.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_lines_of_the_page_run(running: Serving) -> None:
    blocks = "".join(BLOCK.findall(PAGE.read_text()))
    lines = [line.removeprefix("$ ") for line in blocks.splitlines() if line.startswith("$ ")]
    assert sum("curl" in line for line in lines) > 15
    ran = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input="\n".join(lines),
        env={**os.environ, "TOWPATH_ADDRESS": running.address, "TOWPATH_API_KEY": running.key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"id":"m-17","state":"done"' in ran.stdout
    assert ran.stdout.count('"id":"call-') == 2
