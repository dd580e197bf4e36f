"""Fencing tokens that are ahead of the clock: workers go by the clock, and leases last as ever."""

import asyncio
from datetime import UTC, datetime

import pytest

from tests.queue_numbers import set_numbers
from tests.waiting import HANGS
from tests.worker.in_process_worker import LogLines, job_once, working
from towpath.app.app import Towpath
from towpath.clock import Duration, hours, seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.states import State
from towpath.worker.context import Context, Snooze

QUEUE = "shop"


def set_ahead(server: EmbeddedServer, by: Duration) -> None:
    """Makes the queue's tokens as high as if it were so much later."""
    token = (wall_ms() + round(by.total_seconds() * 1000)) * 1000
    set_numbers(server.ask, f"{{{QUEUE}}}:meta", token=token)


async def test_a_snooze_lasts_as_long_as_it_says(app: Towpath, server: EmbeddedServer) -> None:
    @app.handler(QUEUE)
    async def sell() -> None:
        raise Snooze(datetime.now(UTC) + seconds(60))

    set_ahead(server, hours(1))
    async with working(app):
        ticket = await sell.submit()
        job = await job_once(ticket, lambda info: info.state is State.DELAYED)
    assert job.next_try_at is not None
    assert job.next_try_at - datetime.now(UTC) > seconds(20)


@pytest.mark.parametrize("by", [seconds(5.5), hours(1)], ids=["almost a lease", "an hour"])
async def test_a_renewed_lease_lasts_as_long_as_the_first(
    app: Towpath, server: EmbeddedServer, by: Duration
) -> None:
    """With tokens almost a lease ahead, renewals would last only for the difference: parts of a
    second.
    """

    @app.handler(QUEUE)
    async def sell() -> None:
        await asyncio.Event().wait()

    set_ahead(server, by)
    async with working(app, lease=seconds(6)):
        ticket = await sell.submit()
        first = await job_once(ticket, lambda info: info.state is State.LEASED)
        assert first.expires_at is not None
        until = first.expires_at
        job = await job_once(ticket, lambda info: info.expires_at and info.expires_at != until)
        assert job.expires_at is not None
        assert job.expires_at > until
        assert job.token == first.token


async def test_the_logged_wait_is_the_time_that_was_waited(
    app: Towpath, server: EmbeddedServer, lines: LogLines
) -> None:
    told: list[Duration] = []

    @app.handler(QUEUE)
    async def sell(ctx: Context) -> None:
        told.append(ctx.claimed_at - ctx.submitted_at)
        told.append(ctx.deadline - ctx.claimed_at)

    set_ahead(server, hours(1))
    async with working(app):
        await (await sell.submit()).result(within=seconds(HANGS))
    assert lines.of("job.completed")[0]["waited"] < 60
    assert told[0] < seconds(60)
    assert hours(1) <= told[1] < hours(1) + seconds(60)
