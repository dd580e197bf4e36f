"""A reviewer that is an HTTP endpoint: the task is posted, signed, and the review is the answer."""

from __future__ import annotations

from collections.abc import Sequence

from towpath.apps.outcomes import calling
from towpath.apps.reviews.model import Review, ReviewTask
from towpath.apps.reviews.reviewers.reading import printed
from towpath.calls.answer import require_taken
from towpath.calls.caller import Caller
from towpath.calls.signature import message_id, sign
from towpath.calls.target import parse_target
from towpath.errors import InvalidOption
from towpath.worker.context import Context

_HEADERS = {"content-type": "application/json", "accept": "application/json, text/plain"}


class HttpReviewer:
    """Posts each task to *url*, signed with *secrets* as Standard Webhooks has it.

    All attempts at a task have the same webhook-id. How long an answer may take, and how large it
    may be, is the *caller*'s to say; it must be open. Raises CallRefused for a URL that is none,
    SecretInvalid, and InvalidOption if there is no secret.
    """

    def __init__(self, caller: Caller, url: str, *, secrets: Sequence[str]) -> None:
        parse_target(url)
        if not secrets or isinstance(secrets, str):
            raise InvalidOption("secrets", "…", rule="must be a list of at least one secret")
        for secret in secrets:
            sign(secret, "check", 0, b"")
        self._caller, self._url, self._secrets = caller, url, tuple(secrets)

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        """What the endpoint answered, as JSON or plain text.

        Retry for no answer and for what may be taken later, after the Retry-After if there is one;
        Discard for what never will be (`calls/answer.py`), redirects and an answer too large.
        """
        body, id = task.packed(), message_id(ctx.id)
        with calling("the reviewer"):
            answer = await self._caller.post(
                self._url, body, headers=_HEADERS, message=id, secrets=self._secrets
            )
            require_taken(answer, "the reviewer")
        return printed(answer.body)
