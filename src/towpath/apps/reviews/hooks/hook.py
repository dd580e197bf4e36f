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
    """Which of a subject's tasks is the latest: when it changed by the forge's clock, in ms. Of
    GitLab's pushes it is the head commit's time, which its author sets: the caller takes the
    earlier of it and now. None = the forge does not say; the time of arrival serves."""

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
