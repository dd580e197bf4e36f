"""Submit, move, cancel and lateness grow with 1,000,000 timers at most 1.1 x as a bare set does.

Server CPU of each verb of the application, 50 at a time, with 1,000 and with 1,000,000 timers
waiting; beside it a sorted set and two strings per entry, changed by scripts of 50 without any
rule, with as many entries. Lateness is measured at the claim: from the due time until a claim that
was waiting has returned in a process of its own; of the bare set, until a client that sleeps until
the first due time has taken it out.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

import msgspec
from redis.asyncio import Redis

from benchmarks.bench import Bench, Plan, bench
from benchmarks.claimer import claimer, stamp
from benchmarks.figure import Figure, Reference, at_most, measured
from benchmarks.measure import Cost, percentile, server_us
from towpath import milliseconds
from towpath.apps.timers.model import NewTimer, TypeKey, When, new_timer
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.apps.timers.types import queue_of
from towpath.clock import wall_ms
from towpath.engine.model import NewJob, new_job
from towpath.errors import TowpathError
from towpath.ids import new_job_id

BATCH = 50
MOST = 1.1
KEY = TypeKey("bench")
QUEUE = queue_of(KEY)
PARAMS = {"order": 7, "customer": "Anna", "note": "x" * 50}
DAY_MS = 24 * 3600 * 1000
VERBS = ("submit", "move", "cancel")
_FIRST_MS, _APART_MS = 300, 15
"""When the first is due whose lateness is measured, and how far apart they are on average."""
_FILLED_AT_ONCE = 500


def _far(chance: random.Random) -> int:
    """A due time that does not come while this runs."""
    return wall_ms() + DAY_MS + chance.randrange(DAY_MS)


def _delays(chance: random.Random, count: int) -> list[int]:
    """Due times, in ms from now, that come while this runs."""
    return [_FIRST_MS + chance.randrange(count * _APART_MS) for _ in range(count)]


# ── Towpath's timers ─────────────────────────────────────────────────────────────────────────


class TimersUnderLoad:
    """Timers on a Redis of their own."""

    def __init__(self, workbench: Bench) -> None:
        self.workbench, self._chance = workbench, random.Random(1)
        self._service = TimerService(workbench.engine, TimersOptions())
        self._made: list[str] = []

    async def fill(self, size: int) -> float:
        """Submits so many waiting timers; returns the bytes of each."""
        await self._service.types.ensure(KEY)
        before = self.workbench.meter.memory()
        made = self._backlog(size)

        async def task() -> None:
            while batch := list(islice(made, _FILLED_AT_ONCE)):
                await self.workbench.engine.submit_many(QUEUE, batch)

        await asyncio.gather(task(), task())
        return (self.workbench.meter.memory() - before) / size

    def _backlog(self, size: int) -> Iterator[NewJob]:
        # As the application makes them, but without its checks: a million of these take a while.
        for _ in range(size):
            due = _far(self._chance)
            timer = NewTimer(key=KEY, task_id=None, when=When(due=due), params=PARAMS)
            yield NewJob(new_job_id(), timer.packed(), {"due": due})

    async def submit(self, count: int) -> None:
        for _ in range(count // BATCH):
            some = [
                new_timer(KEY.task_type, PARAMS, delay_time=_far(self._chance))
                for _ in range(BATCH)
            ]
            answers = await self._service.submit_many(some)
            self._made += [
                answer.task_id for answer in answers if not isinstance(answer, TowpathError)
            ]

    async def move(self, count: int) -> None:
        await self._each(
            count, lambda id: self._service.move(KEY, id, When(due=_far(self._chance)))
        )

    async def cancel(self, count: int) -> None:
        await self._each(count, lambda id: self._service.cancel(KEY, id))
        self._made.clear()

    async def _each(self, count: int, do: Callable[[str], Awaitable[object]]) -> None:
        assert len(self._made) == count
        for at in range(0, count, BATCH):
            await asyncio.gather(*map(do, self._made[at : at + BATCH]))

    async def late(self, count: int) -> list[float]:
        """By how many ms a waiting claim returned late, for each timer."""
        async with claimer("claim", self.workbench.server.url, QUEUE, count) as waiting:
            await self.workbench.meter.until_waiting(1)
            delays = [milliseconds(delay) for delay in _delays(self._chance, count)]
            await self.workbench.engine.submit_many(
                QUEUE, [new_job(stamp(), delay=delay) for delay in delays]
            )
            seen = await waiting.seen()
        assert not [one for one in seen if one.claimed_ms < one.due_ms], "one was early"
        return [one.returned_ms - one.due_ms for one in seen]


# ── bare ─────────────────────────────────────────────────────────────────────────────────────

_SUBMIT = """
local puts, adds = {}, {}
for i = 3, #ARGV, 2 do
  local id, n = ARGV[i], #puts
  puts[n + 1], puts[n + 2] = '{raw}:job:' .. id, string.rep('r', tonumber(ARGV[1]))
  puts[n + 3], puts[n + 4] = '{raw}:load:' .. id, ARGV[2]
  adds[#adds + 1] = ARGV[i + 1]
  adds[#adds + 1] = id
end
redis.call('MSET', unpack(puts))
redis.call('ZADD', '{raw}:delayed', unpack(adds))
"""
_MOVE = """
local jobs, puts, adds = {}, {}, {}
for i = 3, #ARGV, 2 do
  jobs[#jobs + 1] = '{raw}:job:' .. ARGV[i]
  puts[#puts + 1] = '{raw}:job:' .. ARGV[i]
  puts[#puts + 1] = string.rep('m', tonumber(ARGV[1]))
  adds[#adds + 1] = ARGV[i + 1]
  adds[#adds + 1] = ARGV[i]
end
redis.call('MGET', unpack(jobs))
redis.call('MSET', unpack(puts))
redis.call('ZADD', '{raw}:delayed', unpack(adds))
"""
_CANCEL = """
local jobs, puts, adds, ids = {}, {}, {}, {}
for i = 3, #ARGV, 2 do
  jobs[#jobs + 1] = '{raw}:job:' .. ARGV[i]
  puts[#puts + 1] = '{raw}:job:' .. ARGV[i]
  puts[#puts + 1] = string.rep('c', tonumber(ARGV[1]))
  adds[#adds + 1] = ARGV[i + 1]
  adds[#adds + 1] = ARGV[i]
  ids[#ids + 1] = ARGV[i]
end
redis.call('MGET', unpack(jobs))
redis.call('MSET', unpack(puts))
redis.call('ZREM', '{raw}:delayed', unpack(ids))
redis.call('ZADD', '{raw}:ended', unpack(adds))
"""
_TAKE = """
local id = redis.call('ZRANGEBYSCORE', '{raw}:delayed', '-inf', ARGV[1], 'LIMIT', 0, 1)[1]
if not id then return false end
redis.call('ZREM', '{raw}:delayed', id)
local load = redis.call('GET', '{raw}:load:' .. id)
redis.call('UNLINK', '{raw}:job:' .. id, '{raw}:load:' .. id)
return load
"""
_RECORD_BYTES = 60
"""About what the record of a timer takes."""
_PAYLOAD = msgspec.json.encode({"params": PARAMS, "due": 10**12})


class BareSet:
    """A sorted set and two strings per entry, on a Redis of its own."""

    def __init__(self, workbench: Bench) -> None:
        self.workbench, self._chance = workbench, random.Random(1)
        self._made: list[str] = []

    async def fill(self, size: int) -> float:
        before = self.workbench.meter.memory()
        for _ in range(size // _FILLED_AT_ONCE):
            self._run(_SUBMIT, [new_job_id() for _ in range(_FILLED_AT_ONCE)])
        return (self.workbench.meter.memory() - before) / size

    async def submit(self, count: int) -> None:
        for _ in range(count // BATCH):
            ids = [new_job_id() for _ in range(BATCH)]
            self._run(_SUBMIT, ids)
            self._made += ids

    async def move(self, count: int) -> None:
        for at in range(0, count, BATCH):
            self._run(_MOVE, self._made[at : at + BATCH])

    async def cancel(self, count: int) -> None:
        for at in range(0, count, BATCH):
            self._run(_CANCEL, self._made[at : at + BATCH])
        self._made.clear()

    def _run(self, script: str, ids: Sequence[str], dues: Sequence[int] = ()) -> None:
        entries: list[str | int] = []
        for number, id in enumerate(ids):
            entries += [id, dues[number] if dues else _far(self._chance)]
        self.workbench.meter.ask(
            "EVAL", script, 1, "{raw}:delayed", _RECORD_BYTES, _PAYLOAD, *entries
        )

    async def late(self, count: int) -> list[float]:
        """The lateness of a client that sleeps until the first due time, and takes one entry."""
        now = wall_ms()
        dues = [now + delay for delay in _delays(self._chance, count)]
        self._run(_SUBMIT, [new_job_id() for _ in range(count)], dues)
        client: Any = Redis(unix_socket_path=self.workbench.socket, protocol=2)
        late: list[float] = []
        try:
            for due in sorted(dues):
                await asyncio.sleep(max(0.0, due / 1000 - time.time()))
                while await client.eval(_TAKE, 1, "{raw}:delayed", wall_ms()) is None:  # noqa: ASYNC110 -- only the store knows
                    await asyncio.sleep(0.0002)
                late.append(time.time_ns() / 1e6 - due)
        finally:
            await client.aclose()
        return late


# ── both ─────────────────────────────────────────────────────────────────────────────────────

TimerStore = TimersUnderLoad | BareSet


class ScaleSamples:
    """The measurements on one Redis, round by round."""

    def __init__(self) -> None:
        self.costs: dict[str, list[Cost]] = {verb: [] for verb in VERBS}
        self.late: list[float] = []
        self.bytes_each = 0.0

    def cpu(self, verb: str) -> list[float]:
        return server_us(self.costs[verb])


async def run(plan: Plan) -> list[Figure]:
    small, large = 1_000, plan.count(1_000_000, 50_000)
    count, samples = plan.count(2_000, 500), plan.count(200, 50)
    seen: dict[tuple[str, int], ScaleSamples] = {}
    async with AsyncExitStack() as stack:
        stores: dict[tuple[str, int], TimerStore] = {}
        for size in (small, large):
            for name, kind in (("ours", TimersUnderLoad), ("bare", BareSet)):
                store = kind(await stack.enter_async_context(bench()))
                stores[name, size], seen[name, size] = store, ScaleSamples()
                seen[name, size].bytes_each = await store.fill(size)
                await _verbs(store, ScaleSamples(), BATCH)
        for number in range(plan.count(7, 3)):
            order = list(stores) if number % 2 == 0 else list(reversed(stores))
            for which in order:
                await _verbs(stores[which], seen[which], count)
            for which in order:
                late = await stores[which].late(samples)
                seen[which].late.append(percentile(late, 0.5))
    return _figures(small, large, seen)


async def _verbs(store: TimerStore, seen: ScaleSamples, count: int) -> None:
    for verb in VERBS:
        work: Awaitable[None] = getattr(store, verb)(count)
        seen.costs[verb].append(await store.workbench.meter.cost(count, work))


def _figures(small: int, large: int, seen: dict[tuple[str, int], ScaleSamples]) -> list[Figure]:
    ours, bare = (
        (seen["ours", small], seen["ours", large]),
        (seen["bare", small], seen["bare", large]),
    )
    figures: list[Figure] = []
    for verb in VERBS:
        mine, theirs = ours[1].cpu(verb), bare[1].cpu(verb)
        figures.append(_growth(verb, large, (ours[0].cpu(verb), mine), (bare[0].cpu(verb), theirs)))
        figures += [
            measured(
                f"timers_scale.{verb}.cpu",
                f"{verb} with {large:,} waiting: CPU of the server",
                "µs/timer",
                mine,
                beside=Reference(f"µs/timer with {small:,}", ours[0].cpu(verb)),
            ),
            measured(
                f"timers_scale.{verb}.bare",
                f"the same of a bare set with {large:,}",
                "µs/entry",
                theirs,
                beside=Reference(f"µs/entry with {small:,}", bare[0].cpu(verb)),
            ),
        ]
    figures.append(
        _growth("late", large, (ours[0].late, ours[1].late), (bare[0].late, bare[1].late))
    )
    return [
        *figures,
        measured(
            "timers_scale.late.p50",
            f"late with {large:,} waiting, at the claim, p50",
            "ms",
            ours[1].late,
            beside=Reference(f"ms with {small:,}", ours[0].late),
        ),
        measured(
            "timers_scale.late.bare",
            f"the same of a bare set with {large:,}",
            "ms",
            bare[1].late,
            beside=Reference(f"ms with {small:,}", bare[0].late),
        ),
        measured(
            "timers_scale.memory",
            f"{large:,} timers waiting, params of {len(msgspec.json.encode(PARAMS))} bytes",
            "bytes/timer",
            [ours[1].bytes_each],
            beside=Reference("bytes/entry, bare", [bare[1].bytes_each]),
        ),
    ]


Both = tuple[Sequence[float], Sequence[float]]
"""With few and with many waiting, round by round."""


def _growth(what: str, large: int, ours: Both, bare: Both) -> Figure:
    """The growth of a cost with many timers waiting, beside the growth of a bare set's cost."""

    def grown(both: Both) -> list[float]:
        return [much / little for little, much in zip(*both, strict=True)]

    return measured(
        f"timers_scale.{what}",
        f"{what} with {large:,} waiting to with 1,000",
        "x",
        grown(ours),
        at_most(MOST, "bare"),
        beside=Reference("x, a bare set", grown(bare)),
        bound="rounds differ by more than the growth itself: see the lines with CPU and ms",
    )
