"""Posting to GitLab: notes on merge requests, status and comments of pushed commits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apps.reviews.reviewing import HEAD, a_comment, a_push, a_review, a_task
from tests.forges.serving import TOKEN, ForgeServer, refuses
from towpath.apps.reviews.model import Forge, ReviewTask, Verdict
from towpath.apps.reviews.posting.gitlab import GitLabPoster
from towpath.apps.reviews.posting.port import Posted
from towpath.calls.caller import Caller
from towpath.calls.errors import RefusedForGood
from towpath.clock import seconds
from towpath.worker.context import Discard, Retry

PROJECT = "/api/v4/projects/group%2Fsub%2Frepo"
NOTES = f"{PROJECT}/merge_requests/7/notes"
STATUSES = f"{PROJECT}/statuses/{HEAD}"
COMMENTS = f"{PROJECT}/repository/commits/{HEAD}/comments"


def merge_request(**more: Any) -> ReviewTask:
    return a_task(forge=Forge("gitlab"), repository="group/sub/repo", base=None, **more)


def push() -> ReviewTask:
    return a_push(forge=Forge("gitlab"), repository="group/sub/repo")


@pytest.fixture
def poster(caller: Caller, forge: ForgeServer) -> GitLabPoster:
    return GitLabPoster(caller, token=TOKEN, host=forge.url)


class TestAMergeRequest:
    async def test_gets_a_note_with_all_comments(
        self, poster: GitLabPoster, forge: ForgeServer
    ) -> None:
        said = a_review(a_comment(), a_comment("b.py", None))
        assert await poster.post(merge_request(), said, key="one") == Posted()
        [note] = forge.kept[NOTES]
        assert note["body"].startswith(
            "**Changes requested** · a1a1a1a1a1a1\n\nTwo things.\n\n"
            "- `src/a.py:3` **warning** This is unused.\n"
            "- `b.py` **warning** This is unused.\n\n<!-- towpath:"
        )

    async def test_gets_the_same_note_once(self, poster: GitLabPoster, forge: ForgeServer) -> None:
        forge.hangs_up_after_posts = True
        with pytest.raises(Retry):
            await poster.post(merge_request(), a_review(), key="one")
        forge.hangs_up_after_posts = False
        again = await poster.post(merge_request(), a_review(), key="one")
        assert again == Posted(existed=True)
        assert len(forge.kept[NOTES]) == 1

    @pytest.mark.parametrize("order", ["/merge", "fine\n/approve", "fine\n\n  /close now"])
    async def test_gets_no_quick_actions(
        self, poster: GitLabPoster, forge: ForgeServer, order: str
    ) -> None:
        """GitLab would execute them with the rights of the token, and strangers write the text."""
        said = a_review(a_comment(body=f"see:\n{order}"), summary=order)
        await poster.post(merge_request(), said, key="one")
        lines = [line.lstrip() for line in forge.kept[NOTES][0]["body"].splitlines()]
        assert [line for line in lines if line.startswith("/")] == []
        assert sum(line.startswith("\\/") for line in lines) == 2

    async def test_of_another_gitlab_is_left_alone(
        self, poster: GitLabPoster, forge: ForgeServer
    ) -> None:
        with pytest.raises(Discard, match=forge.url):
            await poster.post(merge_request(host="https://gitlab.com"), a_review(), key="one")
        assert forge.asked == []


class TestAPush:
    @pytest.mark.parametrize(
        ("verdict", "state"),
        [
            (Verdict.APPROVE, "success"),
            (Verdict.COMMENT, "success"),
            (Verdict.REQUEST_CHANGES, "failed"),
        ],
    )
    async def test_gets_a_status(
        self, poster: GitLabPoster, forge: ForgeServer, verdict: Verdict, state: str
    ) -> None:
        await poster.post(push(), a_review(verdict=verdict, summary="x" * 500), key="one")
        [asked] = forge.asked
        assert asked.path == STATUSES
        assert len(asked.content.pop("description")) == 255
        assert asked.content == {"state": state, "name": "towpath/review", "ref": "main"}

    async def test_gets_its_comments_on_the_commit_once(
        self, poster: GitLabPoster, forge: ForgeServer
    ) -> None:
        said = a_review(a_comment())
        assert await poster.post(push(), said, key="one") == Posted()
        assert await poster.post(push(), said, key="one") == Posted(existed=True)
        [comment] = forge.kept[COMMENTS]
        assert "- `src/a.py:3` **warning** This is unused." in comment["note"]

    async def test_that_has_the_same_status_already_is_done(
        self, poster: GitLabPoster, forge: ForgeServer
    ) -> None:
        words = "Cannot transition status via :drop from :failed (Reason(s): Status cannot …)"
        forge.rules.append(refuses(400, words))
        assert await poster.post(push(), a_review(), key="one") == Posted()


class TestARefusalOfGitLab:
    async def test_with_retry_after_sets_the_time_of_the_next_attempt(
        self, poster: GitLabPoster, forge: ForgeServer
    ) -> None:
        forge.rules.append(refuses(429, "Retry later", Retry_After="30"))
        with pytest.raises(Retry) as raised:
            await poster.post(merge_request(), a_review(), key="one")
        assert raised.value.after == seconds(30)

    @pytest.mark.parametrize("message", ["404 Project Not Found", {"note": ["is too long"]}])
    async def test_that_is_permanent_is_not_tried_again(
        self, poster: GitLabPoster, forge: ForgeServer, message: object
    ) -> None:
        forge.rules.append(refuses(404, message))
        with pytest.raises(Discard) as raised:
            await poster.post(push(), a_review(), key="one")
        assert isinstance(raised.value.__cause__, RefusedForGood)
        assert raised.value.__cause__.status == 404
