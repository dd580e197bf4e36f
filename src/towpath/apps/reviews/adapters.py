"""The reviewer and the posters that the options ask for, with the connections they need."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from towpath.app.app import Towpath
from towpath.apps.application import StartFact
from towpath.apps.outcomes import calling
from towpath.apps.reviews.handlers import add_posting, add_reviews
from towpath.apps.reviews.model import Forge, Review, ReviewTask
from towpath.apps.reviews.options import REVIEWER, ReviewsOptions
from towpath.apps.reviews.posting.github import GitHubPoster
from towpath.apps.reviews.posting.gitlab import GitLabPoster
from towpath.apps.reviews.posting.port import Poster
from towpath.apps.reviews.reviewers.command import CommandReviewer
from towpath.apps.reviews.reviewers.errors import ReviewerUnavailable
from towpath.apps.reviews.reviewers.function import FunctionReviewer
from towpath.apps.reviews.reviewers.port import Reviewer, printed
from towpath.calls.answer import require_taken
from towpath.calls.caller import Caller
from towpath.calls.guard import parse_target
from towpath.calls.signature import derive_secret, message_id, sign
from towpath.clock import Duration, seconds
from towpath.errors import InvalidOption
from towpath.worker.context import Context

_POST_WITHIN = seconds(30)
_HEADERS = {"content-type": "application/json", "accept": "application/json, text/plain"}
_LARGEST_ANSWER = 8 * 1024 * 1024
"""In bytes: a poster searches a forge's lists, which are long, for what was posted before."""
POSTERS: Mapping[str, Callable[[ReviewsOptions, Caller, str], Poster]] = {
    "github": GitHubPoster.of,
    "gitlab": GitLabPoster.of,
}
"""By the name of the forge: makes its poster, given the options, a caller and the token."""


class HttpReviewer:
    """Posts each task to *url*, signed with *secrets* as Standard Webhooks has it.

    All attempts at a task have the same webhook-id. The *caller* must be open; it limits the time
    and the size of an answer. Raises CallRefused for a URL that is not valid, SecretInvalid, and
    InvalidOption if there is no secret.
    """

    def __init__(self, caller: Caller, url: str, *, secrets: Sequence[str]) -> None:
        parse_target(url)
        if not secrets or isinstance(secrets, str):
            raise InvalidOption("secrets", "…", rule="must be a list of at least one secret")
        for secret in secrets:
            sign(secret, "check", 0, b"")
        self._caller, self._url, self._secrets = caller, url, tuple(secrets)

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        """The review that the endpoint answered, as JSON or plain text.

        Raises Retry for no answer and for a refusal that may pass, after the Retry-After if there
        is one; Discard for a lasting refusal (`calls/answer.py`), a redirect, or an answer that is
        too large.
        """
        body, id = task.packed(), message_id(ctx.id)
        with calling("the reviewer"):
            answer = await self._caller.post(
                self._url, body, headers=_HEADERS, message=id, secrets=self._secrets
            )
            require_taken(answer, "the reviewer")
        return printed(answer.body)


class ReviewAdapters:
    """The reviewer and the posters. The constructor checks the options; entering it connects.

    The operator chose the addresses, so their hosts may be private ones. Raises InvalidOption and
    CallRefused for options that are not valid, and whatever the reviewer's module raises.
    """

    def __init__(self, options: ReviewsOptions) -> None:
        self._callers: list[Caller] = []
        self._connections = AsyncExitStack()
        self.reviewer: Reviewer | None = self._make_reviewer(options)
        self.posters: Mapping[Forge, Poster] = self._make_posters(options)

    async def __aenter__(self) -> Self:
        for caller in self._callers:
            await self._connections.enter_async_context(caller)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.aclose()

    def _make_reviewer(self, options: ReviewsOptions) -> Reviewer | None:
        if options.reviewer_command:
            return _make_command(options)
        if options.reviewer_function is not None:
            return FunctionReviewer.at(options.reviewer_function)
        if options.reviewer_url is not None:
            caller = self._caller(options, options.reviewer_url, within=options.within)
            secrets = [derive_secret(secret, REVIEWER) for secret in options.secrets]
            return HttpReviewer(caller, options.reviewer_url, secrets=secrets)
        return None

    def _make_posters(self, options: ReviewsOptions) -> dict[Forge, Poster]:
        posters: dict[Forge, Poster] = {}
        for forge in sorted(options.posted_to):
            caller = self._caller(options, options.host_of(forge), within=_POST_WITHIN)
            posters[forge] = POSTERS[forge](options, caller, options.token_of(forge) or "")
        return posters

    def _caller(self, options: ReviewsOptions, url: str, *, within: Duration) -> Caller:
        caller = Caller(
            allow=(parse_target(url).host, *options.allow),
            timeout=within,
            largest_answer=_LARGEST_ANSWER,
        )
        self._callers.append(caller)
        return caller


class ReviewsConsumers:
    """The handlers that the options ask for: a reviewer, posters, both or none."""

    def __init__(self, options: ReviewsOptions) -> None:
        self._options, self._adapters = options, ReviewAdapters(options)

    @asynccontextmanager
    async def added(self, app: Towpath) -> AsyncGenerator[None]:
        """Add the handlers to *app*; their connections are open while the body runs."""
        async with self._adapters as out:
            if out.reviewer is not None:
                add_reviews(app, out.reviewer, self._options)
            if out.posters:
                add_posting(app, out.posters)
            yield


_NO_REVIEWER = (
    "none: reviews stay PENDING until a worker has a reviewer, or reviews.reviewer_command is set"
)


def facts(options: ReviewsOptions) -> dict[str, StartFact]:
    """Who reviews, without possible secrets: no arguments, and only the host of a URL."""
    who = None
    if options.reviewer_command:
        who = f"the program {options.reviewer_command[0]}"
    elif options.reviewer_function:
        who = f"the function {options.reviewer_function}"
    elif options.reviewer_url:
        who = f"the URL {parse_target(options.reviewer_url)}"
    return {"reviewer": StartFact(who, _NO_REVIEWER)}


def _make_command(options: ReviewsOptions) -> CommandReviewer:
    """The reviewer's program. Raises InvalidOption if it is missing: else every task would fail."""
    reviewer = CommandReviewer(
        options.reviewer_command, environment=options.reviewer_variables, within=options.within
    )
    try:
        reviewer.require_program()
    except ReviewerUnavailable as error:
        raise InvalidOption("reviewer_command", error.program, rule=error.reason) from error
    return reviewer
