"""Every block of Python in README and docs runs, each in a process of its own."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.test_errors import kinds
from tests.programs import run
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import TowpathError

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LUA = re.compile(r"^```lua\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]


def all_errors() -> list[type[TowpathError]]:
    return [kind for same in kinds().values() for kind in same]


def blocks() -> list[object]:
    return [
        pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
        for path in DOCUMENTS
        for number, block in enumerate(BLOCK.findall(path.read_text()), 1)
    ]


@pytest.mark.parametrize("block", blocks())
def test_a_block_of_python_runs(block: str) -> None:
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


def test_no_document_installs_the_package_from_an_index() -> None:
    """It is installed from a clone, by a path. Until it is published, its name in an index is free,
    or another project's.
    """
    written = [path for path in DOCUMENTS if "reference" not in path.parts]
    texts = [*written, *(ROOT / "examples").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    asked = re.compile(r"pip install[^\n|]*?(?<![\w/.-])towpath(?![\w/.-])")
    assert {str(path): found for path in texts if (found := asked.findall(path.read_text()))} == {}
    assert asked.search("pip install -U 'towpath[s3]'")
    assert not asked.search("pip install '/path/to/towpath[s3]'")


def test_no_remedy_names_a_file_that_is_not_in_the_package() -> None:
    for kind in all_errors():
        assert "docs/" not in kind.remedy, kind


class TestTheReadme:
    def test_shows_the_life_of_a_job_in_ten_lines(self) -> None:
        block, *_ = BLOCK.findall(README.read_text())
        assert all(word in block for word in ("@app.handler", ".submit", "Worker(", ".result"))
        lines = [line for line in block.splitlines() if line.strip()]
        assert len([line for line in lines if not line.startswith("from ")]) <= 10

    def test_has_no_long_lines(self) -> None:
        assert [line for line in README.read_text().splitlines() if len(line) > 120] == []

    def test_defines_variables_before_it_uses_them(self) -> None:
        text = README.read_text()
        for used in re.finditer(r"\$(?:\{)?([A-Za-z_]\w*)", text):
            before = text[: used.start()]
            assert re.search(rf"(?:\b{used[1]}=|`{used[1]}`)", before), used[1]

    def test_names_only_extras_that_exist(self) -> None:
        text = README.read_text()
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        there = set(extras["optional-dependencies"])
        named = re.findall(r"\.\./towpath\[([\w,]+)\]", text)
        assert named
        assert set(",".join(named).split(",")) <= there
        table = text.partition("| extra |")[2].partition("\n\n")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == there - {"dev", "docs"}

    def test_names_only_make_targets_that_exist(self) -> None:
        makefile = (ROOT / "Makefile").read_text()
        for target in re.findall(r"(?:^    |`)make (\w+)", README.read_text(), re.MULTILINE):
            assert f"\n{target}:" in makefile, target


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "images").iterdir()), ids=lambda path: path.name
)
def test_a_picture_is_small(path: Path) -> None:
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_of_a_document_have_targets(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize(
    ("given", "started"),
    [
        ([], "towpath up"),
        (["PORT=9000"], "towpath up --port 9000"),
    ],
)
def test_make_up_runs_towpath_up(given: list[str], started: str) -> None:
    """tests/server tries what it starts. It runs here without the variables of an outer make, and
    with the PORT that many have in their environment for another program.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    asked, env = ["make", "-n", "up", *given], env | {"PORT": "3000"}
    ran = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=ROOT, env=env)
    assert ran.stdout.splitlines()[-1].endswith(started)


COMMAND = re.compile(
    r"(?:`|^    |^\$ |[|;(] |`.*/bin/)towpath ([a-z][a-z-]+(?: [a-z|-]+)?)(?![a-z|⇥-])",
    re.MULTILINE,
)
APPLICATION = "write-an-application.md"
"""Its commands are those of the application that it shows."""


def commands() -> set[str]:
    """Nouns and verbs, as the reference page of the command line lists them."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    return set(re.findall(r"^## towpath ([a-z -]+)$", page, re.MULTILINE))


def unknown(text: str) -> list[str]:
    """The commands in *text* that do not exist. A verb without a noun may be followed by
    anything.
    """
    known, found = commands(), list[str]()
    groups = {name.split()[0] for name in known if " " in name}
    for words in COMMAND.findall(text):
        noun, _, verbs = words.partition(" ")
        if noun not in {name.split()[0] for name in known}:
            found.append(words)
        elif verbs and noun in groups and noun not in known:
            found += [words for verb in verbs.split("|") if f"{noun} {verb}" not in known]
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_document_exist(path: Path) -> None:
    if path.name != APPLICATION and "decisions" not in path.parts:
        assert unknown(path.read_text()) == []


def test_a_command_that_does_not_exist_is_found() -> None:
    told = "`towpath gone`\n    towpath jobs vanish\n$ towpath queues mails\n`towpath dead list`"
    assert unknown(told) == ["gone", "jobs vanish"]
