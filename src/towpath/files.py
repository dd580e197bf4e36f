"""Files that are whole or not there, whatever happens while they are written.

Written beside and then renamed: who opens the name finds the old text or the new, never a part of
one. From their first moment nobody but their owner can read them.
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
    """Let *path* say *text*. What is made anew at each start need not outlast a power cut."""
    with _beside(path, mode) as (made, descriptor):
        write_all(descriptor, text.encode())
        made.replace(path)


def durable_file(path: Path, data: bytes) -> None:
    """Let *path* say *data*, also after a power cut; and keep what else is in its directory."""
    with _beside(path, PRIVATE) as (made, descriptor):
        write_all(descriptor, data)
        os.fsync(descriptor)
        made.replace(path)
    sync_directory(path.parent)


def kept_file(path: Path, text: str) -> str:
    """What *path* says; if there is no such file, it is made of *text*, and on disk then.

    Of several who make it at once the first wins, and all of them get what it wrote.
    """
    if not path.exists():
        with _beside(path, PRIVATE) as (made, descriptor):
            write_all(descriptor, text.encode())
            os.fsync(descriptor)
            with suppress(FileExistsError):
                os.link(made, path)
        sync_directory(path.parent)
    return path.read_text(errors="replace")


@contextmanager
def _beside(path: Path, mode: int) -> Generator[tuple[Path, int]]:
    """A new file in the same directory, to be renamed; what is left of it is removed."""
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
    """What was made, renamed and removed there is so after a power cut, too."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
