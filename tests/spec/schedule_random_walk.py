"""A random walk: schedules are made, changed, paused, fired and removed, and compared with a model.

Two engines take turns, and sometimes act at once. After each step the submitted jobs, each schedule
as it is listed, and the index must be what the model expects.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

import pytest

from tests.spec.jobs_in_states import REVIEWS
from towpath.clock import Duration, ManualClock, hours, minutes
from towpath.engine.engine import Engine
from towpath.engine.model import JobOptions, new_job
from towpath.engine.schedule import Every, Missed, due
from towpath.errors import FiringTaken, ScheduleChanged, ScheduleDeclared, ScheduleNotFound
from towpath.ids import queue_name
from towpath.worker.schedules import DeclaredSchedules, fire_due

NAMES = ("a", "b", "c")
DECLARED = "declared"
OTHER = "others"


@dataclass
class ExpectedSchedule:
    """What the model expects of one schedule."""

    every: Duration
    missed: Missed
    payload: bytes
    at: datetime
    paused: bool = False
    last: datetime | None = None
    priority: int | None = None

    @property
    def next(self) -> datetime | None:
        return None if self.paused else next(Every(self.every).after(self.at))


class ScheduleWalk:
    """One random walk, the same for the same seed."""

    def __init__(self, engines: tuple[Engine, Engine], clock: ManualClock, seed: int) -> None:
        self.engines, self.clock, self.random = engines, clock, Random(seed)
        self.kept: dict[str, ExpectedSchedule] = {}
        self.submitted: list[tuple[str, bytes]] = []
        self.stale: list[tuple[str, str, datetime]] = []
        """Names with a version and a last firing, as somebody saw them who was slow since."""
        self.heard = ""

    @property
    def engine(self) -> Engine:
        return self.random.choice(self.engines)

    async def run(self, steps: int) -> None:
        await self.engines[0].schedules.fire_due(
            REVIEWS, DECLARED, [], after=None, upto=self.clock.now
        )
        await self.engines[0].schedules.set(OTHER, "x", Every(hours(1)), paused=True)
        moves = (
            self.put, self.change, self.pause, self.resume, self.remove, self.fire, self.both,
            self.time_passes, self.time_passes, self.fire_due, self.fire_due, self.be_slow,
            self.come_late, self.overwrite_code, self.overwrite_a_change,
            self.change_before_a_firing, self.fire_before_a_firing, self.fire_before_a_firing,
            self.hear_in_between, self.pause_for_a_while, self.pause_for_a_while,
        )  # fmt: skip
        for _ in range(steps):
            before = self.outline()
            await self.random.choice(moves)()
            await self.check(changed=self.outline() != before)

    def outline(self) -> str:
        return str({name: (kept.every, kept.missed, kept.payload, kept.paused, kept.priority)
                    for name, kept in sorted(self.kept.items())})  # fmt: skip

    def any_name(self) -> str:
        return self.random.choice(NAMES)

    # ── moves ────────────────────────────────────────────────────────────────────────────

    async def put(self) -> None:
        name, every = self.any_name(), minutes(self.random.choice((10, 20, 30)))
        missed, payload = self.random.choice(list(Missed)), b"%d" % self.random.randrange(1000)
        done = await self.engine.schedules.set(REVIEWS, name, Every(every), payload, missed=missed)
        before = self.kept.get(name)
        assert done.new == (before is None)
        if before is None:
            self.kept[name] = ExpectedSchedule(every, missed, payload, self.clock.now)
            return
        before.at = self.clock.now if before.paused else before.at
        before.every, before.missed, before.payload = every, missed, payload
        before.paused, before.priority = False, None

    async def change(self) -> None:
        name, payload = self.any_name(), b"%d" % self.random.randrange(1000)
        if name in self.kept:
            await self.engine.schedules.change(REVIEWS, name, payload=payload)
            self.kept[name].payload = payload
        else:
            with pytest.raises(ScheduleNotFound):
                await self.engine.schedules.change(REVIEWS, name, payload=payload)

    async def both(self) -> None:
        """Makes two changes of different options at once; both must have their effect."""
        name, payload = self.any_name(), b"%d" % self.random.randrange(1000)
        if (kept := self.kept.get(name)) is not None:
            kept.payload, kept.priority = payload, self.random.randrange(100)
            one, two = self.engines
            await asyncio.gather(
                one.schedules.change(REVIEWS, name, payload=payload),
                two.schedules.change(REVIEWS, name, priority=kept.priority),
            )

    async def pause(self) -> None:
        if (kept := self.kept.get(name := self.any_name())) is not None:
            await self.engine.schedules.pause(REVIEWS, name)
            kept.paused = True

    async def resume(self) -> None:
        if (kept := self.kept.get(name := self.any_name())) is not None:
            await self.engine.schedules.resume(REVIEWS, name)
            kept.at = self.clock.now if kept.paused else kept.at
            kept.paused = False

    async def pause_for_a_while(self) -> None:
        if (kept := self.kept.get(name := self.any_name())) is not None:
            await self.engine.schedules.pause(REVIEWS, name)
            self.clock.advance(minutes(self.random.choice((3, 31))))
            await self.engine.schedules.resume(REVIEWS, name)
            kept.at, kept.paused = self.clock.now, False

    async def remove(self) -> None:
        if (name := self.any_name()) in self.kept:
            await self.engine.schedules.delete(REVIEWS, name)
            del self.kept[name]

    async def fire(self) -> None:
        if (kept := self.kept.get(name := self.any_name())) is not None:
            answer = await self.engine.schedules.fire(REVIEWS, name)
            self.submitted.append((answer.id, kept.payload))

    async def time_passes(self) -> None:
        self.clock.advance(minutes(self.random.choice((1, 7, 31))))

    async def fire_due(self) -> None:
        for name, kept in self.kept.items():
            if not kept.paused:
                found = due(Every(kept.every), kept.at, self.clock.now, kept.missed)
                kept.at = found.last
                kept.last = (*found.firings, kept.last)[-2 if found.firings else -1]
                self.submitted += [(_firing(name, at), kept.payload) for at in found.firings]
        await asyncio.gather(*(fire_due(engine, DeclaredSchedules()) for engine in self.engines))

    async def be_slow(self) -> None:
        if (kept := self.kept.get(name := self.any_name())) is not None:
            info = await self.engine.schedules.get(REVIEWS, name)
            self.stale.append((name, info.version, kept.at))

    async def come_late(self) -> None:
        """A process that read an older definition, or an older last firing, fires nothing."""
        if not self.stale:
            return
        name, version, last = self.stale.pop()
        kept = self.kept.get(name)
        now = await self._version(name)
        if self.clock.now <= last or (kept and now == version and kept.at == last):
            return
        await self._refused(name, version, last)

    async def change_before_a_firing(self) -> None:
        if (name := self.any_name()) in self.kept:
            version, last = await self._version(name), self.kept[name].at
            self.clock.advance(minutes(1))
            await self.change()
            self.kept[name].payload += b"0"
            await self.engine.schedules.change(REVIEWS, name, payload=self.kept[name].payload)
            await self._refused(name, version, last)

    async def fire_before_a_firing(self) -> None:
        if (kept := self.kept.get(name := self.any_name())) is not None:
            version, last = await self._version(name), kept.at
            self.clock.advance(minutes(self.random.choice((11, 31))))
            await self.fire_due()
            self.clock.advance(minutes(1))
            if kept.at != last:
                await self._refused(name, version, last)

    async def _refused(self, name: str, version: str, last: datetime) -> None:
        engine, jobs = self.engine, [new_job(b"stale", id=f"stale-{name}-{version}")]
        with pytest.raises((ScheduleChanged, FiringTaken)):
            await engine.schedules.fire_due(
                REVIEWS, name, jobs, after=last, upto=self.clock.now, version=version
            )

    async def hear_in_between(self) -> None:
        """A process that learns that a change has begun also learns that it is done."""
        index, change = self.engine.schedules.index, f"change-{self.random.random()}"
        await index.run("begin_schedule_change", queue=REVIEWS, change=change, more=0, most=0)
        begun = await self.engine.schedules.changes(self.heard)
        await index.run(
            "end_schedule_change", queue=REVIEWS, change=change, count=-1, news=f"{change}-done"
        )
        assert (await self.engine.schedules.changes(begun.last)).queues is not None

    async def _version(self, name: str) -> str:
        if name not in self.kept:
            return ""
        return (await self.engine.schedules.get(REVIEWS, name)).version

    async def overwrite_code(self) -> None:
        with pytest.raises(ScheduleDeclared):
            await self.engine.schedules.set(REVIEWS, DECLARED, Every(hours(1)))
        # by a process that read the schedule before the code declared it
        assert await self._schedule(DECLARED, "") == [b"SCHEDULE_DECLARED"]

    async def overwrite_a_change(self) -> None:
        """By a process that read the schedule before another process changed it."""
        if (name := self.any_name()) in self.kept:
            version = await self._version(name)
            self.kept[name].payload += b"0"
            await self.engine.schedules.change(REVIEWS, name, payload=self.kept[name].payload)
            assert (await self._schedule(name, version))[0] == b"SCHEDULE_CHANGED"

    async def _schedule(self, name: str, over: str) -> list[bytes]:
        store = self.engine._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the script alone
        item = [name, over, "v", "", "{}", b"", 0, 9]
        return await store.write("schedule", queue_name(REVIEWS), lambda _: item)

    # ── what must hold ───────────────────────────────────────────────────────────────────

    async def check(self, *, changed: bool) -> None:
        page = await self.engine.schedules.list(queues=[REVIEWS])
        told = {
            kept.name: (kept.when, kept.missed, kept.paused, kept.last, kept.next, kept.options)
            for kept in page.schedules
            if kept.name != DECLARED
        }
        assert told == {
            name: (
                Every(kept.every),
                kept.missed,
                kept.paused,
                kept.last,
                kept.next,
                _options(kept),
            )
            for name, kept in self.kept.items()
        }
        leases = await self.engine.claim(REVIEWS, worker="w", lease=hours(1), count=500)
        assert sorted((lease.id, lease.payload) for lease in leases) == sorted(self.submitted)
        self.submitted = []
        for lease in leases:
            await self.engine.complete(lease)
        heard = await self.engine.schedules.changes(self.heard)
        assert not changed or heard.queues is not None
        if heard.queues is not None:
            assert set(heard.queues) == ({REVIEWS, OTHER} if self.kept else {OTHER})
            assert not any(schedules.begun for schedules in heard.queues.values())
        self.heard = heard.last


def _options(kept: ExpectedSchedule) -> JobOptions:
    return {} if kept.priority is None else {"priority": kept.priority}


def _firing(name: str, at: datetime) -> str:
    return f"{name}@{at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"


async def walk(url: str, seed: int, *, steps: int = 60, **how: Any) -> None:
    """Runs one walk on an empty Redis, with engines of its own. Raises AssertionError,
    TowpathError.
    """
    clock = ManualClock()
    async with Engine(url, clock=clock, **how) as one, Engine(url, clock=clock, **how) as two:
        await ScheduleWalk((one, two), clock, seed).run(steps)
