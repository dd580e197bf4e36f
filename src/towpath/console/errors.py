"""What only the command line refuses.

TowpathError
├── QueueNotFound       the server knows no queue of that name
├── AppNotFound         `module:app` leads nowhere
├── SinkNotFound        no sink of that name is set, and no event waits for one
├── EventNotFound       the sink has refused no event of that id
├── NotConfirmed        something would be lost, and nobody said `--yes`
└── JobFailed           the job that was waited for ended dead or cancelled
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from towpath.errors import InvalidInput, JobError, QueueError, TowpathError


class QueueNotFound(QueueError):
    """The server knows no queue of that name; nothing was changed."""

    code = "queue_not_found"
    remedy = "See `towpath queues` for those that exist; a submit makes a new one."

    def __init__(self, queue: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(queue, list(known), n=1)
        super().__init__(f"no queue {queue}" + (f"; did you mean {near[0]}?" if near else ""))
        self.queue = queue


class AppNotFound(TowpathError):
    """`module:app` leads to no app."""

    code = "app_not_found"
    remedy = "Name the module and the Towpath in it, as in `towpath worker shop.jobs:app`."


class SinkNotFound(TowpathError):
    """No sink of that name is set, and no event waits for one; nothing was changed."""

    code = "sink_not_found"
    remedy = "See `towpath events` for those that there are, and the setting events.sinks."

    def __init__(self, sink: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(sink, list(known), n=1)
        super().__init__(f"no sink {sink}" + (f"; did you mean {near[0]}?" if near else ""))
        self.sink = sink


class EventNotFound(TowpathError):
    """The sink has refused no event of that id; those before it were seen to."""

    code = "event_not_found"
    remedy = "See `towpath events refused SINK` for those that wait; it may have been resent."

    def __init__(self, sink: str, id: str) -> None:
        super().__init__(f"event {id}: {sink} has not refused it")
        self.sink, self.id = sink, id


class NotConfirmed(InvalidInput):
    """Something would be lost for good, and nobody said that it may."""

    code = "not_confirmed"
    remedy = "Say --yes if you mean it."


class JobFailed(JobError):
    """The job that was waited for has ended without being done."""

    code = "job_failed"
    remedy = "Look at it with `towpath jobs show`; `towpath dead retry` gives it new attempts."


class NotInstalled(TowpathError):
    """A library is missing that comes with an extra."""

    code = "not_installed"
    remedy = "Install the extra that the message names; in quotes, for the shell's sake."

    def __init__(self, library: str, *, extra: str) -> None:
        super().__init__(f"{library} is not here: pip install 'towpath[{extra}]'")
        self.library, self.extra = library, extra
