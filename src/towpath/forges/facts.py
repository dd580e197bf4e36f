"""The content of webhooks, in the same classes for all forges.

Only the types of values were checked, and strangers wrote every text. Code that uses a text as a
path, an address or a branch must check it with `texts.py`, and raise `Fact.refusal` if it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from towpath.forges.errors import WebhookInvalid
from towpath.forges.reading import milliseconds

_LATEST = 2**32
"""Seconds since 1970: the year 2106."""


class ForgeEvent(StrEnum):
    """What a delivery is about."""

    PULL = "pull"
    """A pull request, or a merge request."""
    PUSH = "push"
    ISSUE = "issue"
    COMMENT = "comment"
    """A comment on an issue or a pull request; the webhook contains the issue as well."""
    REVIEW = "review"
    """A review of a pull request."""
    LABEL = "label"
    """A label of a repository was created, renamed or deleted."""
    REPOSITORY = "repository"
    """A repository was renamed, transferred, deleted, …"""


class ForgeAction(StrEnum):
    """What happened to a pull request or an issue; only the actions that applications need."""

    OPENED = "opened"
    REOPENED = "reopened"
    UPDATED = "updated"
    """New commits on a pull request."""
    READY = "ready"
    """A draft was marked as ready for review."""


class Acted(NamedTuple):
    """An action, and the forge's own word for it."""

    action: ForgeAction | None
    said: str


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a repository."""

    names: Mapping[str, str]
    """The forge's names of these fields, for error messages."""
    repository: str
    """`owner/name`; on GitLab with all its groups."""
    page: str
    """The URL of the repository's page."""
    clone_url: str
    title: str
    author: str
    """The user who opened it or pushed; on GitLab, the user who acted last."""
    url: str
    """The URL of its page for people."""
    at: str | int | None
    """When it happened by the forge's clock, in the forge's format."""

    @property
    def host(self) -> str:
        """The forge's address, taken from the repository's page. Raises WebhookInvalid if the page
        does not end with the repository's name.
        """
        host, slash, rest = self.page.removesuffix(self.repository).rpartition("/")
        if self.page.endswith(self.repository) and slash and not rest:
            return host
        raise self.refusal("host", "must end with the repository's name")

    @property
    def at_ms(self) -> int | None:
        """When it happened, in ms since 1970, mostly whole seconds; None if the forge sent no time.
        Raises WebhookInvalid."""
        match self.at:
            case str(text):
                return milliseconds(self.names["at"], text)
            case int(seconds) if not 0 <= seconds < _LATEST:
                raise self.refusal("at", "must be a time in seconds")
            case int(seconds):
                return seconds * 1000
            case _:
                return None

    def refusal(self, field: str, rule: str) -> WebhookInvalid:
        """Return the error for *field*, which breaks *rule*, under the forge's name for it."""
        return WebhookInvalid(self.names.get(field, field), rule)


class PullFact(Fact, frozen=True, kw_only=True):
    """A pull request or a merge request, as it is after the event."""

    number: int
    head: str | None
    """The last commit; None if there is none."""
    ref: str
    """The source branch; if the pull request comes from a fork, a branch of the fork."""
    target: str
    """The branch to merge into."""
    base: str | None = None
    """The commit of `target` that it starts from; None on GitLab, which does not send it."""
    before: str | None = None
    """The head of the branch before the new commits."""
    is_open: bool
    is_draft: bool
    body: str = ""


class PushFact(Fact, frozen=True, kw_only=True):
    """Commits that were pushed."""

    ref: str | None
    """The branch; None for tags and other refs."""
    head: str | None
    """The last commit; None if the branch was deleted."""
    before: str | None


class IssueFact(Fact, frozen=True, kw_only=True):
    """An issue, as it is after the event."""

    number: int
    body: str
    labels: tuple[str, ...]
    is_open: bool
    assignees: tuple[str, ...] = ()
    reopened: bool = False
    """Whether it is open again after it was closed; False if the forge does not send that."""
    is_pull: bool = False
    """Whether the forge shows a pull request as this issue."""


class LabelFact(Fact, frozen=True, kw_only=True):
    """A label of a repository, after the event. Its name is in `title`."""

    before: str | None
    """Its former name, if it was renamed."""


class RepositoryFact(Fact, frozen=True, kw_only=True):
    """A repository, after the event."""

    before: str | None
    """Its former `owner/name`, if it was renamed or transferred."""


class Reader(NamedTuple):
    """Decodes the webhooks of one kind of event."""

    event: ForgeEvent
    acted: Callable[[bytes], Acted] | None
    """Reads the action; None for events without one."""
    fact: Callable[[bytes], Fact]


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook with a valid signature or token. Its content is decoded only on demand."""

    forge: str
    """The name of the forge: `github`."""
    id: str
    """The same for every attempt at one delivery. Only GitLab, with a signing token, signs it."""
    named: str
    """The forge's name of the event."""
    reader: Reader | None
    """None for an event that Towpath does not use."""
    data: bytes

    @property
    def event(self) -> ForgeEvent | None:
        return self.reader and self.reader.event

    def acted(self) -> Acted:
        """Decode what happened to a pull request or an issue. Raises WebhookInvalid."""
        acted = self.reader and self.reader.acted
        return acted(self.data) if acted else Acted(None, "")

    def fact(self) -> Fact | None:
        """Decode the subject: a PullFact, a PushFact, an IssueFact, … Raises WebhookInvalid."""
        return self.reader and self.reader.fact(self.data)


class Ignored(msgspec.Struct, frozen=True):
    """The result for a valid delivery that needs no action. The forge gets a success."""

    reason: str
    """One short line."""
