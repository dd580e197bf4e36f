"""The documentation as a site: no broken links, and nothing loaded from other servers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.reference.api import PROMISED, api_page, promised, scripts_page
from tests.waiting import HANGS
from towpath.engine.script import ARGS

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>")
NAVIGATION = "nav:\n  - Home: index.md\n"
BROKEN = {
    "[gone](how-to/gone.md)": "how-to/gone.md",
    "[gone](../examples/gone.py)": "repository/examples/gone.py",
    "[no such heading](tutorial.md#gone)": "#gone",
}
"""Links, and what is said of them."""


def build(root: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site of *root* as `make site` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [*command, "--site-dir", str(to)],
        cwd=root, env=env, capture_output=True, text=True, check=False, timeout=HANGS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    built = build(ROOT, to)
    assert built.returncode == 0, built.stderr
    return to


def test_every_page_exists_and_can_be_reached_from_the_first(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {page: page.with_suffix(".html") for page in pages if page.name != "README.md"}
    assert [page for page, made in built.items() if not (site / made).exists()] == []
    first = (site / "index.html").read_text()
    told = [made for page, made in built.items() if page.parent.name != "decisions"]
    assert len(told) > 50
    assert [page for page in told if not re.search(rf"href=\"?{re.escape(str(page))}", first)] == []


def test_every_public_name_of_python_has_its_signature(site: Path) -> None:
    page = api_page()
    names = [name for names in promised(PROMISED.read_text()).values() for name in names]
    assert len(names) > 60
    assert [name for name in names if f"\n### {name}\n\n" not in page] == []
    assert " at 0x" not in page
    assert "#### Engine.claim\n\n```py\nawait claim(" in page
    assert 'id="engineclaim"' in (site / "reference" / "python-api.html").read_text()


def test_every_lua_script_states_its_guarantees() -> None:
    page = scripts_page()
    assert [name for name in ARGS if f"\n## {name}\n\n" not in page] == []
    claim = page.partition("\n## claim\n")[2].partition("\n## ")[0]
    assert "ready -> leased" in claim
    assert "O((count" in claim


def test_a_page_loads_nothing_from_other_servers(site: Path) -> None:
    """It has no external fonts, scripts, styles or pictures."""
    loading = {
        page.name: found
        for page in site.rglob("*.html")
        if (found := [link for link in LOADED.findall(page.read_text()) if "canonical" not in link])
    }
    assert loading == {}
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert styles
    assert not re.search(r"url\([\"']?(?:https?:)?//", styles)


def test_broken_links_are_found(tmp_path: Path) -> None:
    """The build can fail."""
    docs = tmp_path / "docs"
    docs.mkdir()
    settings = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  - Home")[0]
    settings = settings.replace(", docs/reference/api.py", "")
    (tmp_path / "mkdocs.yml").write_text(f"{settings}{NAVIGATION}  - Tutorial: tutorial.md\n")
    (tmp_path / "README.md").write_text("# First\n\n[on](docs/tutorial.md#second)\n")
    (docs / "tutorial.md").write_text(f"# Second\n\n{' '.join(BROKEN)}\n")
    shutil.copy(ROOT / "docs" / "site.py", docs)
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert [link for link in BROKEN.values() if link not in built.stderr] == []
    assert built.stderr.count("WARNING") == len(BROKEN)
    (docs / "tutorial.md").write_text("# Second\n")
    assert build(tmp_path, tmp_path / "site").returncode == 0
