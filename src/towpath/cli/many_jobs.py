"""Changes of many jobs of a queue: chooses and counts them, and changes them in bounded steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

import typer

from towpath.console.arguments import duration
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.app.jobs import JobFilter, ManyStep
    from towpath.console.verb import Session
    from towpath.engine.states import State

StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state", "-s", metavar="STATE", help="Only jobs in this state; can be repeated."
    ),
]
LaneOption = Annotated[
    str | None, typer.Option("--lane", metavar="LANE", help="Only jobs of this lane.")
]
HandlerOption = Annotated[
    str | None, typer.Option("--handler", metavar="HANDLER", help="Only jobs of this handler.")
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="TIME", help="Only jobs that were submitted longer ago, such as 2h."
    ),
]


class StepOverJobs(Protocol):
    """`AllJobs.count_matching`, `cancel_matching` or `purge`."""

    async def __call__(
        self, queue: str, wanted: JobFilter, *, after: str | None = None
    ) -> ManyStep: ...


class Choice(NamedTuple):
    """The options that choose the jobs to change."""

    states: Sequence[str] | None = None
    handler: str | None = None
    lane: str | None = None
    older_than: str | None = None

    def filter(self, among: Sequence[State]) -> JobFilter:
        """The filter for the chosen jobs *among* those states. Raises InvalidOption."""
        from towpath.app.jobs import JobFilter  # noqa: PLC0415 -- slow to import

        for state in self.states or ():
            if state not in among:
                raise InvalidOption("state", state, rule=f"must be one of {', '.join(among)}")
        age = duration("older_than", self.older_than)
        return JobFilter(
            states=tuple(state for state in among if not self.states or state in self.states),
            handler=self.handler,
            lane=self.lane,
            submitted_before=None if age is None else datetime.now(UTC) - age,
        )


async def count_jobs(step: StepOverJobs, queue: str, wanted: JobFilter) -> Counter[State]:
    """Count the jobs that fit, by state."""
    counted: Counter[State] = Counter()
    async for found in _walk(step, queue, wanted):
        counted.update(found.jobs)
    return counted


async def change_jobs(
    session: Session, step: StepOverJobs, queue: str, wanted: JobFilter, *, done: str, total: int
) -> Counter[State]:
    """Change the jobs that fit, step by step. Returns their numbers by their states before."""
    changed: Counter[State] = Counter()
    with session.out.progress(f"{queue}: {done}", total) as advance:
        async for found in _walk(step, queue, wanted):
            changed.update(found.jobs)
            advance(found.total)
    return changed


async def _walk(step: StepOverJobs, queue: str, wanted: JobFilter) -> AsyncIterator[ManyStep]:
    after: str | None = None
    while True:
        found = await step(queue, wanted, after=after)
        yield found
        after = found.after
        if after is None:
            return


def in_words(counted: Mapping[State, int]) -> str:
    """`12 jobs (10 ready, 2 leased)`."""
    total = sum(counted.values())
    parts = ", ".join(f"{count} {state}" for state, count in counted.items() if count)
    return f"{total} job{'' if total == 1 else 's'}{f' ({parts})' if parts else ''}"


def show_changed(session: Session, queue: str, done: str, changed: Mapping[State, int]) -> None:
    total = sum(changed.values())
    states = {str(state): count for state, count in changed.items() if count}
    session.out.answer({"queue": queue, done: total, "states": states}, f"{queue}  {total} {done}")
