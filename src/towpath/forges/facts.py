"""What a webhook tells, in one vocabulary for all forges.

Nothing here was checked but its type: every text was written by a stranger. Whoever uses one as a
path, an address or a branch looks at it with `texts.py`, and refuses it in the forge's own words.
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
    """A comment on an issue or a pull request: it tells of the issue as well."""
    REVIEW = "review"
    """Somebody has reviewed a pull request."""
    LABEL = "label"
    """A label of a repository was made, renamed or deleted."""
    REPOSITORY = "repository"
    """A repository was renamed, transferred, deleted, …"""


class ForgeAction(StrEnum):
    """What happened to a pull request or an issue, as far as an application needs it."""

    OPENED = "opened"
    REOPENED = "reopened"
    UPDATED = "updated"
    """New commits on a pull request."""
    READY = "ready"
    """A draft became a pull request to be reviewed."""


class Acted(NamedTuple):
    """An action, and the forge's own word for it."""

    action: ForgeAction | None
    said: str


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a repository."""

    names: Mapping[str, str]
    """What the forge calls these fields."""
    repository: str
    """`owner/name`; on GitLab with all its groups."""
    page: str
    """The repository's."""
    clone_url: str
    title: str
    author: str
    """Who opened it or pushed; GitLab names who did the last thing to it."""
    url: str
    """The page for people."""
    at: str | int | None
    """When, by the forge's own clock, as it was sent."""

    @property
    def host(self) -> str:
        """The forge's address, of the repository's page. Raises WebhookInvalid if that is none."""
        host, slash, rest = self.page.removesuffix(self.repository).rpartition("/")
        if self.page.endswith(self.repository) and slash and not rest:
            return host
        raise self.refusal("host", "must end with the repository's name")

    @property
    def at_ms(self) -> int | None:
        """When it happened, in ms since 1970, mostly in whole seconds. None = the forge does not
        say. Raises WebhookInvalid."""
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
        """The error for a field that breaks somebody's rule."""
        return WebhookInvalid(self.names.get(field, field), rule)


class PullFact(Fact, frozen=True, kw_only=True):
    """A pull request or a merge request, as it is after what happened."""

    number: int
    head: str | None
    """The last commit; None where there is none."""
    ref: str
    """The branch that it is on; of a fork where it comes from one."""
    target: str
    """The branch that it wants to go into."""
    base: str | None = None
    """The commit of `target` that it starts from, where the forge says so: GitLab does not."""
    before: str | None = None
    """What the branch was at before the new commits."""
    is_open: bool
    is_draft: bool
    body: str = ""


class PushFact(Fact, frozen=True, kw_only=True):
    """Commits that were pushed."""

    ref: str | None
    """The branch; None for tags and all else."""
    head: str | None
    """None for a branch that was deleted."""
    before: str | None


class IssueFact(Fact, frozen=True, kw_only=True):
    """An issue, as it is after what happened."""

    number: int
    body: str
    labels: tuple[str, ...]
    is_open: bool
    assignees: tuple[str, ...] = ()
    reopened: bool = False
    """Whether it was closed before, as far as the forge says so."""
    is_pull: bool = False
    """Whether it is the issue behind a pull request."""


class LabelFact(Fact, frozen=True, kw_only=True):
    """A label of a repository, after what happened: its name is the title."""

    before: str | None
    """What it was called before, if it was renamed."""


class RepositoryFact(Fact, frozen=True, kw_only=True):
    """A repository, after what happened."""

    before: str | None
    """What it was called before, `owner/name`, if it was renamed or transferred."""


class Reader(NamedTuple):
    """How the events of one kind are read."""

    event: ForgeEvent
    acted: Callable[[bytes], Acted] | None
    """None where there is nothing to tell apart."""
    fact: Callable[[bytes], Fact]


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A genuine message of a forge. What it tells is read when it is asked for."""

    forge: str
    """`github` or `gitlab`."""
    id: str
    """The same one again is the same delivery. Only GitLab with a signing token signs it."""
    named: str
    """The event, as the forge calls it."""
    reader: Reader | None
    """None for an event that nobody listens to."""
    data: bytes

    @property
    def event(self) -> ForgeEvent | None:
        return self.reader and self.reader.event

    def acted(self) -> Acted:
        """What happened to a pull request or an issue. Raises WebhookInvalid."""
        acted = self.reader and self.reader.acted
        return acted(self.data) if acted else Acted(None, "")

    def fact(self) -> Fact | None:
        """What it is about: a PullFact, a PushFact, an IssueFact, … Raises WebhookInvalid."""
        return self.reader and self.reader.fact(self.data)


class Ignored(msgspec.Struct, frozen=True):
    """A genuine delivery that asks for nothing. It is answered as well received."""

    reason: str
    """One short line."""
