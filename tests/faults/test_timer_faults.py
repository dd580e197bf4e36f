"""I2, I4, I9, I12 for timers: every timer is completed once, none early, none lost.

Two schedulers, two workers, two instances of an app and Redis are killed and frozen at random while
timers of both modes fall due. TOWPATH_TIMERS_UNDER_FAULTS=5000 is the long form.
"""

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.amounts import amount
from tests.faults.queue_contents import contents_of, is_drained
from tests.faults.timer_deployment import QUEUES, TimerDeployment, timer_deployment
from tests.faults.timer_history import Fault, StoreEvent, TimerHistory, events_of
from tests.faults.timer_program import APP, APP_TYPE, PLUGIN_TYPE, worked_async
from tests.journals import JournalEntry, read_journals
from tests.waiting import eventually_async
from towpath import Context
from towpath.apps.timers.errors import TimerEnded
from towpath.apps.timers.model import TIMER_OPTIONS, NewTimer, new_timer
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.plugin import Timers
from towpath.apps.timers.service import TimerService
from towpath.clock import seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo, JobRef, job_ref
from towpath.engine.retry import Fixed
from towpath.engine.states import State
from towpath.errors import ServerError, TowpathError

TIMERS = int(os.environ.get("TOWPATH_TIMERS_UNDER_FAULTS", amount(200, thoroughly=1_000)))
SPAN_MS = 8_000 + TIMERS * 10
"""Over how long they fall due."""
FAULTS = 6 + TIMERS // 100
HANGS = 120 + TIMERS / 10
"""Seconds after which a wait counts as hanging, however busy the machine is."""
BATCH = 20
HOUR_MS = 3_600_000
FROZEN_MS = 20_000
"""How long a process is frozen at most: longer than the 15 s of a lease."""
SLACK_MS = 25_000
"""For how long after the end of a fault its consequences last: leases that end (15 s), calls that
were under way, and all at once what has waited meanwhile."""
LIMITS = Limits(answer=seconds(1), give_up=seconds(2))
SOON = Fixed(seconds(0.3))


def new_timers(chance: random.Random, count: int) -> list[NewTimer]:
    """New timers, half of them in each mode, due at random times from now on."""
    now = wall_ms()
    return [
        new_timer(
            APP_TYPE if number % 2 else PLUGIN_TYPE,
            number // 2,
            task_id=f"timer-{number}",
            app=APP if number % 2 else None,
            delay_time=now + chance.randrange(SPAN_MS),
            retry=SOON,
        )
        for number in range(count)
    ]


def promised(timers: list[NewTimer]) -> dict[str, int]:
    return {str(timer.task_id): timer.when.due or 0 for timer in timers}


async def submit(service: TimerService, timers: list[NewTimer]) -> None:
    """Submits all timers, whatever happens meanwhile; repeats them with the same ids until
    acknowledged.
    """
    left = list(timers)
    while left:
        some, left = left[:BATCH], left[BATCH:]
        for timer, answer in zip(some, await service.submit_many(some), strict=True):
            if isinstance(answer, ServerError):
                left.append(timer)
            elif isinstance(answer, TowpathError) and not isinstance(answer, TimerEnded):
                raise answer


@asynccontextmanager
async def service_on(store: EmbeddedServer) -> AsyncGenerator[tuple[Engine, TimerService]]:
    async with Engine(store.url, limits=LIMITS) as engine:
        for queue in QUEUES.values():
            await engine.queues.configure(
                queue, msgspec.structs.replace(TIMER_OPTIONS, events_most=1_000_000)
            )
        yield engine, TimerService(engine, TimersOptions())


class TimerFaults:
    """Injects faults one after the other; a frozen process is thawed some faults later."""

    def __init__(
        self, store: EmbeddedServer, deployment: TimerDeployment, chance: random.Random
    ) -> None:
        self._store, self._deployment, self._chance = store, deployment, chance
        self._frozen: list[tuple[Callable[[], None], str, int]] = []
        self.all: list[Fault] = []

    async def inject(self) -> None:
        kind = self._chance.choice(["store", "scheduler", "worker", "instance"])
        if kind == "store":
            await self._stop_store()
        elif self._chance.random() < 0.5:
            victim, began = self._deployment.one(self._chance, kind), wall_ms()
            await asyncio.to_thread(victim.kill)
            self._over(f"{victim.name} killed", began)
        else:
            victim = self._deployment.one(self._chance, kind)
            victim.freeze()
            self._frozen.append((victim.thaw, f"{victim.name} frozen", wall_ms()))
        if len(self._frozen) > 2:
            self.thaw()

    def thaw(self, after_ms: int = 0) -> None:
        """Thaws processes that were frozen long enough: if all of a kind are frozen, none of their
        work goes on.
        """
        now, frozen = wall_ms(), self._frozen
        self._frozen = [victim for victim in frozen if now - victim[2] < after_ms]
        for thaw, what, began in frozen:
            if now - began >= after_ms:
                thaw()
                self._over(what, began)

    def _over(self, what: str, began: int) -> None:
        self.all.append(Fault(what, began, wall_ms() + SLACK_MS))

    async def _stop_store(self) -> None:
        began = wall_ms()
        if self._chance.random() < 0.5:
            self._store.kill()
            await asyncio.to_thread(self._store.start)
            self._over("store killed", began)
            return
        self._store.pause()
        try:
            await worked_async(began + self._chance.randrange(100, 2500))
        finally:
            self._store.unpause()
        self._over("store frozen", began)


