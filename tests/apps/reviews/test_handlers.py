"""Reviews in a worker: run, stored in the row, and posted once they are completed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from tests.apps.reviews.reviewing import a_push, a_review, a_task
from tests.apps.reviews.test_service import a_hook, lease_of
from tests.forges.serving import TOKEN, ForgeServer, refuses
from tests.waiting import eventually_async
from tests.worker.in_process_worker import working
from towpath.app.app import Towpath
from towpath.apps.reviews.adapters import HttpReviewer, ReviewAdapters
from towpath.apps.reviews.handlers import Posting, add_posting, add_reviews
from towpath.apps.reviews.model import POSTS, REVIEWS, Forge, Review, ReviewState, ReviewTask
from towpath.apps.reviews.options import ReviewsOptions
from towpath.apps.reviews.reviewers.command import CommandReviewer
from towpath.apps.reviews.reviewers.function import FunctionReviewer
from towpath.apps.reviews.service import Reviews
from towpath.apps.reviews.view import ReviewView
from towpath.calls.signature import new_secret
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.errors import InvalidOption
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RecordState
from towpath.worker.context import Context, Discard, Retry

SHORT = Limits(answer=seconds(0.5), give_up=seconds(1))
_JOB = "UPDATE towpath_jobs SET "


@pytest.fixture
def url(prepared_file_url: str) -> str:
    """The kind of database does not matter here."""
    return prepared_file_url


class ScriptedReviewer:
    """Returns scripted reviews, and counts its calls."""

    def __init__(self, *said: Review | Exception) -> None:
        self._said = list(said) or [a_review()]
        self.asked: list[ReviewTask] = []

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        self.asked.append(task)
        said = self._said[min(len(self.asked), len(self._said)) - 1]
        if isinstance(said, Exception):
            raise said
        return said


@asynccontextmanager
async def reviewing(
    server: EmbeddedServer, ledger: Ledger, reviewer: Any, host: ForgeServer | None = None
) -> AsyncGenerator[Towpath]:
    """A worker with the reviewer, and with posting to *host*."""
    options = options_for(host) if host else ReviewsOptions()
    app = Towpath(server.url, ledger=ledger, limits=SHORT)
    async with ReviewAdapters(options) as out:
        add_reviews(app, reviewer, options)
        if out.posters:
            add_posting(app, out.posters)
        async with working(app):
            yield app


def options_for(host: ForgeServer) -> ReviewsOptions:
    return ReviewsOptions(github_token=TOKEN, github_host=host.url)


def task_of(host: ForgeServer, **more: Any) -> ReviewTask:
    return a_task(host=host.url, **more)


async def until(reviews: Reviews, id: str, state: ReviewState) -> ReviewView:
    async def there() -> bool:
        return (await reviews.get(id)).state is state

    await eventually_async(there)
    return await reviews.get(id)


async def until_posted(reviews: Reviews, id: str, state: ReviewState) -> ReviewView:
    async def there() -> bool:
        posting = (await reviews.get(id)).posting
        return posting is not None and posting.state is state

    await eventually_async(there)
    return await reviews.get(id)


class TestAReview:
    async def test_has_the_result_of_the_reviewer(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews
    ) -> None:
        reviewer = ScriptedReviewer()
        async with reviewing(server, ledger, reviewer):
            taken = await reviews.take(a_hook("d1"))
            view = await until(reviews, taken.id, ReviewState.COMPLETED)
        assert view.review == a_review()
        assert reviewer.asked == [a_task()]
        assert view.posting is None

    async def test_that_fails_is_tried_again_and_one_without_hope_is_dead(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews
    ) -> None:
        again = Retry("the model is asleep", after=seconds(0.01))
        async with reviewing(
            server, ledger, ScriptedReviewer(again, a_review(), Discard("too strange"))
        ):
            taken = await reviews.take(a_hook("d1"))
            view = await until(reviews, taken.id, ReviewState.COMPLETED)
            assert view.attempts == 2
            other = await reviews.take(a_hook("d2", task=a_push()))
            view = await until(reviews, other.id, ReviewState.DEAD)
        assert (view.attempts, view.last_error) == (1, "too strange")

    async def test_waits_with_backoff_after_it_failed(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews
    ) -> None:
        async with reviewing(server, ledger, ScriptedReviewer(ValueError("no"))):
            taken = await reviews.take(a_hook("d1"))
            view = await until(reviews, taken.id, ReviewState.FAILED)
        assert view.last_error
        assert view.last_error.startswith("ValueError: no")
        assert view.due_at is not None
        assert view.started_at is not None
        assert 6 < (view.due_at - view.started_at).total_seconds() < 12

    async def test_of_a_corrupt_row_is_dead_with_the_reason(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews
    ) -> None:
        reviewer = ScriptedReviewer()
        taken = await reviews.take(a_hook("d1"))
        spoil = text(_JOB + "payload = :x")
        await ledger.write(
            lambda connection: connection.execute(spoil, {"x": b'{"forge":"github"}'})
        )
        async with reviewing(server, ledger, reviewer):
            view = await until(reviews, taken.id, ReviewState.DEAD)
        assert view.last_error
        assert "TaskInvalid" in view.last_error
        assert reviewer.asked == []

    async def test_that_runs_is_stopped_when_it_is_cancelled(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews
    ) -> None:
        async with reviewing(server, ledger, HangingReviewer()):
            taken = await reviews.take(a_hook("d1"))
            await until(reviews, taken.id, ReviewState.RUNNING)
            await reviews.cancel(taken.id)
            await until(reviews, taken.id, ReviewState.CANCELLED)

    async def test_is_stopped_though_the_cancelling_process_had_no_redis(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews, url: str
    ) -> None:
        """As in a terminal: the row is cancelled, and a relay tells the worker."""
        async with reviewing(server, ledger, HangingReviewer()), Ledger(url) as another:
            taken = await reviews.take(a_hook("d1"))
            await until(reviews, taken.id, ReviewState.RUNNING)
            await Reviews(another.jobs).cancel(taken.id)
            await until(reviews, taken.id, ReviewState.CANCELLED)


class HangingReviewer:
    """A reviewer that never returns."""

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        await asyncio.Event().wait()
        raise AssertionError


class TestPosting:
    async def test_sends_the_review_to_its_forge(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews, forge: ForgeServer
    ) -> None:
        async with reviewing(server, ledger, ScriptedReviewer(), forge):
            taken = await reviews.take(a_hook("d1", task=task_of(forge)))
            view = await until_posted(reviews, taken.id, ReviewState.COMPLETED)
        assert view.state is ReviewState.COMPLETED
        assert view.posting is not None
        assert view.posting.url == "https://forge.example/0"
        [post] = forge.posts
        assert post.path == "/api/v3/repos/octo/repo/pulls/7/reviews"

    async def test_is_off_without_a_token_and_for_other_forges(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews, forge: ForgeServer
    ) -> None:
        async with reviewing(server, ledger, ScriptedReviewer(), forge):
            mine = await reviews.submit(a_task(forge=Forge.API))
            other = a_hook("d2", task=a_task(number=8, host="https://elsewhere.example"))
            for id in (mine.id, (await reviews.take(other)).id):
                await until(reviews, id, ReviewState.COMPLETED)
        async with reviewing(server, ledger, ScriptedReviewer()):
            taken = await reviews.take(a_hook("d1"))
            await until(reviews, taken.id, ReviewState.COMPLETED)
        assert (await ledger.jobs.list(POSTS)).records == []

    async def test_goes_on_with_a_review_that_a_crash_left_behind(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews, forge: ForgeServer
    ) -> None:
        """The crash came after the review's record and before its end: nothing is lost or posted
        twice.
        """
        taken = await reviews.take(a_hook("d1", task=task_of(forge)))
        lost = lease_of(REVIEWS, taken.id)
        await ledger.jobs.begin(lost)
        await ledger.jobs.submit(POSTS, msgspec.json.encode(Posting(taken.id)), id=taken.id)
        async with reviewing(server, ledger, ScriptedReviewer(), forge):
            view = await until_posted(reviews, taken.id, ReviewState.COMPLETED)
        assert view.attempts == 2
        assert len(forge.posts) == 1
        assert len((await ledger.jobs.list(POSTS)).records) == 1

    async def test_of_a_review_that_never_completed_is_dead_and_runs_after_a_retry(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews, forge: ForgeServer
    ) -> None:
        taken = await reviews.take(a_hook("d1", task=task_of(forge)))
        await ledger.jobs.submit(POSTS, msgspec.json.encode(Posting(taken.id)), id=taken.id)
        async with reviewing(server, ledger, ScriptedReviewer(Discard("no"), a_review()), forge):
            await until(reviews, taken.id, ReviewState.DEAD)
            await eventually_async(lambda: dead_posting(ledger, taken.id))
            await reviews.retry(taken.id)
            await until_posted(reviews, taken.id, ReviewState.COMPLETED)
        assert len(forge.posts) == 1

    async def test_is_tried_again_while_the_forge_is_away(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews, forge: ForgeServer
    ) -> None:
        forge.hangs_up_after_posts = True
        async with reviewing(server, ledger, ScriptedReviewer(), forge):
            taken = await reviews.take(a_hook("d1", task=task_of(forge)))
            view = await until_posted(reviews, taken.id, ReviewState.FAILED)
            assert view.state is ReviewState.COMPLETED
            forge.hangs_up_after_posts = False
            await ledger.jobs.retry(POSTS, taken.id)
            await until_posted(reviews, taken.id, ReviewState.COMPLETED)
        assert len(forge.posts) == 1, "it was there: the first post was kept, its answer was lost"

    async def test_that_is_refused_is_dead_with_the_forges_reason_and_no_token(
        self, server: EmbeddedServer, ledger: Ledger, reviews: Reviews, forge: ForgeServer
    ) -> None:
        forge.rules.append(refuses(410, f"It is gone, {TOKEN}."))
        async with reviewing(server, ledger, ScriptedReviewer(), forge):
            taken = await reviews.take(a_hook("d1", task=task_of(forge)))
            view = await until_posted(reviews, taken.id, ReviewState.DEAD)
        assert view.posting is not None
        assert view.posting.last_error is not None
        assert "It is gone" in view.posting.last_error
        assert TOKEN not in str(view)


async def dead_posting(ledger: Ledger, id: str) -> bool:
    return (await ledger.jobs.get(POSTS, id)).state is RecordState.DEAD


class TestTheOptionsOfReviews:
    def test_name_one_reviewer_or_none(self) -> None:
        assert ReviewAdapters(ReviewsOptions()).reviewer is None
        assert isinstance(
            ReviewAdapters(ReviewsOptions(reviewer_command=("true",))).reviewer, CommandReviewer
        )
        at = ReviewAdapters(
            ReviewsOptions(reviewer_function="tests.apps.reviews.reviewing:a_review")
        )
        assert isinstance(at.reviewer, FunctionReviewer)
        there = ReviewsOptions(reviewer_url="http://127.0.0.1:1/", secrets=(new_secret(),))
        assert isinstance(ReviewAdapters(there).reviewer, HttpReviewer)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"reviewer_command": ("a",), "reviewer_function": "b:c"},
            {"reviewer_url": "https://example.com/"},
            {"reviewer_url": "nonsense", "secrets": ("s",)},
            {"github_host": "nonsense"},
            {"github_secrets": ("",)},
            {"gitlab_secrets": "text"},
            {"attempts": 0},
            {"concurrency": 0},
            {"within": seconds(0)},
            {"delivery": 1},
            {"allow": ("no host!",)},
        ],
        ids=str,
    )
    def test_that_are_invalid_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption):
            ReviewsOptions(**wrong)

    @pytest.mark.parametrize("function", ["nowhere", "nowhere.at.all:f", "json:nothing"])
    def test_with_an_unknown_function_are_refused(self, function: str) -> None:
        with pytest.raises(InvalidOption) as refused:
            ReviewAdapters(ReviewsOptions(reviewer_function=function))
        assert (refused.value.option, refused.value.value) == ("reviewer_function", function)

    @pytest.mark.parametrize("program", ["no-such-program", "./no-such-program", "/"])
    def test_with_an_unknown_program_are_refused(self, program: str) -> None:
        with pytest.raises(InvalidOption) as refused:
            ReviewAdapters(ReviewsOptions(reviewer_command=(program, "x")))
        assert (refused.value.option, refused.value.value) == ("reviewer_command", program)

    def test_are_shown_without_secrets(self) -> None:
        """I21."""
        secret = new_secret()
        options = ReviewsOptions(
            github_secrets=("canary-1",),
            gitlab_secrets=("canary-2",),
            github_token="canary-3",  # noqa: S106 -- of no forge
            gitlab_token="canary-4",  # noqa: S106 -- of no forge
            reviewer_url="https://example.com/?key=canary-5",
            secrets=(secret,),
            reviewer_variables={"KEY": "canary-6"},
        )
        assert "canary" not in f"{options} {options!r} {ReviewAdapters(options).posters}"
        assert secret not in repr(options)
