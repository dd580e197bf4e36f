"""Errors of timers.

TowpathError
├── JobError
│   ├── TimerNotFound        there is no timer of that type and id
│   ├── TimerDiffers         there is one, with other params or another time
│   ├── TimerTaken           there is one, and it belongs to another owner
│   ├── TimerEnded           there was one, and it has ended
│   └── TimerRunning         it is being worked on, so that it can't be changed
├── QueueError
│   ├── TimerTypeTaken       the type without an app belongs to somebody else
│   ├── TimerTypeAmbiguous   several apps serve the type, and the timer names none
│   └── TimerTypesFull       there are as many types as there may be
├── InstanceNotFound         the app has no such instance
└── TooManyInstances         there are as many instances as there may be
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from towpath.apps.application import ErrorCodes
from towpath.errors import (
    JobDiffers,
    JobError,
    JobNotFound,
    QueueError,
    RetryAdvice,
    TowpathError,
)


class TimerNotFound(JobNotFound):
    """There is no timer of that type and id, or it ended and is no longer kept."""

    code = "timer_not_found"
    remedy = "Check task_type, task_id and app. A timer is kept for an hour after it ends."


class TimerDiffers(JobDiffers):
    """A timer of that id exists with other params or another time; nothing was changed."""

    code = "timer_differs"
    remedy = (
        "Use another task_id. `set` (PUT) replaces the existing timer, `move` (PATCH) changes "
        "its time."
    )
    what = "exists with other params or another time"


class TimerTaken(JobError):
    """The id is that of another owner's timer; nothing was changed. It says nothing of that one."""

    code = "timer_taken"
    remedy = (
        "Use another task_id. Keys of the same owner share their timers (`towpath keys create "
        "--owner`); the setting timers.shared lets all keys share them."
    )

    def __init__(self, job: object) -> None:
        super().__init__(job, "belongs to another owner")


class TimerEnded(JobError):
    """A timer of that id has ended; nothing was changed."""

    code = "timer_ended"
    remedy = "Use another task_id, or create the timer again under the same id with `set` (PUT)."

    def __init__(self, job: object, state: str) -> None:
        super().__init__(job, f"has ended: {state}")
        self.state = state


class TimerRunning(JobError):
    """The timer is being worked on; nothing was changed."""

    code = "timer_running"
    remedy = "Wait until the attempt has ended, or cancel the timer."

    def __init__(self, job: object) -> None:
        super().__init__(job, "is leased: a worker is running it")
        self.state = "leased"


class TimerTypeTaken(QueueError):
    """The type belongs to another owner; nothing was registered."""

    code = "timer_type_taken"
    remedy = (
        "Use another name for the type, or stop its owner. A type becomes free five minutes after "
        "its owner's last heartbeat (setting timers.owner_keeps)."
    )

    def __init__(self, task_type: str, owner: str) -> None:
        super().__init__(f"task type {task_type} belongs to {owner}")
        self.task_type, self.owner = task_type, owner


class TimerTypeAmbiguous(QueueError):
    """Several apps serve the type and the timer names none of them; nothing was submitted."""

    code = "timer_type_ambiguous"
    remedy = "Set `app` to the app that the timer is for."

    def __init__(self, task_type: str, apps: Sequence[str]) -> None:
        super().__init__(f"task type {task_type} is served by several apps: {', '.join(apps)}")
        self.task_type, self.apps = task_type, tuple(apps)


class TimerTypesFull(QueueError):
    """The limit of timer types is reached; nothing was changed."""

    code = "timer_types_full"
    remedy = (
        "Use an existing type (`towpath timers types`) and put what differs between timers into "
        "params. An unused type is deleted after a day."
    )

    def __init__(self, most: int) -> None:
        super().__init__(f"the limit of {most} timer types is reached")
        self.most = most


class InstanceNotFound(TowpathError):
    """There is no such instance: it deregistered, or sent no heartbeat for too long."""

    code = "instance_not_found"
    remedy = "Register the instance again."

    def __init__(self, app: str, id: str) -> None:
        super().__init__(f"app {app} has no instance {id}")
        self.app, self.id = app, id


class TooManyInstances(TowpathError):
    """No room for another instance; nothing was changed."""

    code = "too_many_instances"
    remedy = "Deregister instances when they stop; silent ones are deleted after 30 s."
    retry = RetryAdvice.LATER

    def __init__(self, who: str, most: int, *, limit: Literal["app", "owner", "total"]) -> None:
        super().__init__(f"{who} {most} live instances already")
        self.most, self.limit = most, limit

    @property
    def facts(self) -> Mapping[str, Any]:
        """Which limit it is: of the app, of the owner, or of all together."""
        return {"limit": self.limit, "most": self.most}


ANSWERED = {
    InstanceNotFound: ErrorCodes(404, 5),
    TooManyInstances: ErrorCodes(429, 75),
    TimerTaken: ErrorCodes(409, 4),
}
"""Codes of the errors whose base class has none."""
