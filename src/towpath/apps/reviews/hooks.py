"""Webhooks: each becomes a review task, or is ignored with a reason.

A pull request is reviewed when it is opened, reopened, gets new commits or stops being a draft.
A draft is not, until another webhook says that it is ready. Pushes are reviewed branch by branch;
tags and deleted branches are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from towpath.apps.reviews.errors import TaskInvalid
from towpath.apps.reviews.model import (
    Action,
    Forge,
    ReviewKind,
    ReviewTask,
    priority_of,
    subject_of,
)
from towpath.forges.facts import Delivery, Fact, ForgeEvent, Ignored, PullFact, PushFact
from towpath.forges.registry import FORGES
from towpath.forges.spec import ForgeSpec
from towpath.forges.texts import one_line

_FORGES = {forge.name: forge for forge in FORGES}


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that asks for a review."""

    delivery: str
    """The forge's id of the delivery; a repeated id is the same delivery."""
    task: ReviewTask
    version: int | None
    """When it happened by the forge's clock, in ms, mostly in whole seconds. None = unknown, as for
    pushes on GitLab: only the times of commits are known, which their authors choose."""

    @property
    def id(self) -> str:
        """The record's id."""
        return f"{self.task.forge}-{self.delivery}"

    @property
    def subject(self) -> str:
        return subject_of(self.task)

    @property
    def priority(self) -> int:
        return priority_of(self.task)


def reader_of(forge: ForgeSpec) -> Callable[..., Hook | Ignored]:
    """Return a function that reads the deliveries of *forge*, with the arguments of its `read`."""

    def read(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]) -> Hook | Ignored:
        return hook_of(forge.read(headers, body, secrets=secrets))

    return read


def hook_of(delivery: Delivery) -> Hook | Ignored:
    """The review that a delivery asks for. Raises WebhookInvalid if its task is not valid."""
    match delivery.event:
        case ForgeEvent.PULL:
            return _pull(delivery)
        case ForgeEvent.PUSH:
            return _push(delivery)
        case _:
            return Ignored(delivery.named)


def _pull(delivery: Delivery) -> Hook | Ignored:
    forge, acted = _FORGES[delivery.forge], delivery.acted()
    if acted.action is None:
        return Ignored(forge.other_action.format(one_line(acted.said, most=64)))
    pull = delivery.fact()
    assert isinstance(pull, PullFact)  # noqa: S101 -- what an event of this kind tells
    if not pull.is_open:
        return Ignored(f"the {forge.pull} is closed")
    if pull.is_draft:
        return Ignored(f"a draft; it is reviewed {forge.ready}")
    if pull.head is None:
        return Ignored(f"the {forge.pull} has no commits")
    return _hook(
        delivery,
        pull,
        kind=ReviewKind.PULL,
        action=Action(acted.action),
        number=pull.number,
        head=pull.head,
        ref=pull.ref,
        base=pull.base,
        target=pull.target,
        before=pull.before,
    )


def _push(delivery: Delivery) -> Hook | Ignored:
    push = delivery.fact()
    assert isinstance(push, PushFact)  # noqa: S101 -- what an event of this kind tells
    if push.ref is None:
        return Ignored("a push to something other than a branch")
    if push.head is None:
        return Ignored("the branch was deleted")
    return _hook(
        delivery,
        push,
        kind=ReviewKind.PUSH,
        action=Action.PUSHED,
        head=push.head,
        ref=push.ref,
        before=push.before,
    )


def _hook(delivery: Delivery, fact: Fact, **fields: Any) -> Hook:
    """Raises WebhookInvalid, with the forge's name of the field, if the task is not valid."""
    try:
        task = ReviewTask(
            forge=Forge(delivery.forge),
            repository=fact.repository,
            clone_url=fact.clone_url,
            host=fact.host,
            title=fact.title,
            author=fact.author,
            url=fact.url,
            **fields,
        )
    except TaskInvalid as error:
        raise fact.refusal(error.field, error.rule) from error
    return Hook(delivery=delivery.id, task=task, version=fact.at_ms)
