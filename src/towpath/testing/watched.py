"""An engine that does everything as it always does, and takes notes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Unpack

from towpath.clock import Duration
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.model import (
    FIELDS,
    NO_HEADERS,
    Call,
    Exchanged,
    JobOptions,
    JobRef,
    NewJob,
    Renew,
    Settlement,
    Submitted,
)
from towpath.engine.states import State
from towpath.errors import TowpathError


class Ran(NamedTuple):
    """A job that was run, and its state after that attempt."""

    job: JobRef
    state: State


class TakenIn(NamedTuple):
    """A job that was submitted, as it was then."""

    queue: str
    handler: str | None
    """Which of its queue's handlers it is for."""
    payload: bytes


class Notes:
    """What went through the engines of one app, in order; written in any thread."""

    def __init__(self) -> None:
        self.taken_in: list[TakenIn] = []
        self.ran: list[Ran] = []

    def took(self, queue: str, payload: bytes, headers: Mapping[str, str], answer: object) -> None:
        """Of a submit: one that was refused, or had been there before, is not noted."""
        if isinstance(answer, Submitted) and not answer.existed:
            self.taken_in.append(TakenIn(queue, headers.get("handler"), payload))

    def took_all(self, queue: str, jobs: Sequence[NewJob], answers: Sequence[object]) -> None:
        for job, answer in zip(jobs, answers, strict=True):
            packed = (job.more or {}).get("headers")
            self.took(
                queue, job.payload, FIELDS["headers"].kind.read(packed) if packed else {}, answer
            )


class WatchedEngine(Engine):
    """Made by an app that stands on a bench."""

    def __init__(self, notes: Notes, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._notes = notes

    async def submit(
        self,
        queue: str,
        payload: bytes,
        *,
        durability: Durability | None = None,
        **options: Unpack[JobOptions],
    ) -> Submitted:
        answer = await super().submit(queue, payload, durability=durability, **options)
        self._notes.took(queue, payload, options.get("headers") or NO_HEADERS, answer)
        return answer

    async def submit_many(
        self,
        queue: str,
        jobs: Iterable[NewJob],
        *,
        durability: Durability | None = None,
        call: Call | None = None,
    ) -> list[Submitted | TowpathError]:
        wanted = list(jobs)
        answers = await super().submit_many(queue, wanted, durability=durability, call=call)
        self._notes.took_all(queue, wanted, answers)
        return answers

    async def fire(
        self,
        queue: str,
        name: str,
        jobs: Sequence[NewJob],
        *,
        after: datetime | None,
        upto: datetime,
        about: str = "",
        call: Call | None = None,
    ) -> list[Submitted]:
        answers = await super().fire(
            queue, name, jobs, after=after, upto=upto, about=about, call=call
        )
        self._notes.took_all(queue, jobs, answers)
        return answers

    async def exchange(
        self,
        queue: str,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        lease: Duration,
        count: int,
        call: Call | None = None,
    ) -> Exchanged:
        answer = await super().exchange(
            queue, settlements, worker=worker, lease=lease, count=count, call=call
        )
        for settlement, outcome in zip(settlements, answer.outcomes, strict=True):
            if isinstance(outcome, State) and not isinstance(settlement, Renew):
                self._notes.ran.append(Ran(settlement.lease.job, outcome))
        return answer
