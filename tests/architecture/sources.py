"""The project's own files, for tests that read them."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "towpath"
TESTS = ROOT / "tests"


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def project_files() -> list[Path]:
    """Every file that is in the repository, or would be after `git add`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    names = listed.stdout.decode().split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def shown(path: Path) -> str:
    """The path from the root of the repository."""
    return path.relative_to(ROOT).as_posix()
