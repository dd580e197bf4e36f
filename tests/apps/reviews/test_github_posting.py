"""Posting to GitHub: reviews on pull requests, the status of pushed commits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apps.reviews.reviewing import HEAD, a_comment, a_push, a_review, a_task
from tests.forges.serving import TOKEN, ForgeRequest, ForgeServer, Reply, refuses
from towpath.apps.reviews.model import BODY_MOST, Severity, Verdict
from towpath.apps.reviews.posting.github import GitHubPoster
from towpath.apps.reviews.posting.port import Posted
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerRefused, CallRefused, RefusedForGood
from towpath.clock import minutes, seconds, wall_ms
from towpath.errors import InvalidOption
from towpath.worker.context import Discard, Retry

REVIEWS = "/repos/octo/repo/pulls/7/reviews"
STATUSES = f"/repos/octo/repo/statuses/{HEAD}"


@pytest.fixture
def poster(caller: Caller, forge: ForgeServer) -> GitHubPoster:
    return GitHubPoster(caller, token=TOKEN, api=forge.url)


class TestAPullRequest:
    async def test_gets_a_review_with_comments_at_their_lines(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        said = a_review(a_comment(), a_comment("b.py", None, severity=Severity.ERROR))
        posted = await poster.post(a_task(), said, key="one")
        assert posted == Posted(url="https://forge.example/0")
        [review] = forge.kept[REVIEWS]
        assert (review["commit_id"], review["event"]) == (HEAD, "REQUEST_CHANGES")
        assert review["comments"] == [
            {"path": "src/a.py", "line": 3, "side": "RIGHT", "body": "**warning** This is unused."}
        ]
        text, _, mark = review["body"].rpartition("\n\n")
        assert text == (
            "**Changes requested** · a1a1a1a1a1a1\n\nTwo things.\n\n"
            "- `b.py` **error** This is unused."
        )
        assert mark.startswith("<!-- towpath:")

    async def test_gets_requests_in_the_form_that_github_wants(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        await poster.post(a_task(), a_review(), key="one")
        for asked in forge.asked:
            assert asked.headers["accept"] == "application/vnd.github+json"
            assert asked.headers["user-agent"] == "towpath"
            assert asked.path == REVIEWS

    async def test_gets_the_same_review_once(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        first = await poster.post(a_task(), a_review(), key="one")
        again = await poster.post(a_task(), a_review(), key="one")
        assert again == Posted(url=first.url, existed=True)
        assert len(forge.posts) == 1

    async def test_gets_the_review_once_though_the_answer_was_lost(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        forge.hangs_up_after_posts = True
        with pytest.raises(Retry):
            await poster.post(a_task(), a_review(), key="one")
        forge.hangs_up_after_posts = False
        assert (await poster.post(a_task(), a_review(), key="one")).existed
        assert len(forge.kept[REVIEWS]) == 1

    async def test_gets_another_one_for_another_review(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        await poster.post(a_task(), a_review(), key="one")
        await poster.post(a_task(), a_review(), key="two")
        await poster.post(a_task(head="c3" * 20), a_review(), key="one")
        assert len(forge.kept[REVIEWS]) == 3

    async def test_is_searched_for_the_review_page_by_page(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        forge.kept[REVIEWS] = [{"body": None} for _ in range(120)]
        await poster.post(a_task(), a_review(), key="one")
        assert (await poster.post(a_task(), a_review(), key="one")).existed
        assert len(forge.posts) == 1

    async def test_with_too_many_reviews_to_search_gets_one_more(
        self, caller: Caller, forge: ForgeServer
    ) -> None:
        forge.kept[REVIEWS] = [{"body": "x" * 60_000} for _ in range(40)]
        poster = GitHubPoster(caller, token=TOKEN, api=forge.url)
        assert not (await poster.post(a_task(), a_review(), key="one")).existed


class TestAnApproval:
    async def test_is_posted_as_a_comment_by_default(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        """An approval may be all that a protected branch waits for."""
        await poster.post(a_task(), a_review(verdict=Verdict.APPROVE), key="one")
        [review] = forge.kept[REVIEWS]
        assert review["event"] == "COMMENT"
        assert review["body"].startswith("**Nothing to change**")

    async def test_is_posted_as_one_if_the_operator_allows_it(
        self, caller: Caller, forge: ForgeServer
    ) -> None:
        poster = GitHubPoster(caller, token=TOKEN, api=forge.url, may_approve=True)
        await poster.post(a_task(), a_review(verdict=Verdict.APPROVE), key="one")
        assert forge.kept[REVIEWS][0]["event"] == "APPROVE"


def outside_of_the_diff(asked: ForgeRequest) -> Reply | None:
    """GitHub refuses the whole review, and does not say for which comment."""
    if asked.method == "POST" and any(
        comment["line"] > 10 for comment in asked.content.get("comments", ())
    ):
        return Reply(
            422, {"message": "Unprocessable Entity", "errors": ["Line could not be resolved"]}
        )
    return None


def one_s_own(asked: ForgeRequest) -> Reply | None:
    if asked.method == "POST" and asked.content["event"] != "COMMENT":
        return Reply(422, {"message": "Can not request changes on your own pull request"})
    return None


class TestAReviewThatGitHubRefuses:
    async def test_is_posted_with_all_comments_in_its_text(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        forge.rules.append(outside_of_the_diff)
        said = a_review(a_comment(), a_comment(line=99, body="Far\naway."))
        await poster.post(a_task(), said, key="one")
        [review] = forge.kept[REVIEWS]
        assert "comments" not in review
        assert review["event"] == "REQUEST_CHANGES"
        assert "- `src/a.py:3` **warning** This is unused.\n" in review["body"]
        assert "- `src/a.py:99` **warning** Far\n  away.\n" in review["body"]

    async def test_is_a_comment_on_ones_own_pull_request(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        forge.rules.append(one_s_own)
        await poster.post(a_task(), a_review(a_comment()), key="one")
        [review] = forge.kept[REVIEWS]
        assert review["event"] == "COMMENT"
        assert "- `src/a.py:3`" in review["body"]

    async def test_is_not_tried_again_if_no_form_is_accepted(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        forge.rules.append(refuses(422, "Validation Failed"))
        with pytest.raises(Discard, match="Validation Failed") as raised:
            await poster.post(a_task(), a_review(a_comment()), key="one")
        assert isinstance(raised.value.__cause__, RefusedForGood)
        assert raised.value.__cause__.status == 422
        assert len(forge.posts) == 3


class TestALargeReview:
    async def test_is_truncated_to_what_github_accepts(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        comments = [a_comment(line=None, body="x" * BODY_MOST) for _ in range(20)]
        await poster.post(a_task(), a_review(*comments, summary="y" * 30_000), key="one")
        [review] = forge.kept[REVIEWS]
        assert 60_000 < len(review["body"]) + BODY_MOST < 75_536
        assert len(review["body"]) < 65_536
        assert "… and 17 more comments." in review["body"]
        assert review["body"].endswith("-->")

    async def test_has_a_hundred_comments_at_lines_and_the_rest_in_its_text(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        comments = [a_comment(line=line) for line in range(1, 131)]
        await poster.post(a_task(), a_review(*comments), key="one")
        [review] = forge.kept[REVIEWS]
        assert len(review["comments"]) == 100
        assert review["body"].count("- `src/a.py:") == 30


class TestAPush:
    @pytest.mark.parametrize(
        ("verdict", "state", "words"),
        [
            (Verdict.APPROVE, "success", "Nothing to change: Two things."),
            (Verdict.COMMENT, "success", "Review: Two things."),
            (Verdict.REQUEST_CHANGES, "failure", "Changes requested: Two things."),
        ],
    )
    async def test_gets_a_status(
        self, poster: GitHubPoster, forge: ForgeServer, verdict: Verdict, state: str, words: str
    ) -> None:
        said = a_review(a_comment(), verdict=verdict, summary="Two things.\nAnd more.")
        await poster.post(a_push(), said, key="one")
        [asked] = forge.asked
        assert asked.path == STATUSES
        assert asked.content == {
            "state": state,
            "context": "towpath/review",
            "description": words,
        }

    async def test_gets_a_status_of_limited_length(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        await poster.post(a_push(), a_review(summary="x" * 500), key="one")
        description = forge.asked[0].content["description"]
        assert len(description) == 140
        assert description.endswith("x…")


class TestARefusalOfGitHub:
    @pytest.mark.parametrize("task", [a_task(), a_push()], ids=["pull", "push"])
    @pytest.mark.parametrize("status", [403, 429])
    async def test_with_retry_after_sets_the_time_of_the_next_attempt(
        self, poster: GitHubPoster, forge: ForgeServer, task: Any, status: int
    ) -> None:
        forge.rules.append(refuses(status, "You have exceeded a limit", Retry_After="90"))
        with pytest.raises(Retry, match="You have exceeded a limit") as raised:
            await poster.post(task, a_review(), key="one")
        assert raised.value.after == seconds(90)

    async def test_until_its_rate_limit_is_reset_sets_the_time_of_the_next_attempt(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        reset = str(wall_ms() // 1000 + 600)
        limit = {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": reset}
        forge.rules.append(refuses(403, "API rate limit exceeded", **limit))
        with pytest.raises(Retry) as raised:
            await poster.post(a_push(), a_review(), key="one")
        assert raised.value.after is not None
        assert seconds(590) < raised.value.after <= seconds(601)

    async def test_for_a_rate_limit_without_a_time_is_tried_again_after_a_minute(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        forge.rules.append(refuses(403, "You have exceeded a secondary rate limit."))
        with pytest.raises(Retry) as raised:
            await poster.post(a_push(), a_review(), key="one")
        assert raised.value.after == minutes(1)

    @pytest.mark.parametrize("status", [401, 403, 500, 502])
    async def test_for_a_reason_that_may_pass_is_tried_again(
        self, poster: GitHubPoster, forge: ForgeServer, status: int
    ) -> None:
        forge.rules.append(refuses(status, "Resource not accessible"))
        with pytest.raises(Retry, match="Resource not accessible") as raised:
            await poster.post(a_push(), a_review(), key="one")
        assert raised.value.after is None
        assert isinstance(raised.value.__cause__, AnswerRefused)
        assert raised.value.__cause__.status == status

    @pytest.mark.parametrize("status", [301, 400, 404, 410, 422])
    async def test_that_is_permanent_is_not_tried_again(
        self, poster: GitHubPoster, forge: ForgeServer, status: int
    ) -> None:
        forge.rules.append(refuses(status, "Not Found"))
        with pytest.raises(Discard) as raised:
            await poster.post(a_push(), a_review(), key="one")
        assert isinstance(raised.value.__cause__, RefusedForGood)
        assert raised.value.__cause__.status == status

    async def test_while_old_reviews_are_read_is_tried_again(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        forge.rules.append(lambda _: Reply(503, {"message": "no"}, (("Retry-After", "7"),)))
        with pytest.raises(Retry) as raised:
            await poster.post(a_task(), a_review(), key="one")
        assert raised.value.after == seconds(7)

    async def test_never_has_our_token_in_the_reason(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        forge.rules.append(refuses(422, f"token {TOKEN} is\nno good"))
        with pytest.raises(Discard, match="token … is no good"):
            await poster.post(a_push(), a_review(), key="one")


class TestTheTokenForGitHub:
    async def test_goes_only_to_the_configured_address(
        self, poster: GitHubPoster, forge: ForgeServer
    ) -> None:
        """A task names its forge: the same repository name elsewhere is another repository."""
        elsewhere = a_task(host="https://github.example.com")
        with pytest.raises(Discard, match=r"https://github\.com"):
            await poster.post(elsewhere, a_review(), key="one")
        assert forge.asked == []
        await poster.post(a_task(host="https://github.com/"), a_review(), key="one")
        assert len(forge.posts) == 1

    def test_is_not_shown(self, poster: GitHubPoster) -> None:
        assert TOKEN not in repr(vars(poster))

    @pytest.mark.parametrize("token", ["", "two\nlines"])
    def test_that_is_empty_or_has_two_lines_is_refused(self, token: str) -> None:
        with pytest.raises(InvalidOption) as raised:
            GitHubPoster(Caller(), token=token)
        assert "two" not in str(raised.value)

    def test_for_an_invalid_address_is_refused(self) -> None:
        with pytest.raises(CallRefused):
            GitHubPoster(Caller(), token=TOKEN, api="ftp://example.com")
