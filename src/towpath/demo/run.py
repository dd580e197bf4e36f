"""One run of the demo: start everything, put load on it, kill parts, wait, and count."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from towpath.clock import steady
from towpath.console.exits import DemoFailed
from towpath.demo.load import DemoLoad, Users
from towpath.demo.programs import NAME, WORKERS, Programs, running, wait_until
from towpath.demo.results import Row, count_held_messages, read_notes
from towpath.engine.engine import Engine
from towpath.telemetry.logs import Silent

WITHIN = 170.0
"""Seconds within which the demo must end."""
_LOOK, _PROGRESS_EVERY = 0.05, 2.0
_IDLE_COUNTS = 3
"""Number of counts in a row without open jobs after which missing results count as lost."""

Say = Callable[[str], None]
ShowRows = Callable[[list[Row]], None]


class Demo:
    """Runs *load*; *say* gets lines about its progress. With *lose*, loses a timer on purpose."""

    def __init__(
        self, load: DemoLoad, *, say: Say, lose: bool = False, within: float = WITHIN
    ) -> None:
        self._load, self._print, self._lose, self._within = load, say, lose, within
        self._began = steady()
        self.terminated = False
        """Whether SIGTERM ended it."""

    async def run(self, folder: Path, show_rows: ShowRows, *, stay: bool = False) -> None:
        """Run the demo, and call *show_rows* with the rows. With *stay*, everything then runs on
        until SIGINT or SIGTERM.

        Raises DemoFailed if it can't finish.
        """
        self._end_by_sigterm()
        self._say("starting a server, its Redis and database, two workers and a fake GitHub …")
        async with running(folder) as programs, Engine(programs.redis, log=Silent()) as engine:
            self._say(f"serving {programs.address}; dashboard: {programs.login}")
            users = Users(programs, self._load, engine)
            beside = (self._print_progress(users), users.send_webhooks(), users.work_as_agents())
            async with self._limit_time(), _run_beside(*beside):
                rows = await self._run_load(programs, users, engine)
            show_rows(rows)
            if stay:
                self._say(f"it runs until Ctrl-C; dashboard: {programs.address}")
                await _wait_for_signal()

    def _end_by_sigterm(self) -> None:
        """Make SIGTERM end the demo, and everything that it has started, as Ctrl-C does."""
        task = asyncio.current_task()

        def end() -> None:
            self.terminated = True
            if task is not None:
                task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)

    async def _run_load(self, programs: Programs, users: Users, engine: Engine) -> list[Row]:
        await self._wait_for_workers(programs, without=0)
        async with asyncio.TaskGroup() as group:
            group.create_task(users.run())
            if self._lose:
                group.create_task(users.lose_a_timer())
            group.create_task(self._kill_parts(programs, users))
        self._say("everything is sent; waiting until it is done …")
        return await self._count_rows(users, engine)

    # ── failures ─────────────────────────────────────────────────────────────────────────

    async def _kill_parts(self, programs: Programs, users: Users) -> None:
        """Kill a worker that holds messages, then Redis: both with SIGKILL, by their pids."""
        killed = await self._find_busy_worker(programs, users)
        os.kill(killed, signal.SIGKILL)
        held = count_held_messages(read_notes(programs.notes))[killed]
        self._say(f"killed worker process {killed} (SIGKILL), which held messages: {held}")
        await self._wait_for_workers(programs, without=killed)
        self._say("its parent has started another one")
        await self._wait_for_share(users, 0.5)
        redis = await asyncio.to_thread(programs.redis_pid)
        os.kill(redis, signal.SIGKILL)
        self._say(f"killed Redis, process {redis} (SIGKILL)")
        await wait_until("another Redis process", lambda: programs.redis_is_another(redis))
        self._say("the server has started it again, with the data on its disk")

    async def _find_busy_worker(self, programs: Programs, users: Users) -> int:
        """The process that holds most messages, once a quarter of the messages is done."""
        await self._wait_for_share(users, 0.25)
        while True:
            alive = set(await self._workers(programs))
            held = count_held_messages(await asyncio.to_thread(read_notes, programs.notes))
            busy = {pid: count for pid, count in held.items() if pid in alive and count > 0}
            done, all_of_them = users.progress()["messages"]
            if alive and (busy or done == all_of_them):
                return max(busy or alive, key=lambda pid: held[pid])
            await asyncio.sleep(_LOOK)

    async def _wait_for_share(self, users: Users, share: float) -> None:
        def reached() -> bool:
            done, all_of_them = users.progress()["messages"]
            return done >= share * all_of_them

        await wait_until("a share of the messages", reached, within=self._within)

    async def _wait_for_workers(self, programs: Programs, *, without: int) -> None:
        while len(set(await self._workers(programs)) - {without}) < WORKERS:  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(_LOOK)

    async def _workers(self, programs: Programs) -> list[int]:
        """The pids of the live workers; none while Redis is unreachable."""
        answer = await programs.remote.answer("GET", "/api/v1/workers")
        found: Any = msgspec.json.decode(answer.body) if answer.status == 200 else {}
        ours = f"{NAME}."
        return [
            worker["pid"] for worker in found.get("workers", ()) if worker["name"].startswith(ours)
        ]

    # ── waiting for the end ──────────────────────────────────────────────────────────────

    async def _count_rows(self, users: Users, engine: Engine) -> list[Row]:
        """The rows, once nothing is missing, or no open job could still add what is missing."""
        idle = 0
        while True:
            idle = 0 if await _open_jobs(engine) or await users.open_reviews() else idle + 1
            rows = await users.rows()
            if not any(row.lost for row in rows) or idle >= _IDLE_COUNTS:
                return rows
            await asyncio.sleep(_PROGRESS_EVERY / 4)

    @asynccontextmanager
    async def _limit_time(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._within):
                yield
        except TimeoutError as error:
            raise DemoFailed(f"the work was not finished within {self._within:g} s") from error

    # ── messages ─────────────────────────────────────────────────────────────────────────

    def _say(self, text: str) -> None:
        self._print(f"{steady() - self._began:5.1f} s  {text}")

    async def _print_progress(self, users: Users) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY)
            counts = await asyncio.to_thread(users.progress)
            shown = (f"{name} {done}/{of}" for name, (done, of) in counts.items())
            self._say("  ".join(shown))


async def _open_jobs(engine: Engine) -> int:
    """The number of open jobs of the demo's applications, except uploads."""
    known = await engine.queues.names()
    ours = [
        queue
        for queue in known
        if queue.split(".")[0] in ("messages", "timers", "reviews", "issues")
    ]
    counts = [await engine.inspect.counts(queue) for queue in ours]
    return sum(count.ready + count.delayed + count.waiting + count.leased for count in counts)


@asynccontextmanager
async def _run_beside(*work: Any) -> AsyncGenerator[None]:
    """Run *work* in tasks while the body runs; an error of one ends the body."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
            yield
            for task in tasks:
                task.cancel()
    except ExceptionGroup as failed:
        raise _first(failed) from failed


def _first(failed: ExceptionGroup[Exception]) -> Exception:
    """The first error in nested exception groups."""
    error = failed.exceptions[0]
    return _first(cast("Any", error)) if isinstance(error, ExceptionGroup) else error


async def _wait_for_signal() -> None:
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, came.set)
    await came.wait()


@contextmanager
def folder_for(*, kept: bool) -> Generator[Path]:
    """A new folder for the demo; removed at the end unless *kept*."""
    folder = Path(tempfile.mkdtemp(prefix="towpath-demo-"))
    try:
        yield folder
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
