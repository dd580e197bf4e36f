"""Durations that users pass: a timedelta, a number of seconds, or text, everywhere."""

import math
from datetime import timedelta
from typing import Any

import pytest

from tests.worker.in_process_worker import SOON, job_once, working
from towpath import Exponential, Fixed, Listed, QueueOptions, Retry, Snooze, Towpath, Worker
from towpath.clock import DurationLike
from towpath.engine.channel import Limits
from towpath.engine.schedule import Every
from towpath.engine.states import State
from towpath.errors import InvalidOption, StillOpen
from towpath.worker.context import HandOver

MINUTE = timedelta(minutes=1)
SAID: list[DurationLike] = [MINUTE, 60, 60.0, "1m", "60s"]
WRONG: list[Any] = [-1, math.nan, math.inf, "5", "5 fortnights", "", True, None, -MINUTE]


@pytest.mark.parametrize("minute", SAID)
def test_durations_are_kept_as_timedeltas(minute: DurationLike) -> None:
    options = QueueOptions(keep=minute, keep_dead=minute, remember=minute)
    assert (options.keep, options.keep_dead, options.remember) == (MINUTE, MINUTE, MINUTE)
    retry = Exponential(first=minute, longest=minute)
    assert (retry.first, retry.longest, Fixed(minute).every) == (MINUTE, MINUTE, MINUTE)
    assert Listed((minute, minute)).waits == (MINUTE, MINUTE)
    assert Every(minute).interval == MINUTE
    assert (Retry(after=minute).after, Snooze(minute).until) == (MINUTE, MINUTE)
    assert HandOver(minute).lease == MINUTE
    assert Limits(answer=minute, give_up=minute).answer == MINUTE


@pytest.mark.parametrize("minute", SAID)
async def test_durations_are_accepted_as_job_options(app: Towpath, minute: DurationLike) -> None:
    @app.handler("mails", time_limit=minute, keep=minute)
    async def send() -> None: ...

    assert (send.options.time_limit, send.options.keep) == (MINUTE, MINUTE)
    job = await send.submit(delay=minute, keep=minute, lease=minute)
    assert (await job_once(job, lambda _: True)).state is State.DELAYED
    await job.move(delay=0)
    with pytest.raises(StillOpen):
        await job.result(within=0)
    async with working(app, lease=minute, grace=minute):
        assert await job.result(within=SOON) is None


@pytest.mark.parametrize("wrong", WRONG)
async def test_invalid_durations_are_refused(app: Towpath, wrong: Any) -> None:
    @app.handler("mails")
    async def send() -> None: ...

    job = await send.submit()
    with pytest.raises(InvalidOption, match="within"):
        await job.result(within=wrong)
    with pytest.raises(InvalidOption, match="delay"):
        await send.submit(delay=wrong)
    with pytest.raises(InvalidOption, match="time_limit"):
        app.handler("reports", time_limit=wrong)
    with pytest.raises(InvalidOption, match="lease"):
        Worker(app, lease=wrong)


@pytest.mark.parametrize("nothing", [0, 0.0, "0s", timedelta()])
async def test_durations_of_zero_are_refused_where_they_are_meaningless(
    app: Towpath, nothing: DurationLike
) -> None:
    @app.handler("mails")
    async def send() -> None: ...

    with pytest.raises(InvalidOption, match="lease"):
        await send.submit(lease=nothing)
    with pytest.raises(InvalidOption, match="time_limit"):
        app.handler("reports", time_limit=nothing)
    with pytest.raises(InvalidOption, match="every"):
        Every(nothing)
    with pytest.raises(InvalidOption, match="lease"):
        Worker(app, lease=nothing)
