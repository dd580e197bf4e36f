"""A review in the words that a forge shows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from towpath.apps.reviews.model import Comment, Review, ReviewTask, Severity, Verdict

LARGEST_BODY = 65_000
"""Characters. GitHub takes 65,536."""

_VERDICTS = {
    Verdict.APPROVE: "Nothing to change",
    Verdict.COMMENT: "Review",
    Verdict.REQUEST_CHANGES: "Changes requested",
}
_SEVERITIES = {Severity.INFO: "", Severity.WARNING: "**warning** ", Severity.ERROR: "**error** "}
# GitLab and many bots run `/merge` at the beginning of a line as a command of the poster. A
# reviewer may repeat what strangers wrote: behind a backslash, it is text and looks the same.
_ORDER = re.compile(r"^(\s*)/(?=\w)", re.MULTILINE)


def marker(task: ReviewTask, key: str) -> str:
    """A hidden mark by which a later attempt finds what was posted. Nobody can know it before."""
    text = f"{task.forge}:{task.repository}:{task.head}:{key}"
    return f"<!-- towpath:{hashlib.sha256(text.encode()).hexdigest()[:32]} -->"


def body(task: ReviewTask, review: Review, comments: Iterable[Comment], *, mark: str) -> str:
    """The review as Markdown, with *comments* as a list; those that do not fit are counted."""
    whole = f"**{_VERDICTS[review.verdict]}** · {task.head[:12]}\n\n{text(review.summary)}"
    room = LARGEST_BODY - len(mark) - 100
    items = [item(comment) for comment in comments]
    for place, one in enumerate(items):
        if len(whole) + len(one) > room:
            whole += f"\n\n… and {len(items) - place} more comments."
            break
        whole += ("\n\n" if place == 0 else "\n") + one
    return f"{whole}\n\n{mark}"


def item(comment: Comment) -> str:
    """A comment as an item of a list, for when it can't be posted at its line."""
    place = comment.path if comment.line is None else f"{comment.path}:{comment.line}"
    indented = text(comment.body).replace("\n", "\n  ")
    return f"- `{place.replace('`', chr(39))}` {_SEVERITIES[comment.severity]}{indented}"


def line_comment(comment: Comment) -> str:
    """A comment that is posted at its line."""
    return _SEVERITIES[comment.severity] + text(comment.body)


def in_short(review: Review, *, most: int) -> str:
    """The verdict and the first line of the summary, for a commit's status."""
    first = review.summary.strip().partition("\n")[0].strip()
    whole = f"{_VERDICTS[review.verdict]}: {first}"
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def text(said: str) -> str:
    """A text of the reviewer, with commands to the forge escaped."""
    return _ORDER.sub(r"\1\\/", said)
