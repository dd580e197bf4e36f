"""Which of a pull request's or a branch's events is the latest: the forge decides, then arrival."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from tests.apps.reviews import deliveries as webhooks
from tests.apps.reviews.deliveries import (
    GITHUB_SECRET,
    GITLAB_TOKEN,
    Delivery,
    github,
    gitlab,
    merge_request,
    payload,
)
from tests.apps.reviews.reviewing import a_push, a_review, a_task
from tests.apps.reviews.test_service import a_hook, settled
from tests.faults.planting import PlantedFault, planted
from towpath.apps.reviews.hooks import Hook
from towpath.apps.reviews.model import REVIEWS, Forge, ReviewState
from towpath.apps.reviews.service import Reviews
from towpath.ledger.ledger import Ledger

SECOND = 1_790_000_000_000
ORDERS = list(itertools.permutations(range(4)))


def sha(number: int) -> str:
    return f"{number:040x}"


def opened(head: int) -> Hook:
    return a_hook(str(uuid4()), SECOND, a_task(head=sha(head)))


def pushed(before: int, head: int, *, version: int | None = SECOND) -> Hook:
    """An event about new commits on the pull request."""
    task = a_task(head=sha(head), before=sha(before))
    return a_hook(str(uuid4()), version, task)


def branch(before: int, head: int) -> Hook:
    """A push of GitLab, which does not send the time."""
    task = a_push(forge=Forge("gitlab"), head=sha(head), before=sha(before))
    return a_hook(str(uuid4()), None, task)


def renumbered(hook: Hook, number: int) -> Hook:
    return replace(hook, task=replace(hook.task, number=number))


async def head_states(reviews: Reviews, number: int | None = None) -> dict[int, ReviewState]:
    repository = None if number is None else "octo/repo"
    page = await reviews.list(repository=repository, number=number, size=200)
    return {
        int(review.task.head, 16): review.state for review in reversed(page.reviews) if review.task
    }


async def waiting(reviews: Reviews, number: int | None = None) -> list[int]:
    states = await head_states(reviews, number)
    return sorted(head for head, state in states.items() if state is ReviewState.PENDING)


class TestTwoEventsInTheSameSecond:
    async def test_are_ordered_by_arrival_whatever_their_delivery_ids(
        self, reviews: Reviews
    ) -> None:
        for number in range(1, 11):
            hooks = [
                a_hook(str(uuid4()), SECOND, a_task(number=number, head=sha(head)))
                for head in (1, 2)
            ]
            older, newer = [await reviews.take(hook) for hook in hooks]
            assert newer.state is ReviewState.PENDING
            assert newer.superseded == (older.id,)

    async def test_leave_a_head_that_the_finished_review_has_not_seen(
        self, reviews: Reviews, ledger: Ledger
    ) -> None:
        for number in range(1, 6):
            task = a_task(number=number, head=sha(1))
            older = await reviews.take(a_hook(str(uuid4()), SECOND, task))
            await settled(ledger, REVIEWS, older.id, a_review().packed())
            task = a_task(number=number, head=sha(2))
            newer = await reviews.take(a_hook(str(uuid4()), SECOND, task))
            assert newer.state is ReviewState.PENDING
            assert (await reviews.get(older.id)).state is ReviewState.COMPLETED

    async def test_in_any_order_leave_the_last_push(self, reviews: Reviews) -> None:
        """I19: GitHub sends the commit before; that tells the order of pushes."""
        chance = random.Random(1)
        for number, order in enumerate(chance.sample(ORDERS, 8), 1):
            events = [opened(1), pushed(1, 2), pushed(2, 3), pushed(3, 4)]
            of_it = [renumbered(hook, number) for hook in events]
            again = chance.sample(of_it, 2)
            for hook in (*(of_it[place] for place in order), *again):
                await reviews.take(hook)
            assert await waiting(reviews, number) == [4], order
            assert len(await head_states(reviews, number)) == 4

    async def test_that_arrive_at_once_at_two_servers_end_the_same(
        self, url: str, reviews: Reviews
    ) -> None:
        async with Ledger(url) as other:
            for number in range(1, 5):
                events = [opened(1), pushed(1, 2), pushed(2, 3), pushed(3, 4)]
                of_it = [renumbered(hook, number) for hook in events]
                random.Random(number).shuffle(of_it)
                servers = itertools.cycle((reviews, Reviews(other.jobs)))
                await asyncio.gather(
                    *(server.take(hook) for server, hook in zip(servers, of_it, strict=False))
                )
                assert await waiting(reviews, number) == [4]

    async def test_let_the_newest_run_though_it_was_superseded_meanwhile(
        self, reviews: Reviews, ledger: Ledger
    ) -> None:
        newest = await reviews.take(pushed(2, 3))
        assert (await reviews.take(opened(1))).superseded == (newest.id,)
        await reviews.take(pushed(1, 2))  # this tells their order
        view = await reviews.get(newest.id)
        assert (view.state, view.last_error, view.finished_at) == ("PENDING", None, None)
        await settled(ledger, REVIEWS, newest.id, a_review().packed())
        assert (await reviews.get(newest.id)).state is ReviewState.COMPLETED

    async def test_do_not_make_a_late_one_the_newest(
        self, reviews: Reviews, ledger: Ledger
    ) -> None:
        newest = await reviews.take(pushed(1, 2))
        await settled(ledger, REVIEWS, newest.id, a_review().packed())
        assert (await reviews.take(opened(1))).state is ReviewState.SUPERSEDED

    async def test_that_take_a_branch_back_review_it_there(self, reviews: Reviews) -> None:
        for hook in (pushed(9, 1), pushed(1, 2), pushed(2, 1)):
            last = await reviews.take(hook)
        assert last.state is ReviewState.PENDING
        assert await waiting(reviews) == [1]

    async def test_leave_a_cancelled_one_the_latest(self, reviews: Reviews) -> None:
        await reviews.take(opened(1))
        last = await reviews.take(pushed(1, 2))
        await reviews.cancel(last.id)
        await reviews.take(opened(1))
        assert await waiting(reviews) == []


class TestPushesToGitLab:
    async def test_are_ordered_by_arrival(self, reviews: Reviews) -> None:
        for hook in (branch(8, 1), branch(7, 2)):
            last = await reviews.take(hook)
        assert last.state is ReviewState.PENDING
        assert await waiting(reviews) == [2]

    async def test_are_ordered_by_the_commit_before_if_that_is_known(
        self, reviews: Reviews
    ) -> None:
        for start in range(10, 70, 10):
            order = list(itertools.permutations(range(3)))[start // 10 - 1]
            events = [branch(start + n, start + n + 1) for n in range(3)]
            for place in order:
                await reviews.take(events[place])
            assert await waiting(reviews) == [start + 3], order

    async def test_that_are_sent_again_under_another_id_change_nothing(
        self, reviews: Reviews
    ) -> None:
        first = await reviews.take(branch(1, 2))
        await reviews.take(branch(2, 3))
        again = await reviews.take(branch(1, 2))
        assert (again.id, again.existed) == (first.id, True)
        assert await waiting(reviews) == [3]

    async def test_that_move_a_branch_back_and_forth_review_it_where_it_is(
        self, reviews: Reviews
    ) -> None:
        for hook in (branch(9, 1), branch(1, 2), branch(2, 1), branch(1, 2)):
            last = await reviews.take(hook)
        assert not last.existed
        assert await waiting(reviews) == [2]

    async def test_of_a_backdated_commit_are_reviewed(self, reviews: Reviews) -> None:
        for head, at in ((1, "2026-01-01T10:00:00Z"), (2, "2001-01-01T10:00:00Z")):
            commit = {"id": sha(head), "message": "x", "timestamp": at}
            changes = {"before": sha(head - 1 or 9), "after": sha(head), "commits": [commit]}
            sent = gitlab("Push Hook", payload("gitlab_push", changes), delivery=f"d{head}")
            last = await reviews.take(read_gitlab(sent))
        assert (last.id, last.state) == ("gitlab-d2", ReviewState.PENDING)
        assert last.superseded == ("gitlab-d1",)


class TestMergeRequests:
    async def test_of_one_second_are_ordered_by_the_revision_before(self, reviews: Reviews) -> None:
        """GitLab's times have whole seconds; an update with new commits has an `oldrev`."""
        sent = [merge_request({"object_attributes.last_commit.id": sha(1)})]
        for old, new in ((1, 2), (2, 3)):
            commits = {"object_attributes.last_commit.id": sha(new)}
            before = {"object_attributes.oldrev": sha(old)}
            sent.append(merge_request(commits | before, action="update"))
        for place in (2, 0, 1):
            hook = read_gitlab(sent[place])
            assert hook.version == read_gitlab(sent[0]).version
            await reviews.take(replace(hook, delivery=f"d{place}"))
        assert await waiting(reviews) == [3]


