"""A disk of a few megabytes that tests fill: a file system in memory. It needs the right to
mount.
"""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PIECE = b"\0" * 4096


class SmallDisk:
    """A folder on a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Fills the disk to the last byte."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while file.write(_PIECE):
                    pass
            except OSError:
                return

    def free(self) -> None:
        """Frees what `fill` has used."""
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Generator[SmallDisk]:
    """A disk at *folder*. Skips the test where mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", folder]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a disk is not allowed here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
