"""I13: how often a job is tried and how long it waits between attempts, by submit, handler or
queue.
"""

import asyncio
import re
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.worker.in_process_worker import SOON, LogLines, ended, job_once, working
from towpath.app.app import Towpath
from towpath.clock import ZERO, hours, milliseconds, minutes
from towpath.engine.model import JobInfo
from towpath.engine.options import QueueOptions
from towpath.engine.retry import Exponential, Fixed, Listed, Never
from towpath.engine.states import State
from towpath.errors import TowpathError
from towpath.worker.context import Context, Retry, Snooze

AT_ONCE = Fixed(milliseconds(1))


class TestAttempts:
    async def test_are_twenty_by_default(self, app: Towpath) -> None:
        seen: list[int] = []

        @app.handler("shop", retry=AT_ONCE)
        async def sell(ctx: Context) -> None:
            seen.append(ctx.attempt)
            raise ValueError(f"attempt {ctx.attempt}")

        async with working(app):
            dead = await ended(await sell.submit())
        assert (dead.state, dead.attempts) == (State.DEAD, 20)
        assert (dead.reason or "").startswith("ValueError: attempt 20")
        assert seen == list(range(1, 21))

    @pytest.mark.parametrize("name", [None, "named"])
    async def test_are_limited_by_the_handler(
        self, app: Towpath, name: str | None, lines: LogLines
    ) -> None:
        @app.handler("shop", name=name, retry=AT_ONCE, max_attempts=2)
        async def sell() -> None:
            raise ValueError

        async with working(app):
            dead = await ended(await sell.submit())
        assert (dead.state, dead.attempts) == (State.DEAD, 2)
        assert [len(lines.of(event)) for event in ("job.failed", "job.dead")] == [1, 1]

    async def test_are_limited_by_the_submit_before_the_handler(self, app: Towpath) -> None:
        @app.handler("shop", retry=AT_ONCE, max_attempts=2)
        async def sell() -> None:
            raise ValueError

        async with working(app):
            fewer, more = await sell.submit(max_attempts=1), await sell.submit(max_attempts=4)
            assert (await ended(fewer)).attempts == 1
            assert (await ended(more)).attempts == 4

    @pytest.mark.parametrize("name", [None, "named"])
    async def test_are_one_more_than_the_handlers_list_of_waits(
        self, app: Towpath, name: str | None
    ) -> None:
        """Eight waits make nine attempts, whatever the queue allows."""

        @app.handler("shop", name=name, retry=Listed((milliseconds(1),) * 8))
        async def sell() -> None:
            raise ValueError

        async with working(app):
            dead = await ended(await sell.submit())
        assert (dead.state, dead.attempts) == (State.DEAD, 9)

    @pytest.mark.parametrize("name", [None, "named"])
    async def test_are_one_more_than_the_submits_list_of_waits(
        self, app: Towpath, name: str | None
    ) -> None:
        @app.handler("shop", name=name, max_attempts=2)
        async def sell() -> None:
            raise ValueError

        listed = Listed((milliseconds(1),) * 8)
        async with working(app):
            nine = await sell.submit(retry=listed)
            three = await sell.submit(retry=listed, max_attempts=3)
            [many] = await sell.submit_many([None], retry=listed)
            assert not isinstance(many, TowpathError)
            assert [(await ended(job)).attempts for job in (nine, three, many)] == [9, 3, 9]

    async def test_are_limited_by_the_handler_if_it_also_lists_waits(self, app: Towpath) -> None:
        @app.handler("shop", retry=Listed((milliseconds(1),) * 8), max_attempts=3)
        async def sell() -> None:
            raise ValueError

        async with working(app):
            assert (await ended(await sell.submit())).attempts == 3

    async def test_are_limited_by_a_named_handler_for_every_producer(self, app: Towpath) -> None:
        """A producer in another language knows the handler's name, not its limits."""

        @app.handler("shop", name="sell", retry=AT_ONCE, max_attempts=2)
        async def sell(_: int) -> None:
            raise ValueError

        async with working(app):
            job = await app.engine.submit("shop", b"1", headers={"handler": "sell"})
            dead = await app.engine.events.ended(job.job, within=SOON)
        assert (dead.state, dead.attempts) == (State.DEAD, 2)

    async def test_include_those_that_end_with_a_retry_verdict(self, app: Towpath) -> None:
        @app.handler("shop", max_attempts=3)
        async def sell() -> None:
            raise Retry("again", after=milliseconds(1))

        async with working(app):
            dead = await ended(await sell.submit())
        assert (dead.state, dead.attempts, dead.reason) == (State.DEAD, 3, "again")

    async def test_do_not_include_snoozes(self, app: Towpath) -> None:
        seen: list[int] = []

        @app.handler("shop", max_attempts=1)
        async def sell(ctx: Context) -> None:
            seen.append(ctx.attempt)
            if len(seen) < 5:
                raise Snooze(milliseconds(1))

        async with working(app):
            await (await sell.submit()).result(within=SOON)
        assert seen == [1] * 5

    async def test_include_those_whose_lease_expired(self, app: Towpath) -> None:
        """An attempt counts even if its worker did not end it."""

        @app.handler("shop", max_attempts=2)
        async def sell(ctx: Context) -> int:
            return ctx.attempt

        job = await sell.submit()
        await app.engine.claim("shop", worker="gone", lease=milliseconds(1))
        async with working(app):
            assert await job.result(within=SOON) == 2