class TestOneBodyUnderSeveralDeliveryIds:
    async def test_is_one_review(self, reviews: Reviews, ledger: Ledger) -> None:
        body = payload("github_pull_request")
        for wanted in (ReviewState.PENDING, ReviewState.COMPLETED):
            for name in ("a", "b", "c"):
                sent = github("pull_request", body, delivery=f"{name}-{wanted}")
                taken = await reviews.take(read_github(sent))
                assert (taken.id, taken.state) == ("github-a-PENDING", wanted)
            if wanted is ReviewState.PENDING:
                await settled(ledger, REVIEWS, taken.id, a_review().packed())
        assert len((await reviews.list()).reviews) == 1

    async def test_is_one_review_even_when_a_newer_head_exists(self, reviews: Reviews) -> None:
        body = payload("github_pull_request")
        old = await reviews.take(read_github(github("pull_request", body, delivery="old")))
        more = {"pull_request.updated_at": "2027-01-01T00:00:00Z", "pull_request.head.sha": sha(5)}
        newer = payload("github_pull_request", more)
        await reviews.take(read_github(github("pull_request", newer, delivery="newer")))
        again = await reviews.take(read_github(github("pull_request", body, delivery="again")))
        assert (again.id, again.existed, again.state) == (old.id, True, ReviewState.SUPERSEDED)
        assert await waiting(reviews) == [5]

    async def test_is_one_review_of_a_push(self, reviews: Reviews) -> None:
        body = payload("github_push")
        ids = [
            (await reviews.take(read_github(github("push", body, delivery=delivery)))).id
            for delivery in "ab"
        ]
        assert ids == ["github-a", "github-a"]

    async def test_differs_from_a_later_event_of_the_same_head(self, reviews: Reviews) -> None:
        """Reopening a pull request asks for a review again."""
        await reviews.take(pushed(1, 2))
        later = await reviews.take(pushed(1, 2, version=SECOND + 1000))
        assert not later.existed
        assert later.state is ReviewState.PENDING


