"""GitHub: a review on the pull request, or the status of the commit that was pushed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from towpath.apps.reviews.model import Comment, Review, ReviewKind, ReviewTask, Verdict
from towpath.apps.reviews.options import ReviewsOptions
from towpath.apps.reviews.posting.port import Posted, as_posting
from towpath.apps.reviews.posting.wording import body, in_short, line_comment, marker
from towpath.calls.answer import CallAnswer
from towpath.calls.caller import Caller
from towpath.forges.client import ForgeClient
from towpath.forges.github import FORGE, GITHUB

CONTEXT = "towpath/review"

_MOST_AT_LINES = 100
_LONGEST_STATUS = 140
_EVENTS = {
    Verdict.APPROVE: "APPROVE",
    Verdict.COMMENT: "COMMENT",
    Verdict.REQUEST_CHANGES: "REQUEST_CHANGES",
}
_STATES = {
    Verdict.APPROVE: "success",
    Verdict.COMMENT: "success",
    Verdict.REQUEST_CHANGES: "failure",
}


class GitHubPoster:
    """Posts to the GitHub at *host*: github.com, or your own (its API at /api/v3, or at *api*).

    *token* needs "Pull requests: write" and "Commit statuses: write". With *may_approve*, the
    verdict `approve` becomes an approval, which may be all that a protected branch needs; without
    it, it becomes a comment. *context* is the name of the status.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        token: str,
        host: str = GITHUB,
        api: str | None = None,
        context: str = CONTEXT,
        may_approve: bool = False,
    ) -> None:
        self._forge = ForgeClient(caller, FORGE, token=token, host=host, api=api)
        self._context, self._may_approve = context, may_approve

    @classmethod
    def of(cls, options: ReviewsOptions, caller: Caller, token: str) -> GitHubPoster:
        """The poster that *options* describe."""
        host, may_approve = options.github_host, options.github_approves
        return cls(caller, token=token, host=host, may_approve=may_approve)

    async def post(self, task: ReviewTask, review: Review, *, key: str) -> Posted:
        """Post a review on a pull request, unless an earlier attempt has; or a status for a push,
        of which GitHub shows only the last. Raises Retry and Discard."""
        with as_posting(self._forge, task):
            if task.kind is ReviewKind.PULL:
                return await self._post_review(task, review, marker(task, key))
            return await self._post_status(task, review)

    async def _post_review(self, task: ReviewTask, review: Review, mark: str) -> Posted:
        path = f"/repos/{task.repository}/pulls/{task.number}/reviews"
        found = await self._forge.find(path, mark, field="body")
        if found is not None:
            return Posted(url=str(found.get("html_url", "")), existed=True)
        best, *plainer = self._versions(task, review, mark)
        answer = await self._forge.post(path, best)
        for content in plainer:
            if answer.status != 422:
                break
            answer = await self._forge.post(path, content)
        return self._read_posted(answer)

    def _versions(self, task: ReviewTask, review: Review, mark: str) -> Iterator[dict[str, Any]]:
        """The review in its best form, then in plainer ones to post if GitHub refuses that one.

        GitHub refuses a whole review if one comment is at a line outside of the change, and does
        not say which one. It also refuses a verdict on one's own pull request, or on a commit that
        no longer exists.
        """
        event = _EVENTS[review.verdict]
        if event == "APPROVE" and not self._may_approve:
            event = "COMMENT"
        placed = [comment for comment in review.comments if comment.line is not None][
            :_MOST_AT_LINES
        ]
        other = [comment for comment in review.comments if comment not in placed]
        everything = body(task, review, review.comments, mark=mark)
        at_commit = {"commit_id": task.head, "event": event}
        if placed:
            lines = [_at_line(comment) for comment in placed]
            yield at_commit | {"body": body(task, review, other, mark=mark), "comments": lines}
        yield at_commit | {"body": everything}
        yield {"event": "COMMENT", "body": everything}

    async def _post_status(self, task: ReviewTask, review: Review) -> Posted:
        status = {
            "state": _STATES[review.verdict],
            "context": self._context,
            "description": in_short(review, most=_LONGEST_STATUS),
        }
        answer = await self._forge.post(f"/repos/{task.repository}/statuses/{task.head}", status)
        return self._read_posted(answer)

    def _read_posted(self, answer: CallAnswer) -> Posted:
        self._forge.require_taken(answer)
        return Posted(url=_page(answer))


def _at_line(comment: Comment) -> dict[str, Any]:
    return {
        "path": comment.path,
        "line": comment.line,
        "side": "RIGHT",
        "body": line_comment(comment),
    }


def _page(answer: CallAnswer) -> str:
    """The URL for people; empty if the answer has none, because the post succeeded anyway."""
    try:
        fields: Any = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return str(fields.get("html_url") or "")
