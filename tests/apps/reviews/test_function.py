"""A Python function as a reviewer."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.apps.reviews.reviewing import a_comment, a_review, a_task, an_attempt
from tests.waiting import HANGS, eventually_in_loop
from towpath.apps.reviews.model import Review, ReviewTask, Verdict
from towpath.apps.reviews.reviewers.function import FunctionReviewer, ReviewFunction
from towpath.clock import seconds
from towpath.errors import InvalidOption
from towpath.worker.context import Discard, Retry, Snooze


async def reviewed(function: Any) -> Review:
    return await FunctionReviewer(function).review(a_task(), an_attempt())


def returning(value: Any) -> ReviewFunction:
    return lambda task: value


class TestAReviewingFunction:
    async def test_may_be_async(self) -> None:
        async def review(task: ReviewTask) -> Review:
            await asyncio.sleep(0)
            return Review(summary=f"{task.title} in {threading.current_thread().name}")

        assert (await reviewed(review)).summary == "A fix in MainThread"

    async def test_may_be_plain_and_block(self) -> None:
        """It runs in a thread, so the loop goes on."""

        def review(task: ReviewTask) -> Review:
            assert going_on.wait(HANGS)
            return Review(summary=threading.current_thread().name)

        going_on = threading.Event()
        asyncio.get_running_loop().call_later(0.01, going_on.set)
        assert (await reviewed(review)).summary != "MainThread"

    async def test_may_be_an_object(self) -> None:
        class Reviewer:
            async def __call__(self, task: ReviewTask) -> str:
                return task.title

        assert (await reviewed(Reviewer())).summary == "A fix"

    @pytest.mark.parametrize(
        "value",
        [
            a_review(a_comment()),
            a_review(a_comment()).packed().decode(),
            {
                "summary": "Two things.",
                "verdict": "request_changes",
                "comments": [
                    {
                        "path": "src/a.py",
                        "line": 3,
                        "body": "This is unused.",
                        "severity": "warning",
                    }
                ],
            },
        ],
        ids=["review", "json", "dict"],
    )
    async def test_returns_a_review_in_one_of_its_forms(self, value: Any) -> None:
        assert await reviewed(returning(value)) == a_review(a_comment())

    async def test_may_return_plain_text(self) -> None:
        assert await reviewed(returning("Fine.")) == Review(
            summary="Fine.", verdict=Verdict.COMMENT
        )

    @pytest.mark.parametrize("value", [None, 7, "", {}, {"summary": object()}, ["Fine."], b"Fine."])
    async def test_is_tried_again_if_it_returns_no_review(self, value: Any) -> None:
        with pytest.raises(Retry, match="ReviewInvalid"):
            await reviewed(returning(value))

    @pytest.mark.parametrize(
        "error", [ValueError("no"), Retry("later"), Discard("never"), Snooze(seconds(1))]
    )
    async def test_may_raise_any_error(self, error: Exception) -> None:
        def review(task: ReviewTask) -> str:
            raise error

        with pytest.raises(type(error)) as raised:
            await reviewed(review)
        assert raised.value is error


class TestAPlainFunctionThatHangs:
    async def test_does_not_hold_up_a_cancelled_task(self) -> None:
        def review(task: ReviewTask) -> str:
            assert going_on.wait(HANGS)
            return "late"

        going_on = threading.Event()
        reviewing = asyncio.create_task(reviewed(review))
        await asyncio.sleep(0)
        reviewing.cancel()
        await asyncio.wait((reviewing,), timeout=HANGS)
        going_on.set()
        assert reviewing.cancelled()

    async def test_is_not_started_again_and_again(self) -> None:
        """Threads that do not return are counted, and their number is limited."""

        def review(task: ReviewTask) -> str:
            begun.append(task)
            assert going_on.wait(HANGS)
            return "late"

        begun: list[ReviewTask] = []
        going_on = threading.Event()
        reviewer = FunctionReviewer(review)
        for number in range(32):
            reviewing = asyncio.create_task(reviewer.review(a_task(), an_attempt()))
            await eventually_in_loop(lambda so_far=number: len(begun) > so_far)
            reviewing.cancel()
            await asyncio.wait((reviewing,))
        with pytest.raises(Retry, match="32"):
            await reviewer.review(a_task(), an_attempt())

        going_on.set()

        async def again() -> str:
            while True:
                try:
                    return (await reviewer.review(a_task(), an_attempt())).summary
                except Retry:
                    await asyncio.sleep(0)

        assert await again() == "late"


MODULE = """
limit = 3
def review(task): return f"Read {task.title}."
"""


class TestAFunctionByItsPath:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "towpath_test_reviewer.py").write_text(MODULE)
        monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])

    async def test_is_found(self) -> None:
        reviewer = FunctionReviewer.at("towpath_test_reviewer:review")
        assert (await reviewer.review(a_task(), an_attempt())).summary == "Read A fix."

    @pytest.mark.parametrize(
        ("path", "missing_module"),
        [
            ("towpath_test_reviewer", None),
            (":review", None),
            ("towpath_test_reviewer:absent", None),
            ("towpath_test_reviewer:limit", None),
            ("towpath_absent:review", "towpath_absent"),
        ],
    )
    def test_is_refused_at_the_start_if_it_is_not_there(
        self, path: str, missing_module: str | None
    ) -> None:
        with pytest.raises(InvalidOption) as refused:
            FunctionReviewer.at(path)
        assert (refused.value.option, refused.value.value) == ("reviewer_function", path)
        assert getattr(refused.value.__cause__, "name", None) == missing_module
