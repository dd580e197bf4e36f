"""The source archive has the whole repository, so its tests can be run."""

import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from tests.architecture.sources import ROOT


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked archive has no repository")
def test_the_archive_has_every_file_of_the_repository(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [archive] = tmp_path.iterdir()
    with tarfile.open(archive) as packed:
        held = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in packed.getnames()}
    tracked = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached"]
    listed = subprocess.run(tracked, check=True, capture_output=True, text=True).stdout.split("\0")
    wanted = {name for name in listed if (ROOT / name).is_file() and not name.startswith(".git")}
    assert wanted - held == set()
