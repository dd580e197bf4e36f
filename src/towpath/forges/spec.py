"""What the applications need to know of a forge: one `ForgeSpec` for each, in its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from towpath.forges.facts import Delivery, ForgeEvent


class ReadDelivery(Protocol):
    """Checks and reads a webhook."""

    def __call__(
        self, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]
    ) -> Delivery:
        """*body* is the raw body. Raises SignatureRefused, and WebhookInvalid for a webhook that
        lacks what the forge documents.
        """
        ...


class ForgeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A forge: its names, its webhooks and its API."""

    name: str
    """In ids, subjects, settings (`<name>_secrets`, …) and the path of its webhooks."""
    title: str
    """Its name for people."""
    host: str
    """The address of its web pages, unless an operator has an instance of their own."""
    api: Callable[[str], str]
    """Returns the address of the API of an instance, given that of its web pages."""
    accept: str
    """The media type that its API is asked for."""

    read: ReadDelivery
    events: Mapping[str, ForgeEvent]
    """The events that Towpath uses, by their names in webhooks."""
    event_header: str
    """The header with the name of the event."""
    delivery_header: str
    """The header with the id of the delivery."""
    signature_headers: Mapping[str, str]
    """The headers that prove who sent a webhook, each with a sentence about it. The first is the
    usual one; `{secrets}` stands for the setting with the secrets."""
    signature: str
    """A sentence about these headers."""

    pull: str
    """Its words for a pull request."""
    other_action: str
    """A short line about an action of a pull request, `{}`, that needs no review."""
    ready: str
    """When the review of a draft begins."""

    def event_names(self, events: Sequence[ForgeEvent]) -> list[str]:
        """Return the names of *events* in webhooks, in this order."""
        return [name for event in events for name, own in self.events.items() if own is event]
