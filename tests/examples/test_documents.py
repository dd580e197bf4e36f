"""Every block of Python in README and docs runs, each in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import run
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LUA = re.compile(r"^```lua\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> list[object]:
    return [
        pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
        for path in DOCUMENTS
        for number, block in enumerate(BLOCK.findall(path.read_text()), 1)
    ]


@pytest.mark.parametrize("block", blocks())
def test_a_block_runs(block: str) -> None:
    ran = run([sys.executable, "-W", "error", "-c", block])
    assert ran.code == 0, ran.err


async def test_the_scripts_of_a_space_run(server: EmbeddedServer, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "keep-records-of-your-own.md").read_text()
    for text in LUA.findall(page):
        (tmp_path / f"{text[3 : text.index(':')]}.lua").write_text(text)
    async with Engine(server.url) as engine:
        upload = engine.space("upload", tmp_path).at("u-1")
        assert await upload.run("store", token=7, number=3, chunk=b"data") == 4
        assert await upload.run("store", token=6, number=3, chunk=b"") == b"TOKEN_STALE"
        assert await upload.read("chunk", number=3) == b"data"


def test_the_readme_shows_a_job_s_life_in_ten_lines() -> None:
    verbs = ("engine.submit", "engine.claim", "engine.complete")
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    [block] = [it for it in blocks if all(verb in it for verb in verbs)]
    assert len([line for line in block.splitlines() if line.strip()]) <= 13


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_its_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        assert (path.parent / target).exists(), target


def test_make_up_starts_the_product() -> None:
    """What it starts is tried in tests/server. Asked without what a make around us would add."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    ran = subprocess.run(
        ["make", "-n", "up"], capture_output=True, text=True, check=True, cwd=ROOT, env=env
    )
    assert ran.stdout.splitlines()[-1].endswith("towpath up")
