"""The options of the application: whose issues are handed out, by which policy, for how long."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from towpath.calls.errors import CallRefused
from towpath.calls.guard import Guard, parse_target
from towpath.clock import Duration, duration_ms, minutes, seconds
from towpath.errors import InvalidOption
from towpath.forges.github import GITHUB
from towpath.forges.reading import checked_secrets
from towpath.forges.texts import is_repository
from towpath.options import Allowed, Options, Secret


class IssuesOptions(Options, frozen=True, kw_only=True):
    """Issues: where they come from, who gets them, and what GitHub shows."""

    repositories: tuple[str, ...] = ()
    """Repositories whose issues are handed out, as owner/name. None = all that send webhooks."""
    policy: str = ""
    """The policy file (TOML); none = the built-in policy."""
    lease: Duration = minutes(10)
    """How long an agent holds an issue without a heartbeat."""
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 5
    """How many attempts a task gets before its issue is given up."""
    shared: bool = False
    """Whether all keys may use each other's tasks. If not, a held task belongs to the owner of the
    key that requested it."""

    github_secrets: tuple[Secret, ...] = ()
    """Secrets of GitHub's webhooks; two during a rotation. None = webhooks are refused."""
    delivery: Annotated[int, Meta(ge=1024, le=25 * 1024 * 1024)] = 5 * 1024 * 1024
    """Maximum size of one webhook, in bytes."""
    github_token: Secret | None = None
    """Token for reading and labelling issues on GitHub; none = GitHub is not called."""
    github_host: str = GITHUB
    """Host of the GitHub that has the issues."""
    github_api: str | None = None
    """URL of GitHub's API, if it is not the usual one."""
    allow: Allowed = ()

    sync: Duration = minutes(10)
    """How often all issues are compared with GitHub."""
    look: Duration = seconds(5)
    """How often to look for expired leases."""
    pause: Duration = minutes(5)
    """How long an issue is not offered after GitHub refused its assignment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.github_secrets:
            checked_secrets("github_secrets", self.github_secrets)
        for repository in self.repositories:
            if not is_repository(repository):
                raise InvalidOption("repositories", repository, rule="must be owner/name")
        duration_ms("lease", self.lease, least=seconds(1))
        duration_ms("sync", self.sync, least=seconds(1))
        duration_ms("look", self.look, least=seconds(0.05))
        duration_ms("pause", self.pause)
        Guard(self.allow)
        _check_address("github_host", self.github_host)
        if self.github_api is not None:
            _check_address("github_api", self.github_api)

    def takes(self, repository: str) -> bool:
        """Whether issues of *repository* are handed out."""
        named = {name.lower() for name in self.repositories}
        return not named or repository.lower() in named


def _check_address(option: str, url: str) -> None:
    """Raises InvalidOption, without the URL in its text, because that may contain a token."""
    try:
        parse_target(url)
    except CallRefused as refusal:
        raise InvalidOption(option, "…", rule=refusal.reason) from None
