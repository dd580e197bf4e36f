"""Reviews: the task, what the reviewer answered, and what can be read of both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import StrEnum

import msgspec
from msgspec.structs import force_setattr as set_field

from towpath.apps.reviews.errors import ReviewInvalid, TaskInvalid
from towpath.clock import ZERO
from towpath.engine.model import HIGH, NORMAL
from towpath.engine.options import QueueOptions
from towpath.forges.reading import decoded
from towpath.forges.texts import (
    REF_MOST,
    REPOSITORY_MOST,
    is_branch,
    is_commit,
    is_path,
    is_plain,
    is_repository,
    is_url,
    one_line,
    prose,
    without_invisible,
)

REVIEWS = "reviews"
POSTS = "reviews.post"
QUEUES = {name: QueueOptions(keep=ZERO) for name in (REVIEWS, POSTS)}
"""The rows keep what has ended."""

TITLE_MOST = 500
AUTHOR_MOST = 100
NUMBER_MOST = 2**31 - 1
LINE_MOST = 10_000_000
SUMMARY_MOST = 60_000
"""Characters: GitHub takes 65,536 in one text."""
BODY_MOST = 10_000
COMMENTS_MOST = 1_000
REVIEW_MOST = 1024 * 1024
"""Bytes of a whole review: what a job's result may have."""
_SHOWN_REF, _SHOWN_CHARACTERS = 244, 40
"""Bytes of a branch in a subject, which has 512 in all; and characters of one that is cut."""
_CUT = "\n\n… (the reviewer's text was cut here)"


# ── what is reviewed ─────────────────────────────────────────────────────────────────────


class Forge(StrEnum):
    """Where a task comes from."""

    GITHUB = "github"
    GITLAB = "gitlab"
    API = "api"
    """Somebody asked, by HTTP or at the terminal."""


class ReviewKind(StrEnum):
    """What a task is about."""

    PULL = "pull"
    """A pull request, or a merge request."""
    PUSH = "push"


class Action(StrEnum):
    """What happened; the same words for all forges."""

    OPENED = "opened"
    REOPENED = "reopened"
    UPDATED = "updated"
    """New commits on a pull request."""
    READY = "ready"
    """A draft became a pull request to be reviewed."""
    PUSHED = "pushed"
    REQUESTED = "requested"
    """Somebody asked for a review."""


class ReviewTask(msgspec.Struct, frozen=True, kw_only=True):
    """One commit to be reviewed, and how to find it. Raises TaskInvalid for what can't be right.

    Every text in it was written by a stranger: what is used as a path or an address fits a pattern,
    a branch is any that git takes, the others are one line for people to read. None of it goes
    through a shell.
    """

    forge: Forge
    kind: ReviewKind
    repository: str
    """`owner/name`; on GitLab with all its groups."""
    head: str
    """The commit to review, as a whole id."""
    number: int | None = None
    """The pull request's; must be left out for a push."""
    ref: str = ""
    """The branch that `head` is on, without `refs/heads/`. In a pull request from a fork it is a
    branch of the fork."""
    target: str | None = None
    """The branch that the pull request targets."""
    base: str | None = None
    """The commit of `target` that it starts from, where the forge says so: GitLab does not."""
    before: str | None = None
    """What the branch was at before these commits; None for a new one."""
    title: str = ""
    author: str = ""
    """Who opened it or pushed; GitLab names who did the last thing to it."""
    url: str = ""
    """The URL of its web page."""
    clone_url: str = ""
    """Of the repository, never of a fork."""
    action: Action = Action.REQUESTED
    host: str = ""
    """The forge's own address, `https://github.com`, to post to. Whoever holds a webhook's secret
    can choose it: a token is sent only where the operator says."""

    def __post_init__(self) -> None:
        set_field(self, "title", one_line(without_invisible(self.title), most=TITLE_MOST))
        set_field(self, "author", one_line(self.author, most=AUTHOR_MOST))
        for field, (fits, rule) in _TASK_RULES.items():
            value: str | None = getattr(self, field)
            if value is None or (not value and field in _MAY_BE_EMPTY):
                continue
            if not fits(value):
                raise TaskInvalid(field, rule)
        self._check_place()

    def _check_place(self) -> None:
        if self.kind == ReviewKind.PULL:
            if self.number is None or not 1 <= self.number <= NUMBER_MOST:
                raise TaskInvalid("number", f"must be from 1 to {NUMBER_MOST}")
        elif self.number is not None:
            raise TaskInvalid("number", "must be left out for a push")
        elif not self.ref:
            raise TaskInvalid("ref", "pass `ref` for a push, `number` for a pull request")

    def is_from(self, host: str) -> bool:
        """Whether it came from the forge at *host*; one that names no host did."""
        return not self.host or self.host.lower().rstrip("/") == host.lower().rstrip("/")

    def packed(self) -> bytes:
        """Its bytes in the record: the same task always has the same."""
        return msgspec.json.encode(self)

    @staticmethod
    def unpacked(data: bytes) -> ReviewTask:
        """The task behind a record's payload. Raises TaskInvalid for one that somebody spoilt."""
        return decoded(_TASK, data, refusal=TaskInvalid, whole="task")


