"""What a webhook comes to: a task, or nothing, with the reason."""

from __future__ import annotations

import msgspec

from towpath.apps.reviews.model import ReviewTask, priority_of, subject_of


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that asks for a review."""

    delivery: str
    """The forge's id of it: the same one again is the same delivery."""
    task: ReviewTask
    version: int | None
    """When it happened by the forge's own clock, in ms, mostly in whole seconds. None = the forge
    does not say, as GitLab of pushes: the time of a commit is its author's to choose."""

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


class Ignored(msgspec.Struct, frozen=True):
    """A delivery that is genuine and asks for nothing. It is answered as well received."""

    reason: str
    """One short line."""
