"""Print the test files nearest to a change: `make check` runs them beside the specification.

    python -m tests.nearest

What is changed: all that differs from the branch `main`, and all that is not committed. Nearest
are tests that are changed themselves, then those in the room's folder that import most of what is
changed. At most a few files, so that it stays quick; what takes long is left to `make test`.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 8
"""Files: about half a minute on two cores."""
FOLDERS = {"app": "worker", "console": "cli", "settings": "cli", "web": "server"}
"""Rooms whose tests are in a folder of another name."""
LONG = ("benchmarks", "faults", "model")
ANYWAY = ("architecture", "spec")


def changed() -> list[str]:
    """The files that differ from `main`, from the root of the repository."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    new = _git("ls-files", "--others", "--exclude-standard")
    return sorted({*_git("diff", "--name-only", *base), *new})


def _git(*words: str) -> list[str]:
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.split()


def nearest(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """The tests nearest to *files*: those among them first."""
    paths = [Path(file) for file in files]
    found = Counter(
        {str(path): 1000 for path in paths if _is_test(path) and (root / path).is_file()}
    )
    for path in paths:
        if path.parts[:2] == ("src", "towpath") and path.suffix == ".py":
            found.update(_importing(path, root))
    return [name for name, _ in sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))][:MOST]


def _is_test(path: Path) -> bool:
    is_named = path.parts[0] == "tests" and re.fullmatch(r"test_\w+\.py", path.name) is not None
    return is_named and path.parts[1] not in LONG + ANYWAY


def _importing(path: Path, root: Path) -> list[str]:
    """Tests in the folder of a module's room that import the module."""
    room = path.parts[2]
    folder = root / "tests" / FOLDERS.get(room, room)
    module = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
    imports = re.compile(rf"^from {re.escape(module)} import", re.MULTILINE)
    tests = (test.relative_to(root) for test in folder.rglob("test_*.py"))
    return [
        str(test) for test in tests if _is_test(test) and imports.search((root / test).read_text())
    ]


if __name__ == "__main__":
    sys.stdout.write(" ".join(nearest(changed())) + "\n")