_COMMIT = (is_commit, "must be a commit's whole id of 40 or 64 hexadecimal digits")
_BRANCH = (is_branch, f"must be a branch as git allows it, of up to {REF_MOST} bytes")
_ADDRESS = (is_url, "must be an http or https URL without a user or password")
_TASK_RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    "repository": (is_repository, f"must be owner/name of up to {REPOSITORY_MOST} characters"),
    "head": _COMMIT,
    "base": _COMMIT,
    "before": _COMMIT,
    "ref": _BRANCH,
    "target": _BRANCH,
    "url": _ADDRESS,
    "clone_url": _ADDRESS,
    "host": _ADDRESS,
}
_MAY_BE_EMPTY = {"ref", "url", "clone_url", "host"}
_TASK = msgspec.json.Decoder(ReviewTask)


def subject_of(task: ReviewTask) -> str:
    """What a task is about: of the tasks about one subject, the latest counts."""
    place = f"@{_in_short(task.ref)}" if task.kind == ReviewKind.PUSH else f"#{task.number}"
    return f"{task.forge}:{task.repository}{place}"


def _in_short(ref: str) -> str:
    """A branch as it can be shown and kept: a name that can't is cut, with its digest behind."""
    if len(ref.encode()) <= _SHOWN_REF and is_plain(ref):
        return ref
    beginning = one_line(ref, most=_SHOWN_CHARACTERS)
    return f"{beginning}…{hashlib.sha256(ref.encode()).hexdigest()}"


def priority_of(task: ReviewTask) -> int:
    """Pull requests run before pushes: somebody waits for them."""
    return HIGH if task.kind == ReviewKind.PULL else NORMAL


# ── what a review says ───────────────────────────────────────────────────────────────────


class Verdict(StrEnum):
    """The reviewer's verdict."""

    APPROVE = "approve"
    COMMENT = "comment"
    REQUEST_CHANGES = "request_changes"


class Severity(StrEnum):
    """How much a comment matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Comment(msgspec.Struct, frozen=True, kw_only=True):
    """A remark on one file, or on one line of it. Raises ReviewInvalid."""

    path: str
    body: str
    line: int | None = None
    """From 1; None = the whole file."""
    severity: Severity = Severity.INFO

    def __post_init__(self) -> None:
        set_field(self, "body", prose(self.body))
        if not is_path(self.path):
            raise ReviewInvalid(
                "path", "must be a file's path in the repository, without ./ and .."
            )
        if not 0 < len(self.body) <= BODY_MOST:
            raise ReviewInvalid("body", f"must have 1 to {BODY_MOST} characters")
        if self.line is not None and not 1 <= self.line <= LINE_MOST:
            raise ReviewInvalid("line", f"must be from 1 to {LINE_MOST}")


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """What a reviewer says of a task. Raises ReviewInvalid for more than a forge would take."""

    summary: str
    verdict: Verdict = Verdict.COMMENT
    comments: tuple[Comment, ...] = ()

    def __post_init__(self) -> None:
        set_field(self, "summary", prose(self.summary))
        if not 0 < len(self.summary) <= SUMMARY_MOST:
            raise ReviewInvalid("summary", f"must have 1 to {SUMMARY_MOST} characters")
        if len(self.comments) > COMMENTS_MOST:
            raise ReviewInvalid("comments", f"must be at most {COMMENTS_MOST}")

    def packed(self) -> bytes:
        """Its bytes as a result. Raises ReviewInvalid for more than REVIEW_MOST."""
        return _bounded(msgspec.json.encode(self))

    @staticmethod
    def unpacked(data: bytes) -> Review:
        """The review behind a record's result. Raises ReviewInvalid."""
        return decoded(_REVIEW, data, refusal=ReviewInvalid, whole="review")


_REVIEW = msgspec.json.Decoder(Review)


def read_review(output: bytes) -> Review:
    """What a reviewer printed or answered: JSON if it begins with `{`, else text, the summary.

    JSON has to fit: a wrong field is refused, an unknown one passed over. Text is taken as it
    is, up to the length of a summary, and says so where it is cut. Raises ReviewInvalid, also for
    nothing at all.
    """
    if _bounded(output).lstrip().startswith(b"{"):
        return Review.unpacked(output)
    text = prose(output.decode(errors="replace"))
    if len(text) > SUMMARY_MOST:
        text = text[: SUMMARY_MOST - len(_CUT)] + _CUT
    return Review(summary=text)


def _bounded(data: bytes) -> bytes:
    if len(data) > REVIEW_MOST:
        raise ReviewInvalid("review", f"must have at most {REVIEW_MOST} bytes")
    return data


# ── what can be known ────────────────────────────────────────────────────────────────────


class ReviewState(StrEnum):
    """The state of a review."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    """Its last attempt failed; it waits for the next."""
    DEAD = "DEAD"
    """No attempt is left; `retry` gives it new ones."""
    SUPERSEDED = "SUPERSEDED"
    """A newer one about the same subject came before it ran."""
    CANCELLED = "CANCELLED"

    @classmethod
    def of(cls, recorded: str) -> ReviewState:
        """The state of the record with that name."""
        return cls(recorded.upper())
