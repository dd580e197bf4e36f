"""Reviews: the task, the reviewer's answer, and the state of a review."""

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
from towpath.forges.registry import FORGES
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
"""Redis keeps no ended jobs, because the records do."""

TITLE_MOST = 500
AUTHOR_MOST = 100
NUMBER_MOST = 2**31 - 1
LINE_MOST = 10_000_000
SUMMARY_MOST = 60_000
"""In characters; GitHub allows 65,536 in one text."""
BODY_MOST = 10_000
COMMENTS_MOST = 1_000
REVIEW_MOST = 1024 * 1024
"""In bytes, of a whole review; the limit of a job's result."""
_SHOWN_REF, _SHOWN_CHARACTERS = 244, 40
"""The longest branch that a subject shows whole, in bytes (a subject has at most 512), and how many
characters it shows of a longer one."""
_CUT = "\n\n… (the reviewer's text was cut here)"


# ── what is reviewed ─────────────────────────────────────────────────────────────────────


class Forge(StrEnum):
    """Where a task comes from."""

    # A member for each known forge: `Forge("github")`.
    _ignore_ = "forge"
    for forge in FORGES:
        vars()[forge.name.upper()] = forge.name
    API = "api"
    """A request over HTTP or at the terminal."""


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
    """A draft became ready for review."""
    PUSHED = "pushed"
    REQUESTED = "requested"
    """Somebody asked for a review."""


class ReviewTask(msgspec.Struct, frozen=True, kw_only=True):
    """One commit to be reviewed, and how to find it. Raises TaskInvalid if a field is not valid.

    Strangers write these texts. Paths and addresses must fit a pattern, a branch must be valid in
    git, and the other texts become one line for people to read. None of them goes through a shell.
    """

    forge: Forge
    kind: ReviewKind
    repository: str
    """`owner/name`; on GitLab with all its groups."""
    head: str
    """The full id of the commit to review."""
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
    """The commit that the branch was at before these commits; None for a new branch."""
    title: str = ""
    author: str = ""
    """Who opened or pushed it; on GitLab, who changed it last."""
    url: str = ""
    """The URL of its web page."""
    clone_url: str = ""
    """Of the repository, never of a fork."""
    action: Action = Action.REQUESTED
    host: str = ""
    """The address of the forge: `https://github.com`. The sender of a webhook can choose it, so a
    token is only sent to the host that the operator has configured."""

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
        """Whether it came from the forge at *host*. A task without a host fits any."""
        return not self.host or self.host.lower().rstrip("/") == host.lower().rstrip("/")

    def packed(self) -> bytes:
        """The payload of its record. Equal tasks have equal payloads."""
        return msgspec.json.encode(self)

    @staticmethod
    def unpacked(data: bytes) -> ReviewTask:
        """The task in a record's payload. Raises TaskInvalid if the payload is damaged."""
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
    """The pull request or branch of a task. Of the tasks with one subject, the latest counts."""
    place = f"@{_shorten(task.ref)}" if task.kind == ReviewKind.PUSH else f"#{task.number}"
    return f"{task.forge}:{task.repository}{place}"


def _shorten(ref: str) -> str:
    """The branch; one that is too long or not printable is cut, and its digest follows."""
    if len(ref.encode()) <= _SHOWN_REF and is_plain(ref):
        return ref
    beginning = one_line(ref, most=_SHOWN_CHARACTERS)
    return f"{beginning}…{hashlib.sha256(ref.encode()).hexdigest()}"


def priority_of(task: ReviewTask) -> int:
    """Pull requests run before pushes, because people wait for them."""
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
    """What a reviewer says of a task. Raises ReviewInvalid for more than a forge takes."""

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
        """The result of its record. Raises ReviewInvalid for more than REVIEW_MOST bytes."""
        return _check_size(msgspec.json.encode(self))

    @staticmethod
    def unpacked(data: bytes) -> Review:
        """The review in a record's result. Raises ReviewInvalid."""
        return decoded(_REVIEW, data, refusal=ReviewInvalid, whole="review")


_REVIEW = msgspec.json.Decoder(Review)


def read_review(output: bytes) -> Review:
    """The review in a reviewer's output: JSON if it begins with `{`, else the text of the summary.

    In JSON, a field with a wrong value is refused, and an unknown field is ignored. Text that is
    too long for a summary is cut, and says so. Raises ReviewInvalid, also for an empty output.
    """
    if _check_size(output).lstrip().startswith(b"{"):
        return Review.unpacked(output)
    text = prose(output.decode(errors="replace"))
    if len(text) > SUMMARY_MOST:
        text = text[: SUMMARY_MOST - len(_CUT)] + _CUT
    return Review(summary=text)


def _check_size(data: bytes) -> bytes:
    if len(data) > REVIEW_MOST:
        raise ReviewInvalid("review", f"must have at most {REVIEW_MOST} bytes")
    return data


# ── states ───────────────────────────────────────────────────────────────────────────────


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
        """The state of a review whose record has the state *recorded*."""
        return cls(recorded.upper())
