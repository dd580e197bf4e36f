"""A reviewing command that takes too long, prints too much or is stopped, and its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.apps.reviews.reviewing import a_task, an_attempt
from tests.embedded.processes import has_ended
from tests.waiting import eventually_in_loop
from tests.worker.in_process_worker import SOON, working
from towpath.app.app import Towpath
from towpath.apps.reviews.model import REVIEWS, Review, ReviewTask
from towpath.apps.reviews.reviewers.command import CommandReviewer
from towpath.apps.reviews.reviewers.errors import ReviewerTimedOut, ReviewTooLarge
from towpath.clock import milliseconds, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.states import State
from towpath.worker.context import Context, Retry

HANGS = "sleep 1000 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"


def shell(script: str, pids: Path, **options: Any) -> CommandReviewer:
    return CommandReviewer(["sh", "-c", script.format(pids=pids)], **options)


def all_ended(pids: Path) -> bool:
    return all(has_ended(int(pid)) for pid in pids.read_text().split())


async def test_a_command_that_takes_too_long_is_tried_again(pids: Path) -> None:
    script = "echo waiting for the model >&2; " + HANGS
    reviewer = shell(script, pids, within=milliseconds(500))
    with pytest.raises(Retry, match="waiting for the model") as raised:
        await reviewer.review(a_task(), an_attempt())
    assert isinstance(raised.value.__cause__, ReviewerTimedOut)
    assert raised.value.__cause__.within == milliseconds(500)


async def test_a_command_that_prints_too_much_is_tried_again() -> None:
    reviewer = CommandReviewer(["head", "-c", "2000000", "/dev/zero"])
    with pytest.raises(Retry, match="1048576") as raised:
        await reviewer.review(a_task(), an_attempt())
    assert isinstance(raised.value.__cause__, ReviewTooLarge)
    assert raised.value.__cause__.limit == 1048576


@pytest.mark.usefixtures("quick_heartbeat")
class TestAReviewingCommandInAWorker:
    async def test_ends_when_its_task_is_cancelled(
        self, server: EmbeddedServer, pids: Path
    ) -> None:
        app, reviewer = Towpath(server.url), shell(HANGS, pids)

        @app.handler(REVIEWS, time_limit=minutes(9))
        async def review(task: ReviewTask, ctx: Context) -> Review:
            return await reviewer.review(task, ctx)

        async with app, working(app, lease=minutes(9)):
            job = await review.submit(a_task())
            await eventually_in_loop(pids.exists)
            await app.engine.cancel(job.ref)
            ended = await app.engine.events.ended(job.ref, within=SOON)
            assert ended.state is State.CANCELLED
            await eventually_in_loop(lambda: all_ended(pids))

    async def test_ends_when_its_task_is_lost(self, server: EmbeddedServer, pids: Path) -> None:
        app, reviewer = Towpath(server.url), shell(HANGS, pids)

        @app.handler(REVIEWS, time_limit=minutes(9))
        async def review(task: ReviewTask, ctx: Context) -> Review:
            return await reviewer.review(task, ctx)

        async with app, working(app, lease=minutes(9)):
            await review.submit(a_task())
            await eventually_in_loop(pids.exists)
            server.ask("FLUSHALL")
            await eventually_in_loop(lambda: all_ended(pids))
