"""Arguments that several verbs take, and functions that parse their texts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.app.jobs import AllJobs
    from towpath.clock import Duration
    from towpath.engine.engine import Engine
    from towpath.engine.model import JobRef

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
QueuesArgument = Annotated[list[str], typer.Argument(metavar="QUEUE…", help="Names of queues.")]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="QUEUE/ID, or an ID alone, which is looked up.")
]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB…", help="QUEUE/ID, or an ID alone, which is looked up.")
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Only this queue.")
]
LogFormat = Annotated[
    str | None, typer.Option(metavar="auto|human|plain|json", help="Log format.  [setting]")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
All = Annotated[bool, typer.Option("--all", help="Show all pages.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Entries per page.")]
After = Annotated[
    str | None,
    typer.Option(
        "--after", metavar="CURSOR", help="The `after` value returned with the previous page."
    ),
]


def duration(option: str, text: str | None) -> Duration | None:
    """The duration in *text*; None without a text. Raises InvalidOption."""
    from towpath.clock import parse_duration  # noqa: PLC0415 -- a help text needs none

    return None if text is None else parse_duration(option, text)


def instant(option: str, text: str | None) -> datetime | None:
    """The time in *text*, in ISO 8601; without a time zone it is UTC. Raises InvalidOption."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        rule = "must be a time in ISO 8601, such as 2030-01-31T08:00:00Z"
        raise InvalidOption(option, text, rule=rule) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def priority(text: str) -> int:
    """The priority in *text*: high, normal, low, or 0 to 100. Raises InvalidOption."""
    named = {"low": 0, "normal": 50, "high": 100}
    if text.lower() in named:
        return named[text.lower()]
    if not (text.isascii() and text.isdecimal() and int(text) <= 100):
        raise InvalidOption("priority", text, rule="must be high, normal, low, or from 0 to 100")
    return int(text)


def whole_number(option: str, text: str) -> int:
    """The whole number in *text*. Raises InvalidOption."""
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise InvalidOption(option, text, rule="must be a whole number")
    return int(text)


def pairs(option: str, texts: list[str]) -> dict[str, str]:
    """The names and values of `name=value` texts. Raises InvalidOption."""
    split = {text: text.partition("=") for text in texts}
    for text, (name, equals, _) in split.items():
        if not (name and equals):
            raise InvalidOption(option, text, rule="must be name=value")
    return {name: value for name, _, value in split.values()}


async def find_job(engine: Engine, jobs: AllJobs, text: str, queue: str | None) -> JobRef:
    """The job that *text* names: QUEUE/ID, an id in *queue*, or an id in any queue.

    An id may contain a slash itself, so QUEUE/ID counts only if that queue exists. Raises
    JobNotFound, QueueNotFound for a *queue* that does not exist, and InvalidOption for an id in
    several queues. Without a queue, reads the job once per queue.
    """
    from towpath.engine.model import job_ref  # noqa: PLC0415 -- slow to import
    from towpath.errors import JobNotFound, QueueNotFound  # noqa: PLC0415
    from towpath.ids import job_id  # noqa: PLC0415

    if queue is not None:
        return job_ref(await existing_queue(engine, queue), text)
    job_id(text)
    first, slash, rest = text.partition("/")
    known = await engine.queues.names()
    if slash and rest and first in known:
        return job_ref(first, rest)
    found = sorted(str(job.ref) for job in await jobs.find(text, await engine.queues.list()))
    if not found:
        raise JobNotFound(text, no_queue=QueueNotFound(first, known) if slash and rest else None)
    if len(found) > 1:
        raise InvalidOption(
            "job", text, rule=f"is in several queues; pass one of {', '.join(found)}"
        )
    return job_ref(*found[0].split("/", 1))


async def existing_queue(engine: Engine, queue: str) -> str:
    """Returns *queue* if it exists: most verbs must not create a mistyped one. Raises
    QueueNotFound.
    """
    return await engine.queues.require(queue)


async def chosen_queues(engine: Engine, queues: list[str]) -> list[str]:
    """The named queues, which must exist; without names, all queues, sorted. Raises
    QueueNotFound.
    """
    named = [await existing_queue(engine, queue) for queue in queues]
    return named or sorted(await engine.queues.list())
