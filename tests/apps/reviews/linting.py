"""Runs the linter as a program, with clones of its own."""

import os
import sys
from pathlib import Path

from tests.programs import ProgramResult, run
from towpath.apps.reviews.model import Review, ReviewTask

EXAMPLE = Path(__file__).parents[3] / "examples" / "reviews"
# Reports each of its files, and fails as linters do.
TELLS = ["sh", "-c", 'for it; do echo "$it:1:1: seen"; done; exit 1', "sh"]
TRUST = "--trust-commits"
PROGRAM = [sys.executable, str(EXAMPLE / "linter.py")]


class LinterRuns:
    """Runs the linter in a directory of clones; returns its review of a task there."""

    def __init__(self, root: Path) -> None:
        self.clones, self.temporary = root / "clones", root / "temporary"
        self.temporary.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary)}

    def command(self, *linter: str, suffix: str = ".py") -> list[str]:
        trust = [] if {"ruff", "flake8"} & {Path(word).name for word in linter} else [TRUST]
        return [*PROGRAM, "--clones", str(self.clones), "--suffix", suffix, *trust, "--", *linter]

    def run(self, task: ReviewTask | bytes, *linter: str) -> ProgramResult:
        given = task if isinstance(task, bytes) else task.packed()
        ran = run(self.command(*(linter or TELLS)), env=self.environment, input=given)
        assert list(self.temporary.iterdir()) == []  # nothing may be left, whatever happens
        return ran

    def review(self, task: ReviewTask, *linter: str) -> Review:
        ran = self.run(task, *linter)
        assert ran.code == 0, ran.err
        return Review.unpacked(ran.out.encode())

    def files(self, task: ReviewTask) -> list[str]:
        """The files that the linter got."""
        return [comment.path for comment in self.review(task).comments]
