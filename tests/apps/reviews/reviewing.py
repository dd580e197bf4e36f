"""Tasks, reviews and an attempt, for tests of reviewers."""

from typing import Any

from towpath.apps.reviews.model import (
    REVIEWS,
    Comment,
    Forge,
    Review,
    ReviewKind,
    ReviewTask,
    Severity,
    Verdict,
)
from towpath.worker.context import Context

HEAD = "a1" * 20
BASE = "b2" * 20


def a_task(**more: Any) -> ReviewTask:
    """A pull request on GitHub, with other fields if given."""
    plain: dict[str, Any] = {
        "forge": Forge("github"),
        "kind": ReviewKind.PULL,
        "repository": "octo/repo",
        "number": 7,
        "head": HEAD,
        "base": BASE,
        "ref": "fix",
        "target": "main",
        "title": "A fix",
        "author": "ann",
    }
    return ReviewTask(**{**plain, **more})


def a_push(**more: Any) -> ReviewTask:
    plain: dict[str, Any] = {"kind": ReviewKind.PUSH, "number": None, "base": None, "target": None}
    return a_task(**{**plain, "ref": "main", **more})


def a_review(*comments: Comment, **more: Any) -> Review:
    plain: dict[str, Any] = {"summary": "Two things.", "verdict": Verdict.REQUEST_CHANGES}
    return Review(comments=comments, **{**plain, **more})


def a_comment(path: str = "src/a.py", line: int | None = 3, **more: Any) -> Comment:
    plain: dict[str, Any] = {"body": "This is unused.", "severity": Severity.WARNING}
    return Comment(path=path, line=line, **{**plain, **more})


def an_attempt() -> Context:
    return Context.here(REVIEWS, handler="review")
