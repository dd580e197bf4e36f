"""The options of reviews, by the settings."""

from collections.abc import Iterable

from pydantic import SecretStr

from towpath.apps.application import Shared
from towpath.apps.reviews.options import ReviewsOptions
from towpath.settings import Settings


def options(settings: Settings, shared: Shared) -> ReviewsOptions:
    """Whose webhooks are taken, who reviews, and where reviews are posted."""
    said = settings.reviews
    return ReviewsOptions(
        github_secrets=_all_told(said.github_secrets),
        gitlab_secrets=_all_told(said.gitlab_secrets),
        delivery=said.delivery,
        command=said.reviewer_command,
        environment=said.passed_on,
        function=said.reviewer_function,
        url=_told(said.reviewer_url),
        secrets=shared.secrets,
        allow=shared.allow,
        within=said.within,
        attempts=said.attempts,
        concurrency=said.concurrency,
        github_token=_told(said.github_token),
        github_host=said.github_host,
        github_approves=said.github_approves,
        gitlab_token=_told(said.gitlab_token),
        gitlab_host=said.gitlab_host,
    )


def _told(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _all_told(secrets: Iterable[SecretStr]) -> tuple[str, ...]:
    return tuple(each.get_secret_value() for each in secrets)
