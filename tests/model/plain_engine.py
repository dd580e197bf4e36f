"""The engine with plain values as arguments and answers, one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from tests.model import plain_values
from tests.model.oracle_questions import SEARCHED
from tests.model.values import (
    STATES,
    Counts,
    Exchanged,
    HeldLease,
    JobDetails,
    JobSpec,
    JobSummary,
    Options,
    Refusal,
    Renewed,
    Settle,
)
from tests.waiting import eventually_async
from towpath.clock import ManualClock, instant, milliseconds
from towpath.embedded import Address
from towpath.engine import model
from towpath.engine.engine import Engine
from towpath.engine.model import Call, JobOptions, JobRef, Lease, Settlement
from towpath.engine.options import QueueOptions
from towpath.engine.script import Scripts
from towpath.engine.states import State
from towpath.errors import TowpathError
from towpath.ids import JobId, queue_name
from towpath.testing.proxy import Faults, Hole, Proxy

START = datetime(2026, 1, 1, tzinfo=UTC)
PAGE = 1000

T = TypeVar("T")


class PlainEngine:
    """One queue of one engine, driven from code without an event loop."""

    def __init__(self, url: str, address: Address, queue: str, scripts: Scripts | None) -> None:
        self.queue = queue_name(queue)
        self.clock = ManualClock(START)
        self.engine = Engine(url, clock=self.clock, scripts=scripts)
        self._scripts = scripts
        self._proxy = Proxy(address, Faults())
        self._far: Engine | None = None
        """Another engine, whose replies may be lost on the way."""
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self._leases: dict[tuple[str, int], Lease] = {}
        self._looked: tuple[list[JobSummary], int, list[str]] = [], 0, []
        self._last: tuple[dict[str, list[str]], list[str]] = {}, []

    def open(self, options: Options) -> None:
        self.run(self._open.enter_async_context(self.engine))
        self.run(self.engine.queues.configure(self.queue, plain_values.options(options)))

    def reconfigure(self, options: Options) -> None:
        self.run(self.engine.queues.reconfigure(self.queue, plain_values.options(options)))

    def declare(self, wanted: dict[str, Any]) -> QueueOptions:
        """Declares options; returns the options of the queue, which another read must confirm."""
        given = plain_values.options(Options(**wanted))
        named = {name: getattr(given, name) for name in wanted}
        return self._agreed(self.run(self.engine.queues.declare(self.queue, **named)).now)

    def reset(self, names: list[str]) -> QueueOptions:
        return self._agreed(self.run(self.engine.queues.reset(self.queue, *names)).now)

    def _agreed(self, told: QueueOptions) -> QueueOptions:
        assert self.run(self.engine.queues.options(self.queue)) == told
        return told

    def close(self) -> None:
        """Closes loop and connection, even if none was opened."""
        try:
            self.run(self._open.aclose())
        finally:
            self._runner.close()

    def run(self, work: Awaitable[T]) -> T:
        return self._runner.get_loop().run_until_complete(work)

    @property
    def now(self) -> int:
        return int(self.clock.stamp())

    # ── verbs ────────────────────────────────────────────────────────────────────────────

    def perform(self, channel: str, number: int, verb: str, **asked: Any) -> Any:
        """The engine's answer to a call, or its refusal."""
        method: Callable[..., Awaitable[Any]] = getattr(self, f"_{verb}")
        try:
            return self.run(method(Call(channel, number), **asked))
        except TowpathError as error:
            return plain_values.refusal(error)

    def lose_reply(self, options: Options, verb: str, **asked: Any) -> Any:
        """The engine's answer to a call that it names itself, and whose first reply is lost.

        Before the call is repeated, the queue gets other options.
        """
        try:
            return self.run(self._lose_reply(options, verb, asked))
        except TowpathError as error:
            return plain_values.refusal(error)

    async def _lose_reply(self, options: Options, verb: str, asked: dict[str, Any]) -> Any:
        far, near, lost = await self._far_engine(), self.engine, self._proxy.swallowed
        method: Callable[..., Awaitable[Any]] = getattr(self, f"_{verb}")

        async def answered() -> Any:
            self.engine = far
            return await method(None, **asked)

        self._proxy.faults.hole = Hole.REPLIES
        calling = asyncio.create_task(answered())

        async def reply_is_lost() -> bool:
            return self._proxy.swallowed > lost or calling.done()

        try:
            await eventually_async(reply_is_lost)
            await near.queues.reconfigure(self.queue, plain_values.options(options))
            self._proxy.faults.hole = Hole.NOTHING
            await self._proxy.drop_all()
            return await calling
        finally:
            self.engine = near
            calling.cancel()

    async def _far_engine(self) -> Engine:
        if self._far is None:
            await self._open.enter_async_context(self._proxy)
            far = Engine(self._proxy.url, clock=self.clock, scripts=self._scripts)
            self._far = await self._open.enter_async_context(far)
        await self._far.queues.options(self.queue)
        return self._far

    def submit_alone(self, new: JobSpec) -> tuple[str, Any]:
        """Submits through the micro-batcher; returns also the id, if the engine generated it."""
        asked = plain_values.asked(new) | (JobOptions(id=new.id) if new.named else JobOptions())
        try:
            answer = self.run(self.engine.submit(self.queue, new.payload, **asked))
        except TowpathError as error:
            return new.id, plain_values.refusal(error)
        return answer.id, plain_values.taken(answer)

    async def _submit(self, call: Call | None, jobs: list[JobSpec]) -> list[Any]:
        wanted = [plain_values.new_job(new) for new in jobs]
        answers = await self.engine.submit_many(self.queue, wanted, call=call)
        return [
            plain_values.refusal(answer)
            if isinstance(answer, TowpathError)
            else plain_values.taken(answer)
            for answer in answers
        ]

    async def _claim(
        self,
        call: Call | None,
        worker: str,
        lease: int,
        *,
        count: int,
        lane: str | None = None,
        selectors: tuple[str, ...] = (),
        max_held: int | None = None,
    ) -> list[HeldLease]:
        leases = await self.engine.claim(
            self.queue,
            worker=worker,
            lease=milliseconds(lease),
            count=count,
            lane=lane,
            selectors=selectors,
            max_held=max_held,
            call=call,
        )
        return [self._keep(lease) for lease in leases]

    async def _exchange(
        self, call: Call | None, settlements: list[Settle], worker: str, lease: int, count: int
    ) -> Exchanged:
        answer = await self.engine.exchange(
            self.queue,
            [self._settlement(settlement) for settlement in settlements],
            worker=worker,
            lease=milliseconds(lease),
            count=count,
            call=call,
        )
        outcomes = [plain_values.outcome(outcome) for outcome in answer.outcomes]
        return Exchanged(outcomes, [self._keep(lease) for lease in answer.leases])

    async def _renew(self, call: Call | None, id: str, token: int, ttl: int) -> Renewed:
        lease = self._lease(id, token)
        return plain_values.renewed(await self.engine.renew(lease, milliseconds(ttl), call=call))

    async def _progress(self, call: Call | None, id: str, token: int, note: bytes) -> None:
        await self.engine.progress(self._lease(id, token), note, call=call)

    async def _complete(self, call: Call | None, id: str, token: int, result: bytes) -> str:
        await self.engine.complete(self._lease(id, token), result, call=call)
        return "done"

    async def _fail(
        self,
        call: Call | None,
        id: str,
        token: int,
        delay: int | None,
        reason: str,
        *,
        keep_turn: bool,
    ) -> str:
        wait = None if delay is None else milliseconds(delay)
        return await self.engine.fail(
            self._lease(id, token), reason, delay=wait, keep_turn=keep_turn, call=call
        )

    async def _bury(self, call: Call | None, id: str, token: int, reason: str) -> str:
        return await self.engine.bury(self._lease(id, token), reason, call=call)

    async def _release(
        self, call: Call | None, id: str, token: int, delay: int, unhandled: str
    ) -> str:
        lease, anew = self._lease(id, token), unhandled == "anew"
        return await self.engine.release(
            lease, delay=milliseconds(delay), unhandled=unhandled, anew=anew, call=call
        )

    async def _cancel(self, call: Call | None, id: str) -> str:
        return await self.engine.cancel(self._ref(id), call=call)

    async def _move(self, call: Call | None, moves: dict[str, tuple[str, int]]) -> list[Any]:
        wanted = {
            id: instant(ms) if kind == "due" else milliseconds(ms)
            for id, (kind, ms) in moves.items()
        }
        answers = await self.engine.move_many(self.queue, wanted, call=call)
        return [
            plain_values.refusal(answer) if isinstance(answer, TowpathError) else answer
            for answer in answers
        ]

    async def _set(self, call: Call | None, jobs: list[JobSpec]) -> list[Any]:
        wanted = [plain_values.new_job(new) for new in jobs]
        answers = await self.engine.set_many(self.queue, wanted, call=call)
        return [
            plain_values.refusal(answer)
            if isinstance(answer, TowpathError)
            else plain_values.placed(answer)
            for answer in answers
        ]

    async def _retry(self, call: Call | None, id: str) -> str:
        return await self.engine.retry(self._ref(id), call=call)

    async def _delete(self, call: Call | None, id: str) -> None:
        await self.engine.delete(self._ref(id), call=call)

    async def _drop(self, call: Call | None, lane: str) -> str:
        return (await self.engine.drop(self.queue, lane, call=call)).id

    async def _promote(self, call: Call | None, limit: int) -> int:
        return await self.engine.queues.promote(self.queue, limit, call=call)

    async def _reap(self, call: Call | None, limit: int) -> int:
        return await self.engine.queues.reap(self.queue, limit, call=call)

    async def _trim(self, call: Call | None, limit: int) -> int:
        return await self.engine.queues.trim(self.queue, limit, call=call)

    async def _pause(self, call: Call | None) -> None:
        await self.engine.queues.pause(self.queue, call=call)

    async def _resume(self, call: Call | None) -> None:
        await self.engine.queues.resume(self.queue, call=call)

    # ── leases and jobs by name ──────────────────────────────────────────────────────────

    def _keep(self, lease: Lease) -> HeldLease:
        self._leases.setdefault((lease.id, lease.token), lease)
        return plain_values.held(lease)

    def _lease(self, id: str, token: int) -> Lease:
        return self._leases[id, token]

    def _ref(self, id: str) -> JobRef:
        return JobRef(self.queue, JobId(id))

    def _settlement(self, settle: Settle) -> Settlement:
        lease, rest = self._lease(settle.id, settle.token), settle.rest
        match settle.verb:
            case "complete":
                return model.Complete(lease, rest[0])
            case "fail":
                wait = None if rest[0] is None else milliseconds(rest[0])
                return model.Fail(lease, rest[1], wait, keep_turn=rest[2])
            case "bury":
                return model.Bury(lease, rest[0])
            case "release":
                return model.Release(lease, milliseconds(rest[0]), rest[1], rest[1] == "anew")
            case _:
                return model.Renew(lease, milliseconds(rest[0]))

    # ── questions ────────────────────────────────────────────────────────────────────────

    def survey(self) -> tuple[Counts, dict[str, list[JobSummary]]]:
        """How many jobs are in each state, and every job in its state."""
        return self.run(self._survey())

    async def _survey(self) -> tuple[Counts, dict[str, list[JobSummary]]]:
        found = await self.engine.inspect.counts(self.queue)
        counts = plain_values.counts(found)
        census = {
            state: await self._listed(State(state)) if counts.states.get(state, found.kept) else []
            for state in STATES
        }
        if dead := census["dead"]:
            groups, of_text = await self._of_dead(dead)
            counts = replace(counts, groups=groups, found=of_text)
        return counts, census

    async def _of_dead(self, dead: list[JobSummary]) -> tuple[dict[str, list[str]], list[str]]:
        """The dead jobs by error and by text; read again if others are dead, or in another
        order.
        """
        page = await self.engine.inspect.list(self.queue, State.DEAD, size=PAGE)
        looked = dead, self.now, [str(job.id) for job in page.jobs]
        if self._looked != looked:
            self._last = await self._groups(), await self._found()
            self._looked = looked
        return self._last

    async def _listed(self, state: State) -> list[JobSummary]:
        """The ready and the waiting jobs in order, the others by id."""
        page = await self.engine.inspect.list(self.queue, state, size=PAGE)
        views = [plain_values.view(job) for job in page.jobs]
        return views if state in ("ready", "waiting") else sorted(views, key=lambda view: view.id)

    async def _groups(self) -> dict[str, list[str]]:
        found = await self.engine.inspect.dead_groups(self.queue)
        assert found.ungrouped == 0
        groups: dict[str, list[str]] = {}
        for group in found.groups:
            page = await self.engine.inspect.list(
                self.queue, State.DEAD, group=group.group, size=PAGE
            )
            groups[group.error] = [job.id for job in page.jobs]
            assert len(page.jobs) == group.count
        return groups

    async def _found(self) -> list[str]:
        found = await self.engine.inspect.search_dead(self.queue, SEARCHED.upper())
        return [job.id for job in found.jobs]

    def look(self, id: str) -> JobDetails | Refusal:
        try:
            return self.run(self._look(self._ref(id)))
        except TowpathError as error:
            return plain_values.refusal(error)

    async def _look(self, ref: JobRef) -> JobDetails:
        look = await self.engine.inspect.look(ref)
        job = look.job
        among = job.state is not State.READY or "rank" in look.facts
        assert among, f"{ref.id} is ready, and not among the ready ones of selector {job.selector}"
        position = await self.engine.inspect.position(ref)
        why = (await self.engine.inspect.explain(ref)).why
        assert await self.engine.inspect.state(ref) == job.state
        return JobDetails(
            plain_values.view(job),
            payload=job.payload,
            result=job.result,
            expires=plain_values.ms(job.expires_at),
            ahead=position and position.ahead,
            why=why,
        )
