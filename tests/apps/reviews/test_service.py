"""Reviews as records: accepted once, the latest of each subject counts, listed for people."""

import os
import random
import sys
from datetime import UTC, datetime
from itertools import count

import pytest
from sqlalchemy import text

from tests.apps.reviews.reviewing import HEAD, a_push, a_review, a_task
from towpath.apps.reviews.errors import ReviewDiffers, ReviewEnded, ReviewOver
from towpath.apps.reviews.hooks import Hook
from towpath.apps.reviews.model import (
    POSTS,
    REVIEWS,
    Forge,
    ReviewState,
    ReviewTask,
)
from towpath.apps.reviews.service import Reviews
from towpath.apps.reviews.view import ReviewPage
from towpath.engine.model import HIGH, LOW, NORMAL, Bury, Complete, Lease, Settlement, job_ref
from towpath.errors import InvalidName, InvalidOption
from towpath.ids import Token
from towpath.ledger.errors import RecordNotDead, RecordNotFound
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending

SEED = int(os.environ.get("HOOKS_SEED", "20260716"))
_tokens = count(1)


def a_hook(delivery: str, version: int | None = 1000, task: ReviewTask | None = None) -> Hook:
    return Hook(delivery=delivery, task=task or a_task(), version=version)


def api_task(number: int = 7) -> ReviewTask:
    return a_task(forge=Forge.API, number=number)


def lease_of(queue: str, job: str) -> Lease:
    return Lease(job_ref(queue, job), b"", Token(next(_tokens)), 1, "w", 0, 0)


async def settled(ledger: Ledger, queue: str, id: str, result: bytes | None) -> None:
    """An attempt that ends with *result*; None = it is dead."""
    lease = lease_of(queue, (await ledger.jobs.get(queue, id)).job)
    await ledger.jobs.begin(lease)
    word: Settlement = Bury(lease, "no luck") if result is None else Complete(lease, result)
    await ledger.jobs.end(Ending(lease, word, cancelled=False))


def ids(page: ReviewPage) -> list[str]:
    return [review.id for review in page.reviews]


class TestAcceptingAWebhook:
    async def test_saves_the_task_and_returns_its_id(self, reviews: Reviews) -> None:
        taken = await reviews.take(a_hook("d1"))
        assert (taken.id, taken.state, taken.existed) == ("github-d1", ReviewState.PENDING, False)
        view = await reviews.get(taken.id)
        assert view.task == a_task()
        assert (view.priority, view.attempts, view.review) == (HIGH, 0, None)
        assert abs((view.created_at - datetime.now(UTC)).total_seconds()) < 60

    async def test_gives_pushes_a_normal_priority(self, reviews: Reviews) -> None:
        taken = await reviews.take(a_hook("d1", task=a_push()))
        assert (await reviews.get(taken.id)).priority == NORMAL

    async def test_twice_makes_one_review(self, reviews: Reviews) -> None:
        await reviews.take(a_hook("d1"))
        again = await reviews.take(a_hook("d1"))
        assert (again.id, again.existed) == ("github-d1", True)
        assert len((await reviews.list()).reviews) == 1

    async def test_of_a_newer_head_supersedes_reviews_that_have_not_begun(
        self, reviews: Reviews, ledger: Ledger
    ) -> None:
        await reviews.take(a_hook("running", 1))
        await ledger.jobs.begin(lease_of(REVIEWS, "github-running"))
        await reviews.take(a_hook("old", 2))
        newest = await reviews.take(a_hook("new", 3))
        assert newest.superseded == ("github-old",)
        old = await reviews.get("github-old")
        assert old.state is ReviewState.SUPERSEDED
        assert old.last_error == "superseded by github-new"
        assert (await reviews.get("github-running")).state is ReviewState.RUNNING

    async def test_of_an_older_head_makes_a_superseded_review(self, reviews: Reviews) -> None:
        await reviews.take(a_hook("new", 2))
        late = await reviews.take(a_hook("old", 1))
        assert late.state is ReviewState.SUPERSEDED

    async def test_leaves_reviews_of_other_subjects_alone(self, reviews: Reviews) -> None:
        for delivery, task in (
            ("a", a_task(number=1)),
            ("b", a_task(number=2)),
            ("c", a_task(repository="octo/other", number=1)),
            ("d", a_push(ref="main")),
            ("e", a_push(ref="fix")),
        ):
            assert not (await reviews.take(a_hook(delivery, task=task))).superseded