FAULTS = (
    PlantedFault(
        "ties go by id",
        "supersession",
        "latest",
        "return ordered[-1] if ordered else None",
        'return max(ordered, key=lambda row: row["id"], default=None)',
    ),
    PlantedFault(
        "what an event follows is not looked at",
        "supersession",
        "in_order",
        "if before is not None and",
        "if before is None and",
    ),
    PlantedFault(
        "one event under two ids is two",
        "supersession",
        "told_before",
        "return None if is_back else row",
        "return None",
    ),
    PlantedFault(
        "what was superseded stays so",
        "supersession",
        "revive",
        'newest["state"] == RecordState.SUPERSEDED',
        "False",
    ),
)


async def told_in_any_order(reviews: Reviews) -> None:
    for number, order in enumerate(itertools.permutations(range(3)), 1):
        events = [opened(1), pushed(1, 2), pushed(2, 3), opened(1)]
        of_it = [renumbered(hook, number) for hook in events]
        for place in (*order, 3):
            await reviews.take(of_it[place])
        assert await waiting(reviews, number) == [3]
        page = await reviews.list(repository="octo/repo", number=number)
        assert len(page.reviews) == 3


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_planted_fault_in_the_order_is_found(tmp_path: Path, fault: PlantedFault) -> None:
    async with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        await ledger.migrate()
        with planted(fault), pytest.raises(AssertionError):
            await told_in_any_order(Reviews(ledger.jobs))


def read_github(sent: Delivery) -> Hook:
    hook = webhooks.read_github(sent.headers, sent.body, secrets=[GITHUB_SECRET])
    assert isinstance(hook, Hook)
    return hook


def read_gitlab(sent: Delivery) -> Hook:
    hook = webhooks.read_gitlab(sent.headers, sent.body, secrets=[GITLAB_TOKEN])
    assert isinstance(hook, Hook)
    return hook
