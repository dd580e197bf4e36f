"""Local clones: what a change touched, and its files, without the network.

Nothing here trusts the commits: no hook runs, no filter fetches, a symbolic link of the commit
becomes a file with its text, and what may be passed to git is a whole commit id.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from towpath.apps.reviews.model import Kind, ReviewTask
from towpath.apps.reviews.texts import is_path

_CONFIGURATION = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=false",  # a link to a file outside would have that file reviewed, and quoted
    "log.showRoot=true",
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch what it lacks
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_TRIES = 3
_REAL_FILE = (b"100644", b"100755")
_RAW = ("--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--ignore-submodules=all")


class Unready(Exception):
    """The clone does not have what the task is about. A fetch may bring it."""


class GitFailed(Exception):
    """git says that it can't; the message is its own."""


class Clone:
    """A repository on this machine, with or without a working tree."""

    def __init__(self, place: Path) -> None:
        self._place = place.absolute()
        # git would else look for a repository further up, and find another one.
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            **_ENVIRONMENT,
            "GIT_CEILING_DIRECTORIES": str(self._place.parent),
        }

    @classmethod
    def below(cls, clones: Path, repository: str) -> Clone:
        """The clone at `clones/owner/name`, or `…/name.git`. Raises Unready if there is none.

        A task's repository has no parts that lead elsewhere: its own rule sees to that.
        """
        for place in (clones / repository, clones / f"{repository}.git"):
            if place.is_dir():
                return cls(place)
        raise Unready(f"there is no clone of {repository} in {clones}")

    def changed(self, task: ReviewTask) -> list[str]:
        """The files that the task's commits added or changed, sorted. Raises Unready, GitFailed.

        Of a pull request, since it left its target; of a push, since the commit before. Where
        that is not known, those of the last commit. Links, submodules and names that are no
        text are left out.
        """
        self._require(task.head)
        target = self._target(task) if task.kind is Kind.PULL else None
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
        """A directory with the files of *commit*, until the end of the block."""
        folder = Path(tempfile.mkdtemp(prefix="towpath-review-")).resolve()
        # git keeps a list of such places by the last part of their names.
        place = folder / f"towpath-{secrets.token_hex(8)}"
        try:
            self._check_out(commit, place)
            yield place
        finally:
            with _undisturbed():
                self._run("worktree", "remove", "--force", str(place))
                shutil.rmtree(folder, ignore_errors=True)

    def _check_out(self, commit: str, place: Path) -> None:
        # Whoever takes away the last other tree also takes away the directory of their list, and
        # may do so just when this one is to be put on it.
        for _ in range(_TRIES - 1):
            if self._run("worktree", "add", "--detach", str(place), commit).returncode == 0:
                return
        self._git("worktree", "add", "--detach", str(place), commit)

    def _target(self, task: ReviewTask) -> str | None:
        """What a pull request wants to go into: the commit that the forge names, else the branch,
        as it was when it was fetched."""
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
        """Where the two parted; the base itself in a clone that does not go back so far."""
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
        chosen = [word for setting in _CONFIGURATION for word in ("-c", setting)]
        try:
            return subprocess.run(
                ["git", "-C", str(self._place), *chosen, *arguments],  # noqa: S607 -- the user's own git
                env=self._environment,
                input=given,
                capture_output=True,
                check=False,
            )
        except OSError as error:
            raise GitFailed(f"git can't be started: {error.strerror}") from error


@contextmanager
def _undisturbed() -> Generator[None]:
    """SIGTERM waits until the end of the block, for this thread and for what it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _real_files(raw: bytes) -> list[str]:
    return sorted({name for name in _named(raw) if is_path(name)})


def _named(raw: bytes) -> Iterator[str]:
    """The names in git's raw format: `:old-mode new-mode old new status`, NUL, name, NUL."""
    parts = iter(raw.split(b"\0"))
    for about in parts:
        if about.startswith(b":"):
            name = next(parts, b"")
            if about.split(b" ")[1] in _REAL_FILE:
                yield name.decode(errors="surrogateescape")
