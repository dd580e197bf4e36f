"""Local clones: the changed files of a task and their content, without the network.

Commits are not trusted: no hook runs, no filter or attribute of the commit changes the content of
its files, a symbolic link becomes a file with its text, and git gets only complete commit ids.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from towpath.apps.reviews.model import ReviewKind, ReviewTask
from towpath.forges.texts import is_path

_CONFIGURATION = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "log.showRoot=true",
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch missing objects
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
LARGEST_FILE = 8 << 20
"""In bytes. Nobody writes larger files by hand, and a linter would take minutes for one."""
_PROGRAM = b"100755"
_REAL_FILE = (b"100644", _PROGRAM)
_RAW = ("--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--ignore-submodules=all")


class Unready(Exception):
    """The clone does not have the commits of the task yet. A later fetch may bring them."""


class GitFailed(Exception):
    """git failed; the message is git's own."""


class Clone:
    """A repository on this machine, with or without a working tree."""

    def __init__(self, place: Path) -> None:
        self._place = place.absolute()
        # Otherwise git would search the parent directories and find another repository.
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            **_ENVIRONMENT,
            "GIT_CEILING_DIRECTORIES": str(self._place.parent),
        }

    @classmethod
    def below(cls, clones: Path, repository: str) -> Clone:
        """The clone at `clones/owner/name`, or `…/name.git`. Raises Unready if there is none.

        The name of a repository cannot lead to another directory: it was checked before.
        """
        for place in (clones / repository, clones / f"{repository}.git"):
            if place.is_dir():
                return cls(place)
        raise Unready(f"there is no clone of {repository} in {clones}")

    def changed(self, task: ReviewTask) -> list[str]:
        """The files that the task's commits added or changed, sorted. Raises Unready, GitFailed.

        For a pull request, these are the changes since it left its target branch. For a push, they
        are the changes since the commit before. If that is unknown, they are those of the last
        commit. Links and submodules are left out. Names may contain any bytes but NUL.
        """
        self._require(task.head)
        target = self._target(task) if task.kind is ReviewKind.PULL else None
        if target is not None:
            return self._between(self._fork_point(target, task.head), task.head)
        if task.before is not None and self._has(task.before):
            return self._between(task.before, task.head)
        return _real_files(
            self._git(
                "log", "-1", "--format=", "--diff-merges=first-parent", *_RAW, task.head, "--"
            )
        )

    @contextmanager
    def checked_out(self, commit: str) -> Generator[Path]:
        """A directory with the files of *commit*, until the end of the block.

        The files have exactly the committed bytes. `git checkout` would apply the commit's
        attributes, which can change a file. Files over LARGEST_FILE are left out, and so are files
        with dangerous names.
        """
        folder = Path(tempfile.mkdtemp(prefix="towpath-review-")).resolve()
        try:
            self._write(commit, folder / "tree")
            yield folder / "tree"
        finally:
            with _undisturbed():
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, commit: str, place: Path) -> None:
        place.mkdir()
        listed = self._git("ls-tree", "-r", "-z", "-l", "--full-tree", commit)
        files = [
            file for file in _files_of(listed) if file.size <= LARGEST_FILE and _is_harmless(file)
        ]
        with tempfile.TemporaryFile() as wanted:
            wanted.write(b"".join(b"%s\n" % file.blob for file in files))
            wanted.seek(0)
            with self._started("cat-file", "--batch", "--buffer", stdin=wanted) as git:
                try:
                    for file in files:
                        file.write(place, cast("IO[bytes]", git.stdout))
                except OSError as error:
                    raise GitFailed(f"{commit[:12]} can't be written: {error.strerror}") from error
                finally:
                    git.kill()

    def _target(self, task: ReviewTask) -> str | None:
        """The target of a pull request: the commit that the forge names, or else the branch as it
        was fetched."""
        if task.base is not None:
            self._require(task.base)
            return task.base
        for place in ("refs/remotes/origin", "refs/heads"):
            found = self._run("rev-parse", "--verify", "-q", f"{place}/{task.target}^{{commit}}")
            if found.returncode == 0:
                return found.stdout.decode().strip()
        return None

    def _between(self, old: str, new: str) -> list[str]:
        return _real_files(self._git("diff", *_RAW, old, new, "--"))

    def _fork_point(self, base: str, head: str) -> str:
        """The common ancestor; the base itself if the clone is too shallow."""
        found = self._run("merge-base", base, head)
        return found.stdout.decode().strip() if found.returncode == 0 else base

    def _require(self, commit: str) -> None:
        if not self._has(commit):
            raise Unready(f"{self._place.name} does not have {commit[:12]} yet: fetch it")

    def _has(self, commit: str) -> bool:
        found = self._git("cat-file", "--batch-check", given=f"{commit}\n".encode())
        return found.startswith(f"{commit} commit ".encode())

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        ran = self._run(*arguments, given=given)
        if ran.returncode:
            said = " ".join(ran.stderr.decode(errors="replace").split())
            raise GitFailed(f"git {arguments[0]} ended with {ran.returncode}: {said[-500:]}")
        return ran.stdout

    def _run(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        with _starting():
            return subprocess.run(
                self._command(*arguments),
                env=self._environment,
                input=given,
                capture_output=True,
                check=False,
            )

    def _started(self, *arguments: str, stdin: IO[bytes]) -> subprocess.Popen[bytes]:
        with _starting():
            return subprocess.Popen(
                self._command(*arguments),
                env=self._environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
            )

    def _command(self, *arguments: str) -> list[str]:
        chosen = [word for setting in _CONFIGURATION for word in ("-c", setting)]
        return ["git", "-C", str(self._place), *chosen, *arguments]


@contextmanager
def _starting() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise GitFailed(f"git can't be started: {error.strerror}") from error


class _File(NamedTuple):
    """A file of a commit."""

    mode: bytes
    blob: bytes
    size: int
    name: str

    def write(self, place: Path, blobs: IO[bytes]) -> None:
        """The next of *blobs*, as a file below *place*."""
        about = blobs.readline()
        if about != b"%s blob %d\n" % (self.blob, self.size):
            raise GitFailed(f"the clone lacks {self.name}")
        path = place / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(blobs.read(self.size + 1)[: self.size])
        if self.mode == _PROGRAM:
            path.chmod(0o755)


def _files_of(listed: bytes) -> Iterator[_File]:
    """The entries of `git ls-tree -l -z`: `mode type object size`, a tab, name, NUL."""
    for entry in listed.split(b"\0"):
        about, _, name = entry.partition(b"\t")
        match about.split():
            case [mode, b"blob", blob, size]:
                yield _File(mode, blob, int(size), name.decode(errors="surrogateescape"))
            case _:  # a submodule, or the end
                continue


def _is_harmless(file: _File) -> bool:
    """Whether the name stays inside the directory and is not one that git interprets."""
    return is_path(file.name) and ".git" not in file.name.lower().split("/")


@contextmanager
def _undisturbed() -> Generator[None]:
    """Delay SIGTERM until the end of the block, for this thread and its child processes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _real_files(raw: bytes) -> list[str]:
    """The names in git's raw format: `:old-mode new-mode old new status`, NUL, name, NUL."""
    names: set[str] = set()
    parts = iter(raw.split(b"\0"))
    for about in parts:
        if about.startswith(b":"):
            name = next(parts, b"")
            if about.split(b" ")[1] in _REAL_FILE:
                names.add(name.decode(errors="surrogateescape"))
    return sorted(names)