class TestWebhooksInAnyOrder:
    """I19: replayed, reordered or repeated, they give the same final state."""

    DELIVERIES = (
        *(
            a_hook(f"pull-{n}", n // 2, a_task(head=f"{n:040x}", before=f"{n - 1:040x}"))
            for n in range(2, 12)
        ),
        *(a_hook(f"other-{n}", n, a_task(number=8)) for n in range(5)),
        *(a_hook(f"push-{n}", n, a_push()) for n in range(4)),
    )

    @pytest.mark.parametrize("round", range(6))
    async def test_give_the_same_final_state(self, reviews: Reviews, round: int) -> None:
        sys.stdout.write(f"HOOKS_SEED={SEED}\n")
        chance = random.Random(SEED + round)
        sent = [*self.DELIVERIES, *chance.choices(self.DELIVERIES, k=20)]
        chance.shuffle(sent)
        for hook in sent:
            await reviews.take(hook)
        views = (await reviews.list(size=200)).reviews
        assert len(views) == len(self.DELIVERIES)
        pending = {view.id for view in views if view.state is ReviewState.PENDING}
        # The highest version of each subject; of two with one version, the one that follows the
        # other.
        assert pending == {"github-pull-11", "github-other-4", "github-push-3"}
        rest = {view.state for view in views if view.id not in pending}
        assert rest == {ReviewState.SUPERSEDED}


class TestRequestingAReview:
    async def test_generates_an_id_or_uses_that_of_the_caller(self, reviews: Reviews) -> None:
        made = await reviews.submit(api_task())
        assert made.id.startswith("api-")
        own = await reviews.submit(api_task(8), id="nightly-7")
        assert own.id == "api-nightly-7"

    async def test_with_the_same_id_again_is_harmless_unless_the_task_differs(
        self, reviews: Reviews
    ) -> None:
        await reviews.submit(api_task(), id="a")
        assert (await reviews.submit(api_task(), id="a")).existed
        with pytest.raises(ReviewDiffers, match="api-a"):
            await reviews.submit(api_task(8), id="a")
        assert (await reviews.get("api-a")).task == api_task()

    async def test_cannot_use_the_id_of_a_delivery(self, reviews: Reviews) -> None:
        taken = await reviews.take(a_hook("d1"))
        assert (await reviews.submit(api_task(), id="github-d1")).id != taken.id

    async def test_may_have_its_own_priority(self, reviews: Reviews) -> None:
        low = await reviews.submit(api_task(), priority=LOW)
        assert (await reviews.get(low.id)).priority == LOW
        with pytest.raises(InvalidOption, match="priority"):
            await reviews.submit(api_task(), priority=101)

    @pytest.mark.parametrize("id", ["", "a\nb", "x" * 600])
    async def test_with_an_invalid_id_is_refused(self, reviews: Reviews, id: str) -> None:
        with pytest.raises(InvalidName):
            await reviews.submit(api_task(), id=id)
        assert (await reviews.list()).reviews == []

    async def test_supersedes_earlier_reviews_of_the_pull_request(self, reviews: Reviews) -> None:
        first = await reviews.submit(api_task())
        second = await reviews.submit(api_task())
        assert second.superseded == (first.id,)


class TestReadingAReview:
    async def test_shows_the_result_of_the_reviewer(self, reviews: Reviews, ledger: Ledger) -> None:
        taken = await reviews.take(a_hook("d1"))
        await settled(ledger, REVIEWS, taken.id, a_review().packed())
        view = await reviews.get(taken.id)
        assert (view.state, view.attempts) == (ReviewState.COMPLETED, 1)
        assert view.review == a_review()
        assert view.started_at
        assert view.finished_at
        assert view.posting is None

    async def test_leaves_the_result_out_of_lists(self, reviews: Reviews, ledger: Ledger) -> None:
        taken = await reviews.take(a_hook("d1"))
        await settled(ledger, REVIEWS, taken.id, a_review().packed())
        [view] = (await reviews.list()).reviews
        assert (view.state, view.review) == (ReviewState.COMPLETED, None)

    async def test_shows_how_it_was_posted(self, reviews: Reviews, ledger: Ledger) -> None:
        taken = await reviews.take(a_hook("d1"))
        await ledger.jobs.submit(POSTS, b"{}", id=taken.id)
        assert (await reviews.get(taken.id)).posting is None
        await settled(ledger, REVIEWS, taken.id, a_review().packed())
        await settled(ledger, POSTS, taken.id, b'{"url":"https://forge.example/1"}')
        posting = (await reviews.get(taken.id)).posting
        assert posting is not None
        assert (posting.state, posting.url) == (ReviewState.COMPLETED, "https://forge.example/1")

    async def test_that_does_not_exist_is_refused(self, reviews: Reviews) -> None:
        for ask in (reviews.get, reviews.cancel, reviews.retry):
            with pytest.raises(RecordNotFound):
                await ask("github-nobody")

    async def test_whose_row_was_edited_shows_as_much_as_can_be_read(
        self, reviews: Reviews, ledger: Ledger
    ) -> None:
        await reviews.take(a_hook("spoilt"))
        await settled(ledger, REVIEWS, "github-spoilt", a_review().packed())
        await reviews.take(a_hook("good", task=a_task(number=8)))
        spoil = "UPDATE towpath_jobs SET payload = :x, result = :x WHERE id = 'github-spoilt'"
        await ledger.write(
            lambda connection: connection.execute(text(spoil), {"x": b"\xff{nonsense"})
        )
        view = await reviews.get("github-spoilt")
        assert (view.state, view.task, view.review) == (ReviewState.COMPLETED, None, None)
        assert ids(await reviews.list()) == ["github-good", "github-spoilt"]


class TestListingReviews:
    @pytest.fixture(autouse=True)
    async def some(self, reviews: Reviews) -> None:
        for number, repository in ((1, "octo/repo"), (11, "octo/repo"), (1, "octo/repo2")):
            task = a_task(number=number, repository=repository)
            await reviews.take(a_hook(f"{repository.partition('/')[2]}-{number}", task=task))
        await reviews.take(a_hook("main", task=a_push()))
        await reviews.submit(api_task(1), id="mine")
        await reviews.cancel("github-repo-11")

    async def test_is_newest_first_page_by_page(self, reviews: Reviews) -> None:
        first = await reviews.list(size=3)
        rest = await reviews.list(size=3, after=first.after)
        assert ids(first) == ["api-mine", "github-main", "github-repo2-1"]
        assert ids(rest) == ["github-repo-11", "github-repo-1"]
        assert rest.after is None

    async def test_by_repository_includes_every_forge(self, reviews: Reviews) -> None:
        page = await reviews.list(repository="octo/repo")
        assert ids(page) == ["api-mine", "github-main", "github-repo-11", "github-repo-1"]
        assert ids(await reviews.list(repository="Octo/Repo")) == []

    async def test_by_number_forge_and_state(self, reviews: Reviews) -> None:
        page = await reviews.list(repository="octo/repo", number=1)
        assert ids(page) == ["api-mine", "github-repo-1"]
        page = await reviews.list(repository="octo/repo", number=1, forge=Forge("github"))
        assert ids(page) == ["github-repo-1"]
        assert ids(await reviews.list(forge=Forge.API)) == ["api-mine"]
        assert ids(await reviews.list(state=ReviewState.CANCELLED)) == ["github-repo-11"]

    @pytest.mark.parametrize(
        "wish",
        [
            {"number": 1},
            {"size": 0},
            {"size": 201},
            {"after": "nonsense!"},
            {"after": "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5"},
            {"repository": "octo"},
            {"repository": "octo/re\0po"},
        ],
        ids=str,
    )
    async def test_with_invalid_options_is_refused(
        self, reviews: Reviews, wish: dict[str, object]
    ) -> None:
        with pytest.raises(InvalidOption):
            await reviews.list(**wish)  # pyright: ignore[reportArgumentType] -- callers may be untyped


class TestCancellingAndRetryingReviews:
    async def test_ends_waiting_ones_and_asks_running_ones_to_stop(
        self, reviews: Reviews, ledger: Ledger
    ) -> None:
        await reviews.take(a_hook("waits"))
        assert (await reviews.cancel("github-waits")).state is ReviewState.CANCELLED
        await reviews.take(a_hook("runs", task=a_push()))
        await ledger.jobs.begin(lease_of(REVIEWS, "github-runs"))
        asked = await reviews.cancel("github-runs")
        assert (asked.state, asked.cancel_requested) == (ReviewState.RUNNING, True)

    async def test_gives_a_dead_one_new_attempts(self, reviews: Reviews, ledger: Ledger) -> None:
        taken = await reviews.take(a_hook("d1"))
        await settled(ledger, REVIEWS, taken.id, None)
        assert (await reviews.get(taken.id)).last_error == "no luck"
        again = await reviews.retry(taken.id)
        assert (again.state, again.attempts) == (ReviewState.PENDING, 0)
        with pytest.raises(RecordNotDead):
            await reviews.retry(taken.id)

    async def test_leaves_completed_ones_alone_unless_their_posting_is_dead(
        self, reviews: Reviews, ledger: Ledger
    ) -> None:
        taken = await reviews.take(a_hook("d1"))
        await settled(ledger, REVIEWS, taken.id, a_review().packed())
        with pytest.raises(ReviewEnded) as ended:
            await reviews.cancel(taken.id)
        assert ended.value.state == "COMPLETED"
        with pytest.raises(ReviewOver) as over:
            await reviews.retry(taken.id)
        assert over.value.state == "COMPLETED"
        await ledger.jobs.submit(POSTS, b"{}", id=taken.id)
        await settled(ledger, POSTS, taken.id, None)
        again = await reviews.retry(taken.id)
        assert again.state is ReviewState.COMPLETED
        assert again.posting is not None
        assert again.posting.state is ReviewState.PENDING
        assert again.task is not None
        assert again.task.head == HEAD
