"""The example in examples/reviews does what its page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.reviews.repositories import Repository
from tests.apps.reviews.reviewing import a_push, an_attempt
from towpath.apps.reviews.model import Review, Severity, Verdict, read_review
from towpath.apps.reviews.reviewers.command import CommandReviewer
from towpath.cli.config import groups
from towpath.settings import load

EXAMPLE = Path(__file__).parents[3] / "examples" / "reviews"
PAGE = (EXAMPLE / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> str:
    """The PATH where python and ruff are found."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    return path


@pytest.fixture(autouse=True)
def copied(tmp_path: Path) -> None:
    """A copy of the example in a directory of its own, as the page says."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)


def test_the_first_try_prints_a_review(tmp_path: Path, path: str) -> None:
    [script] = blocks("sh")
    ran = subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, capture_output=True, check=True)
    review = Review.unpacked(ran.stdout)
    assert review.verdict is Verdict.REQUEST_CHANGES
    assert {(comment.path, comment.line) for comment in review.comments} == {("hello.py", 1)}


async def test_the_configuration_reviews(tmp_path: Path, path: str) -> None:
    repository = Repository(tmp_path / "clones" / "octo" / "repo")
    head = repository.commit({"new.py": "import os\n"})
    command = load({"config": EXAMPLE / "towpath.toml"}, registry=groups).value(
        "reviews.reviewer_command"
    )
    review = await CommandReviewer(command, directory=tmp_path).review(
        a_push(head=head), an_attempt()
    )
    assert "F401 `os` imported but unused" in [comment.body for comment in review.comments]


def test_fetching_brings_the_commits_of_pull_requests(tmp_path: Path) -> None:
    origin = Repository(tmp_path / "origin")
    origin.commit({"a.py": ""})
    clones = tmp_path / "clones"
    for place in ("octo/repo", "group/sub/repo.git"):
        bare = ["--bare"] if place.endswith(".git") else []
        subprocess.run(["git", "clone", "-q", *bare, origin.place, clones / place], check=True)
    origin.git("checkout", "-q", "-b", "fix")
    head = origin.commit({"b.py": ""})
    origin.git("update-ref", "refs/pull/7/head", head)
    origin.git("checkout", "-q", "main")
    origin.git("branch", "-q", "-D", "fix")
    subprocess.run([EXAMPLE / "fetch.sh", clones], check=True)
    for place in ("octo/repo", "group/sub/repo.git"):
        subprocess.run(["git", "-C", clones / place, "cat-file", "-e", head], check=True)


def test_the_review_on_the_page_is_a_valid_review() -> None:
    [shown] = blocks("json")
    review = read_review(shown.encode())
    assert json.loads(shown)["comments"][0]["severity"] == Severity.WARNING
    assert review.verdict is Verdict.REQUEST_CHANGES