async def disturb(faults: TimerFaults, deployment: TimerDeployment, chance: random.Random) -> None:
    """Injects a fault whenever some more timers have run."""
    for number in range(FAULTS):
        due = TIMERS * 0.9 * (number + chance.random()) / FAULTS

        async def ran(due: float = due) -> bool:
            faults.thaw(after_ms=FROZEN_MS)
            return len({entry.id for entry in read_journals(deployment.journal)}) >= due

        await eventually_async(ran)
        await faults.inject()


@pytest.mark.timeout(4 * HANGS)
async def test_every_timer_is_completed_once_none_early_none_lost(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with EmbeddedServer(data=tmp_path / "store") as store:
        # The queues get their options before a program of the deployment declares others.
        async with service_on(store) as (engine, service):
            with timer_deployment(store.url, tmp_path) as deployment:
                deployment.journal.touch()
                faults = TimerFaults(store, deployment, chance)
                timers = new_timers(chance, TIMERS)
                submitting = asyncio.create_task(submit(service, timers))
                await disturb(faults, deployment, chance)
                await submitting
                faults.thaw()

                async def ended() -> bool:
                    try:
                        return all([await is_drained(engine, queue) for queue in QUEUES.values()])
                    except ServerError:
                        return False

                await eventually_async(ended)
                history = await history_of(engine, store, timers, read_journals(deployment.journal))
    history.faults = faults.all
    print(f"{TIMERS} timers, {len(faults.all)} faults, {history.again()} attempts more")  # noqa: T201 -- the figures
    assert not history.violations(), "\n".join(history.violations()[:20])


async def history_of(
    engine: Engine, store: EmbeddedServer, timers: list[NewTimer], ran: list[JournalEntry]
) -> TimerHistory:
    jobs, told = dict[str, JobInfo](), list[StoreEvent]()
    for queue in QUEUES.values():
        jobs |= (await contents_of(engine, queue)).jobs
        told += events_of(store, queue)
    return TimerHistory(promised(timers), ran, told, jobs)


Tampering = Callable[[Engine, JobRef], Awaitable[object]]


async def found_in(server: EmbeddedServer, tamper: Tampering, *, delay_ms: int) -> list[str]:
    """The violations found when one timer is tampered with in Redis.

    The other timers are due at once: only the one that is tampered with has *delay_ms*.
    """
    ran, timers = list[JournalEntry](), Timers(server.url)

    @timers.worker(PLUGIN_TYPE)
    async def _(ctx: Context) -> None:
        ran.append(JournalEntry("ran", ctx.token, ctx.id, os.getpid(), wall_ms()))

    async with service_on(server) as (engine, service), timers.working():
        now = wall_ms()
        made = [
            new_timer(PLUGIN_TYPE, task_id=f"timer-{n}", delay_time=now + (n == 4) * delay_ms)
            for n in range(5)
        ]
        await submit(service, made)
        await tamper(engine, job_ref(QUEUES[PLUGIN_TYPE], "timer-4"))
        await eventually_async(lambda: is_drained(engine, QUEUES[PLUGIN_TYPE]))
        return (await history_of(engine, server, made, ran)).violations()


class TestTheCheckOfTimers:
    async def test_finds_nothing_in_an_untouched_history(self, server: EmbeddedServer) -> None:
        async def nothing(engine: Engine, job: JobRef) -> None: ...

        assert await found_in(server, nothing, delay_ms=100) == []

    async def test_finds_a_lost_timer(self, server: EmbeddedServer) -> None:
        async def cancel(engine: Engine, job: JobRef) -> None:
            await engine.cancel(job)

        assert await found_in(server, cancel, delay_ms=HOUR_MS) == ["timer-4 is lost: cancelled"]

    async def test_finds_an_early_timer(self, server: EmbeddedServer) -> None:
        async def move(engine: Engine, job: JobRef) -> None:
            await engine.move(job, delay=seconds(0))

        ran, claimed = await found_in(server, move, delay_ms=HOUR_MS)
        assert ran.startswith("timer-4 ran ")
        assert claimed.startswith("timer-4 was claimed ")

    async def test_finds_a_timer_that_fired_twice(self, server: EmbeddedServer) -> None:
        async def again(engine: Engine, job: JobRef) -> None:
            async def done() -> bool:
                return (await engine.inspect.job(job)).state is State.DONE

            await eventually_async(done)
            await engine.set(job.queue, b"{}", id=job.id)

        assert await found_in(server, again, delay_ms=0) == [
            "timer-4 is doubled: completed 2 times",
            "timer-4 is doubled: it ran 2 times without a fault",
        ]
