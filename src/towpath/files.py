"""Atomic writes of files: a file is complete or absent, whatever happens during a write.

A new file is written beside the old one and then renamed, so a reader finds the old or the new
content, never a part. Files are created with their final mode; by default only the owner can read
them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from towpath.errors import TowpathError

PRIVATE, PUBLIC = 0o600, 0o644


class FileDamaged(TowpathError):
    """A file that Towpath wrote is damaged; it was left as it is."""

    code = "file_damaged"
    remedy = (
        "Restore it from a backup, or delete it: the next start makes a new one. Then give"
        " the new secrets to everybody who used the old ones."
    )

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is empty or damaged")
        self.path = path


def replace_file(path: Path, text: str, *, mode: int = PRIVATE) -> None:
    """Replace the content of *path*. For files that each start creates again: they need not survive
    a power cut.
    """
    with _temporary_file(path, mode) as (made, descriptor):
        write_all(descriptor, text.encode())
        made.replace(path)


def durable_file(path: Path, data: bytes) -> None:
    """Replace the content of *path* so that it, and other renames in its directory, survive a power
    cut.
    """
    with _temporary_file(path, PRIVATE) as (made, descriptor):
        write_all(descriptor, data)
        os.fsync(descriptor)
        made.replace(path)
    sync_directory(path.parent)


def kept_file(path: Path, text: str) -> str:
    """Returns the content of *path*. If there is no such file, creates it with *text*, on disk.

    If several processes create it at once, the first one wins, and all get its text.
    """
    if not path.exists():
        with _temporary_file(path, PRIVATE) as (made, descriptor):
            write_all(descriptor, text.encode())
            os.fsync(descriptor)
            with suppress(FileExistsError):
                os.link(made, path)
        sync_directory(path.parent)
    return path.read_text(errors="replace")


@contextmanager
def _temporary_file(path: Path, mode: int) -> Generator[tuple[Path, int]]:
    """A temporary file in the same directory, to be renamed; removed at the end if it was not."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield made, descriptor
    finally:
        os.close(descriptor)
        made.unlink(missing_ok=True)


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def sync_directory(directory: Path) -> None:
    """Make creations, renames and removals in *directory* survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
