"""The options of messages, by the settings."""

from towpath.apps.application import Shared
from towpath.apps.messages.options import MessagesOptions
from towpath.settings import Settings


def options(settings: Settings, shared: Shared) -> MessagesOptions:
    """How messages leave."""
    url = settings.messages_worker_url
    return MessagesOptions(
        worker_url=url.get_secret_value() if url else None,
        secrets=shared.secrets,
        allow=shared.allow,
    )
