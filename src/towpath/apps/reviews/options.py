"""The options of the application: whose webhooks are taken, who reviews, where reviews go."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta

from towpath.apps.reviews.model import Forge, ReviewTask
from towpath.calls.errors import CallRefused
from towpath.calls.guard import Guard, parse_target
from towpath.clock import Duration, duration_ms, minutes, seconds
from towpath.errors import InvalidOption
from towpath.forges.github import GITHUB
from towpath.forges.gitlab import GITLAB
from towpath.forges.reading import checked_secrets
from towpath.forges.registry import FORGES
from towpath.options import Allowed, Command, Options, Secret, Signing, Variables

_NONE: Mapping[str, str] = MappingProxyType({})


WITHIN = minutes(10)
REVIEWER = "reviewer"
"""The purpose of calls to a reviewer: their signing secret is derived from it."""


class ReviewsOptions(Options, frozen=True, kw_only=True):
    """Reviews: whose webhooks are taken, who reviews, where reviews are posted."""

    github_secrets: tuple[Secret, ...] = ()
    """Secrets of GitHub's webhooks; two during a rotation. None = webhooks are refused."""
    gitlab_secrets: tuple[Secret, ...] = ()
    """Secrets of GitLab's webhooks: signing tokens (`whsec_…`) or secret tokens."""
    delivery: Annotated[int, Meta(ge=1024, le=25 * 1024 * 1024)] = 5 * 1024 * 1024
    """Maximum size of one webhook, in bytes."""

    reviewer_command: Command = ()
    """The reviewer as a program with arguments: a list, or text. It runs without a shell."""
    reviewer_variables: Variables = _NONE
    """Environment variables that are passed to the reviewer's program: `MODEL_API_KEY`."""
    reviewer_function: str | None = None
    """The reviewer as a Python function: `module:name`."""
    reviewer_url: Secret | None = None
    """The reviewer as an HTTP endpoint; calls are signed, see `towpath secret`."""
    secrets: Signing = ()
    allow: Allowed = ()

    within: Duration = WITHIN
    """How long one review may take."""
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 5
    """How many attempts a review gets before it is dead."""
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 10
    """How many reviews run at once in one server."""

    github_token: Secret | None = None
    """Token for posting reviews to GitHub; none = they are not posted."""
    github_host: str = GITHUB
    """Host of the GitHub that reviews are posted to."""
    github_approves: bool = False
    """Whether the verdict `approve` approves the pull request; otherwise it is a comment."""
    gitlab_token: Secret | None = None
    """Token for posting reviews to GitLab; none = they are not posted."""
    gitlab_host: str = GITLAB
    """Host of the GitLab that reviews are posted to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for forge in FORGES:
            if secrets := getattr(self, name := f"{forge.name}_secrets", ()):
                checked_secrets(name, secrets)
        duration_ms("within", self.within, least=seconds(0.001))
        Guard(self.allow)
        for forge in FORGES:
            host: str | None = getattr(self, name := f"{forge.name}_host", None)
            if host is not None:  # a forge that reviews are not posted to has no host
                _check_address(name, host)
        self._check_reviewer()

    def _check_reviewer(self) -> None:
        ways = ("reviewer_command", "reviewer_function", "reviewer_url")
        named = [name for name in ways if getattr(self, name)]
        if len(named) > 1:
            rule = "a command, a function or a URL: choose one"
            raise InvalidOption(named[0], "…", rule=rule)
        if self.reviewer_url is not None:
            _check_address("reviewer_url", self.reviewer_url)
            if not self.secrets:
                rule = "is required for a reviewer at a URL: calls are signed"
                raise InvalidOption("secrets", "none", rule=rule)

    @property
    def has_reviewer(self) -> bool:
        return bool(self.reviewer_command or self.reviewer_function or self.reviewer_url)

    def posts(self, task: ReviewTask) -> bool:
        """Whether the review of *task* is posted: there is a token for its forge and host."""
        return task.forge in self.posted_to and task.is_from(self.host_of(task.forge))

    @property
    def posted_to(self) -> frozenset[Forge]:
        """The forges that reviews are posted to."""
        return frozenset(Forge(forge.name) for forge in FORGES if self.token_of(forge.name))

    def token_of(self, forge: str) -> str | None:
        """The token for posting reviews to *forge*; None = they are not posted."""
        return getattr(self, f"{forge}_token", None)

    def host_of(self, forge: str) -> str:
        """The address of the instance of *forge* that reviews are posted to."""
        return getattr(self, f"{forge}_host")


def _check_address(option: str, url: str) -> None:
    """Raises InvalidOption, without the URL in its text, because that may contain a token."""
    try:
        parse_target(url)
    except CallRefused as refusal:
        raise InvalidOption(option, "…", rule=refusal.reason) from None