class TestTheWaitBetweenAttempts:
    @pytest.mark.parametrize("name", [None, "named"])
    async def test_follows_the_handlers_policy(self, app: Towpath, name: str | None) -> None:
        @app.handler("shop", name=name, retry=Listed((hours(1), hours(2))))
        async def sell() -> None:
            raise ValueError

        async with working(app):
            job = await job_once(await sell.submit(), lambda info: info.state is State.DELAYED)
        assert wait(job) == pytest.approx(3600, abs=10)

    async def test_follows_the_submits_policy_before_the_handlers(self, app: Towpath) -> None:
        @app.handler("shop", retry=Fixed(hours(1)))
        async def sell() -> None:
            raise ValueError

        async with working(app):
            job = await sell.submit(retry=Fixed(hours(3)))
            delayed = await job_once(job, lambda info: info.state is State.DELAYED)
        assert wait(delayed) == pytest.approx(3 * 3600, abs=10)

    async def test_follows_the_queues_policy_by_default(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None:
            raise ValueError

        await app.engine.queues.configure("shop", QueueOptions(retry=Fixed(hours(5))))
        async with working(app):
            job = await job_once(await sell.submit(), lambda info: info.state is State.DELAYED)
        assert wait(job) == pytest.approx(5 * 3600, abs=10)

    async def test_does_not_exist_under_the_policy_never(self, app: Towpath) -> None:
        @app.handler("shop", retry=Never())
        async def sell() -> None:
            raise ValueError

        async with working(app):
            dead = await ended(await sell.submit())
        assert (dead.state, dead.attempts) == (State.DEAD, 1)

    async def test_grows_with_the_attempts(self, app: Towpath) -> None:
        @app.handler("shop", retry=Exponential(first=milliseconds(20), factor=2.0))
        async def sell(ctx: Context) -> int:
            if ctx.attempt < 4:
                raise ValueError
            assert ctx.due_at is None
            return ctx.attempt

        async with working(app):
            assert await (await sell.submit()).result(within=SOON) == 4


class TestTheOptionsOfAQueue:
    async def test_are_those_that_its_handlers_declare(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop", retry=AT_ONCE, max_attempts=7, keep=hours(2))
        async def sell() -> None: ...

        await app.engine.queues.configure("shop", QueueOptions(max_length=5000))
        async with working(app):
            await (await sell.submit()).result(within=SOON)
        stored = await app.engine.queues.options("shop")
        assert (stored.retry, stored.max_attempts, stored.keep) == (AT_ONCE, 7, hours(2))
        assert stored.max_length == 5000
        [told] = lines.of("queue.configured")
        assert told["queue"] == "shop"
        assert {"keep", "0s", "2h"} <= set(re.findall(r"\w+", told["reason"]))
        assert "timedelta" not in told["reason"]

    async def test_stay_as_an_operator_changed_them_when_a_worker_starts(
        self, app: Towpath
    ) -> None:
        ran = asyncio.Event()

        @app.handler("shop", retry=AT_ONCE, max_attempts=7)
        async def sell() -> None:
            ran.set()

        async with working(app):
            await (await sell.submit()).result(within=SOON)
        await app.engine.queues.change_options(
            "shop", lambda options: replace(options, max_attempts=9, keep=ZERO)
        )
        ran.clear()
        async with working(app):
            await sell.submit()
            await ran.wait()
        stored = await app.engine.queues.options("shop")
        assert (stored.retry, stored.max_attempts, stored.keep) == (AT_ONCE, 9, ZERO)

    async def test_keep_results_for_an_hour_by_default(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        async with working(app):
            await (await sell.submit()).result(within=SOON)
        assert (await app.engine.queues.options("shop")).keep == hours(1)


def wait(job: JobInfo) -> float:
    assert job.next_try_at is not None
    assert job.claimed_at is not None
    return (job.next_try_at - job.claimed_at).total_seconds()


@pytest.mark.parametrize("decides", ["handler", "queue"])
async def test_a_failed_attempt_is_logged_with_its_number_and_the_next_try(
    app: Towpath, lines: LogLines, decides: str
) -> None:
    policy: dict[str, Any] = {"retry": Fixed(hours(1)), "max_attempts": 7}
    if decides == "queue":
        await app.engine.queues.configure("shop", QueueOptions(**policy))

    own: dict[str, Any] = policy if decides == "handler" else {}

    @app.handler("shop", **own)
    async def sell() -> None:
        raise ConnectionError("no answer")

    async with working(app):
        job = await sell.submit()
        failed = await job_once(job, lambda info: info.next_try_at)
        line = await lines.next("job.failed")
    assert (line["attempt"], line["max_attempts"]) == (1, 7)
    assert failed.next_try_at is not None
    assert abs(datetime.fromisoformat(line["next_try"]) - failed.next_try_at) < minutes(30)
