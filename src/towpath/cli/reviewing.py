"""Reviews as `up` and `serve` run them: settings in, and who reviews, told."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from pydantic import SecretStr

from towpath.apps.reviews.model import Forge
from towpath.apps.reviews.options import ReviewsOptions
from towpath.calls.target import parse_target
from towpath.errors import InvalidOption
from towpath.settings import Settings

NOBODY = (
    "none here: reviews stay PENDING until a worker has one, or reviews.reviewer_command is set"
)
_SETTINGS = {
    "command": "reviews.reviewer_command",
    "function": "reviews.reviewer_function",
    "url": "reviews.reviewer_url",
    "secrets": "calls.secrets",
    "allow": "calls.allow",
    "environment": "reviews.reviewer_variables",
    "github_secrets": "reviews.github_secrets",
    "gitlab_secrets": "reviews.gitlab_secrets",
    "github_host": "reviews.github_host",
    "gitlab_host": "reviews.gitlab_host",
}
"""By which setting an option of the application is said."""


@contextmanager
def named_by_setting() -> Generator[None]:
    """A refusal in the block names the setting, as people know it, not the option."""
    try:
        yield
    except InvalidOption as error:
        if error.option not in _SETTINGS:
            raise
        raise InvalidOption(_SETTINGS[error.option], error.value, rule=error.rule) from error


def reviews_options(settings: Settings, *, signing: tuple[str, ...]) -> ReviewsOptions:
    """Whose webhooks are taken, who reviews, and where reviews are posted.

    Raises InvalidOption, which names the setting.
    """
    it = settings.reviews
    with named_by_setting():
        return ReviewsOptions(
            github_secrets=_all_told(it.github_secrets),
            gitlab_secrets=_all_told(it.gitlab_secrets),
            largest_delivery=it.delivery,
            command=it.reviewer_command,
            environment=it.passed_on,
            function=it.reviewer_function,
            url=_told(it.reviewer_url),
            secrets=signing,
            allow=settings.calls.allow,
            within=it.within,
            attempts=it.attempts,
            concurrency=it.concurrency,
            github_token=_told(it.github_token),
            github_host=it.github_host,
            github_approves=it.github_approves,
            gitlab_token=_told(it.gitlab_token),
            gitlab_host=it.gitlab_host,
        )


def webhooks(options: ReviewsOptions, address: str) -> list[str]:
    """Where the forges that have a secret send to."""
    forges = (Forge.GITHUB, Forge.GITLAB)
    return [f"{address}/api/v1/webhooks/{it}" for it in forges if options.secrets_of(it)]


def reviewer(options: ReviewsOptions) -> str | None:
    """Who reviews, without what may be secret: arguments, and more of a URL than its host."""
    if options.command:
        return f"the program {options.command[0]}"
    if options.function:
        return f"the function {options.function}"
    return f"whoever answers at {parse_target(options.url)}" if options.url else None


def _told(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _all_told(secrets: Iterable[SecretStr]) -> tuple[str, ...]:
    return tuple(it.get_secret_value() for it in secrets)
