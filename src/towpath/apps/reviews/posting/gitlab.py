"""GitLab: a note on the merge request, or status and comment of the commit that was pushed."""

from __future__ import annotations

from urllib.parse import quote

from towpath.apps.reviews.model import Review, ReviewKind, ReviewTask, Verdict
from towpath.apps.reviews.options import ReviewsOptions
from towpath.apps.reviews.posting.port import Posted, as_posting
from towpath.apps.reviews.posting.wording import body, in_short, marker
from towpath.calls.caller import Caller
from towpath.forges.client import ForgeClient
from towpath.forges.gitlab import FORGE, GITLAB

CONTEXT = "towpath/review"

_LONGEST_STATUS = 255
_STATES = {
    Verdict.APPROVE: "success",
    Verdict.COMMENT: "success",
    Verdict.REQUEST_CHANGES: "failed",
}
_SAME_AGAIN = "cannot transition status"
"""Part of the answer of a GitLab before 18 to a status that the commit has already."""


class GitLabPoster:
    """Posts to the GitLab at *host* (its API at /api/v4, or at *api*).

    *token* is a personal, group or project token with the scope `api`, and the role Developer for
    the status of a commit. A note approves nothing, whatever the verdict. *context* is the name of
    the status.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        token: str,
        host: str = GITLAB,
        api: str | None = None,
        context: str = CONTEXT,
    ) -> None:
        self._forge = ForgeClient(caller, FORGE, token=token, host=host, api=api)
        self._context = context

    @classmethod
    def of(cls, options: ReviewsOptions, caller: Caller, token: str) -> GitLabPoster:
        """The poster that *options* describe."""
        return cls(caller, token=token, host=options.gitlab_host)

    async def post(self, task: ReviewTask, review: Review, *, key: str) -> Posted:
        """Post a note on a merge request; for a push a status, and the review's comments, if any.

        A note or comment is not posted again if an earlier attempt has. Raises Retry and Discard.
        """
        with as_posting(self._forge, task):
            return await self._post(task, review, key)

    async def _post(self, task: ReviewTask, review: Review, key: str) -> Posted:
        project, mark = f"/projects/{quote(task.repository, safe='')}", marker(task, key)
        if task.kind is ReviewKind.PULL:
            path = f"{project}/merge_requests/{task.number}/notes"
            return await self._post_once(path, task, review, mark, field="body")
        await self._post_status(f"{project}/statuses/{task.head}", task, review)
        if not review.comments:
            return Posted()
        path = f"{project}/repository/commits/{task.head}/comments"
        return await self._post_once(path, task, review, mark, field="note")

    async def _post_once(
        self, path: str, task: ReviewTask, review: Review, mark: str, *, field: str
    ) -> Posted:
        if await self._forge.find(path, mark, field=field) is not None:
            return Posted(existed=True)
        text = body(task, review, review.comments, mark=mark)
        self._forge.require_taken(await self._forge.post(path, {field: text}))
        return Posted()

    async def _post_status(self, path: str, task: ReviewTask, review: Review) -> None:
        status = {
            "state": _STATES[review.verdict],
            "name": self._context,
            "ref": task.ref,
            "description": in_short(review, most=_LONGEST_STATUS),
        }
        answer = await self._forge.post(path, status)
        if answer.status == 400 and _SAME_AGAIN in self._forge.said(answer).lower():
            return
        self._forge.require_taken(answer)
