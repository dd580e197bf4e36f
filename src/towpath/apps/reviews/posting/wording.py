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
# At the beginning of a line, GitLab takes `/merge` for an order of whoever posts it, and so do many
# bots. A reviewer repeats what strangers wrote; with a backslash it looks the same and is text.
_ORDER = re.compile(r"^(\s*)/(?=\w)", re.MULTILINE)


def marker(task: ReviewTask, key: str) -> str:
    """What an earlier attempt is found by: nobody sees it, nobody knows it before it is there."""
    text = f"{task.forge}:{task.repository}:{task.head}:{key}"
    return f"<!-- towpath:{hashlib.sha256(text.encode()).hexdigest()[:32]} -->"


def body(task: ReviewTask, review: Review, comments: Iterable[Comment], *, mark: str) -> str:
    """The review as Markdown, with *comments* as a list; those that find no room are counted."""
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
    """A comment as an item of a list, for where it can't stand at its line."""
    place = comment.path if comment.line is None else f"{comment.path}:{comment.line}"
    said = text(comment.body).replace("\n", "\n  ")
    return f"- `{place.replace('`', chr(39))}` {_SEVERITIES[comment.severity]}{said}"


def line_comment(comment: Comment) -> str:
    """A comment that stands at its line."""
    return _SEVERITIES[comment.severity] + text(comment.body)


def in_short(review: Review, *, most: int) -> str:
    """The verdict and the first line of the summary, for a commit's status."""
    first = review.summary.strip().partition("\n")[0].strip()
    whole = f"{_VERDICTS[review.verdict]}: {first}"
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def text(said: str) -> str:
    """What a reviewer said, without orders to the forge in it."""
    return _ORDER.sub(r"\1\\/", said)
