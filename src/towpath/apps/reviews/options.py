"""The options of the application: whose webhooks are taken, who reviews, where reviews go."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from towpath.apps.reviews.model import Forge, ReviewTask
from towpath.calls.errors import CallRefused
from towpath.calls.guard import Guard
from towpath.calls.target import parse_target
from towpath.clock import Duration, duration_ms, minutes, seconds
from towpath.engine.check import whole
from towpath.errors import InvalidOption
from towpath.forges import GITHUB, GITLAB
from towpath.forges.signing import checked_secrets

LARGEST_DELIVERY = 5 * 1024 * 1024
_NOTHING: Mapping[str, str] = MappingProxyType({})


class ReviewsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How reviews come and go. Shown without secrets, tokens and URLs: they give access."""

    github_secrets: tuple[str, ...] = ()
    """What GitHub's webhooks are signed with; several while one is replaced. None = none are
    taken."""
    gitlab_secrets: tuple[str, ...] = ()
    """The same for GitLab: signing tokens (`whsec_…`) or secret tokens."""
    delivery: int = LARGEST_DELIVERY
    """Bytes of one webhook."""

    command: tuple[str, ...] = ()
    """The reviewer as a program with its arguments."""
    environment: Mapping[str, str] = _NOTHING
    """What that program finds in its environment beside the task."""
    function: str | None = None
    """The reviewer as a Python function, `module:name`."""
    url: str | None = None
    """The reviewer as an HTTP endpoint."""
    secrets: tuple[str, ...] = ()
    """What calls to it are signed with (`whsec_…`)."""
    allow: tuple[str, ...] = ()
    """Networks, addresses and hosts that outgoing calls may reach beside public ones."""

    within: Duration = minutes(10)
    """How long one review may take."""
    attempts: int = 5
    """How often a review is tried before it is dead."""
    concurrency: int = 10
    """How many reviews run at once in one process."""

    github_token: str | None = None
    """With what reviews are posted to GitHub; none = they are not."""
    github_host: str = GITHUB
    github_approves: bool = False
    """Whether the verdict `approve` becomes an approval. It may be all that a branch waits for."""
    gitlab_token: str | None = None
    """With what reviews are posted to GitLab; none = they are not."""
    gitlab_host: str = GITLAB

    def __post_init__(self) -> None:
        for name in ("github_secrets", "gitlab_secrets"):
            if secrets := getattr(self, name):
                checked_secrets(name, secrets)
        whole("delivery", self.delivery, 1024, 25 * 1024 * 1024)
        duration_ms("within", self.within, least=seconds(0.001))
        whole("attempts", self.attempts, 1, 1000)
        whole("concurrency", self.concurrency, 1, 100_000)
        Guard(self.allow)
        _check_address("github_host", self.github_host)
        _check_address("gitlab_host", self.gitlab_host)
        self._check_reviewer()

    def _check_reviewer(self) -> None:
        asked = {"command": self.command, "function": self.function, "url": self.url}
        named = [name for name, value in asked.items() if value]
        if len(named) > 1:
            rule = "a command, a function or a URL: choose one"
            raise InvalidOption(named[0], "…", rule=rule)
        if self.url is not None:
            _check_address("url", self.url)
            if not self.secrets:
                rule = "a reviewer at a URL needs one to be signed with"
                raise InvalidOption("secrets", "none", rule=rule)

    def __repr__(self) -> str:
        taken = [forge for forge in (Forge.GITHUB, Forge.GITLAB) if self.secrets_of(forge)]
        reviewer = "a reviewer" if self.has_reviewer else "no reviewer"
        posted = ", ".join(self.posted_to) or "nowhere"
        return f"ReviewsOptions(from {', '.join(taken) or 'API'}, {reviewer}, posts {posted})"

    def secrets_of(self, forge: Forge) -> tuple[str, ...]:
        """What the webhooks of *forge* are signed with; none = they are not taken."""
        return self.github_secrets if forge is Forge.GITHUB else self.gitlab_secrets

    @property
    def has_reviewer(self) -> bool:
        return bool(self.command or self.function or self.url)

    def posts(self, task: ReviewTask) -> bool:
        """Whether the review of *task* is to be posted: there is a token for where it is from."""
        hosts = {Forge.GITHUB: self.github_host, Forge.GITLAB: self.gitlab_host}
        return task.forge in self.posted_to and task.is_from(hosts[task.forge])

    @property
    def posted_to(self) -> frozenset[Forge]:
        """The forges that get their reviews posted."""
        tokens = {Forge.GITHUB: self.github_token, Forge.GITLAB: self.gitlab_token}
        return frozenset(forge for forge, token in tokens.items() if token)


def _check_address(option: str, url: str) -> None:
    """Raises InvalidOption, which does not repeat it: a token may be in it."""
    try:
        parse_target(url)
    except CallRefused as refusal:
        raise InvalidOption(option, "…", rule=refusal.reason) from None
