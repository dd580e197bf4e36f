"""The search: by id, queue, lane, handler, state and error, and what it says of its limits."""

from itertools import count
from typing import Any

import pytest

from tests.dashboard.sessions import SessionClient, log_in
from tests.server.serving import Api, RunningServer
from tests.waiting import eventually
from towpath.app.jobs import AllJobs, no_ledger
from towpath.clock import minutes
from towpath.dashboard import searching
from towpath.engine.engine import Engine
from towpath.engine.model import Bury, new_job

_numbers = count(1)


@pytest.fixture
def word() -> str:
    """A word that no other test has searched for."""
    return f"sought{next(_numbers)}"


def found(visitor: SessionClient, wanted: str, text: str, **params: Any) -> str:
    """The page, as soon as it has *wanted*: a shared result may be a second old."""
    page = ""

    def has() -> bool:
        nonlocal page
        page = visitor.client.get(
            "/ui/search", params={"q": text, **params}, follow_redirects=True
        ).text
        return wanted in page

    eventually(has)
    return page


class TestASearchById:
    def test_opens_the_only_job(self, admin: SessionClient, api: Api, word: str) -> None:
        api.submit(id=word)
        for by in ("", "id"):
            page = found(admin, "Why it isn't running", word, by=by)
            assert f"/ui/queues/{api.queue}/jobs/{word}" in page
        assert "Why it isn't running" in found(admin, word, f"{api.queue}/{word}")

    def test_lists_jobs_of_several_queues(
        self, running: RunningServer, admin: SessionClient, api: Api, word: str
    ) -> None:
        api.submit(id=word)
        running.api(f"{api.queue}-other").submit(id=word)
        page = found(admin, "Jobs with this id", word)
        assert f"/ui/queues/{api.queue}-other/jobs/{word}" in page


class TestASearchByName:
    def test_finds_queues_by_a_part_of_it(self, admin: SessionClient, api: Api) -> None:
        api.submit()
        for by in ("", "queue"):
            found(admin, f'href="/ui/queues/{api.queue}"', api.queue[1:], by=by)

    def test_suggests_the_queue_with_a_similar_name(self, admin: SessionClient, api: Api) -> None:
        api.submit(id="x")
        page = found(admin, "Did you mean", f"{api.queue}z", by="queue")
        assert 'href="/ui/queues/board-' in page

    def test_finds_lanes_by_the_whole_name(self, admin: SessionClient, api: Api, word: str) -> None:
        for n in range(3):
            api.submit(id=f"{word}-{n}", lane=word)
        for by in ("", "lane"):
            page = found(admin, "Lanes with this name", word, by=by)
            assert f"{word}-0" in page
            assert "2 behind it" in page
        assert "Lanes with this name" not in found(admin, "was found", word[:-1], by="lane")

    def test_finds_a_state_with_the_number_of_its_jobs(
        self, admin: SessionClient, api: Api
    ) -> None:
        api.submit(delay=3600)
        page = found(admin, f'"/ui/queues/{api.queue}?state=delayed">', "Delayed", by="state")
        assert f'{api.queue}</a>: 1' in page  # fmt: skip
        assert "Jobs that are delayed" in found(admin, api.queue, "delayed")


class TestASearchByHandler:
    def test_finds_jobs_in_every_state(self, admin: SessionClient, api: Api, word: str) -> None:
        api.submit(id=f"{word}-ready", headers={"handler": word})
        api.submit(id=f"{word}-later", headers={"handler": word}, delay=3600)
        api.submit(id=f"{word}-none", headers={"handler": f"{word}x"})
        for by in ("", "handler"):
            page = found(admin, "Jobs for this handler", word, by=by)
            assert f"{word}-ready" in page
            assert f"{word}-later" in page
            assert f"{word}-none" not in page

    def test_shows_how_many_jobs_were_searched(
        self, admin: SessionClient, api: Api, word: str
    ) -> None:
        api.submit()
        page = found(admin, "No job for a handler of this name", word, by="handler")
        assert "jobs, in the order they run" in page


class TestASearchByError:
    def test_finds_dead_jobs_by_a_part_of_the_error(
        self, admin: SessionClient, api: Api, word: str
    ) -> None:
        api.bury(f"{word}-1", reason=f"ConnectionError: {word}.example is away")
        api.bury("other", reason="ValueError")
        for by in ("", "error"):
            page = found(admin, f"{api.queue}/jobs/{word}-1", f"{word.upper()}.exam", by=by)
            assert "whose error contains this text" in page
            assert f"/ui/dead?queue={api.queue}&amp;text=" in page
            assert "ConnectionError" in page
            assert "ValueError" not in page

    def test_of_one_queue_shows_that_it_covers_the_newest_10_000(
        self, admin: SessionClient, api: Api, word: str
    ) -> None:
        api.bury(word, reason=word)
        page = found(admin, f"jobs/{word}", word, by="error")
        assert "covers its newest 10\u202f000 dead jobs" in page


class TestASearchWithoutResults:
    @pytest.mark.parametrize("by", sorted(searching.KINDS))
    def test_is_shown_as_such(self, admin: SessionClient, word: str, by: str) -> None:
        page = admin.look("/ui/search", q=word, by=by)
        assert "No " in page

    def test_without_a_word_shows_what_to_enter(self, admin: SessionClient) -> None:
        assert "a part of an error" in admin.look("/ui/search")

    def test_of_an_unknown_kind_is_refused(self, admin: SessionClient) -> None:
        admin.look("/ui/search", 422, q="x", by="colour")

    def test_is_the_answer_for_jobs_that_the_key_may_not_see(
        self, running: RunningServer, admin: SessionClient, api: Api, word: str
    ) -> None:
        api.bury(f"{word}-dead", reason=word)
        api.submit(id=f"{word}-ready", headers={"handler": word}, lane=word)
        found(admin, f"{word}-dead", word, by="error")
        stranger = log_in(running, running.make_key("read", queues=("nothing",))[1])
        for by in searching.KINDS:
            page = stranger.look("/ui/search", q=word, by=by)
            assert f"{word}-" not in page
            assert api.queue not in page


class TestTheLimitsOfASearch:
    async def test_no_more_than_10_000_jobs_are_looked_through(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The limits are made small, and matches are found within them."""
        monkeypatch.setattr(searching, "LOOKED_AT_MOST", 40)
        monkeypatch.setattr(searching, "_FEWEST", 10)
        for queue in ("a", "b", "c"):
            await engine.submit_many(
                queue, [new_job(b"", headers={"handler": "h"}) for _ in range(30)]
            )
        seen = {name: await engine.inspect.counts(name) for name in "abc"}
        walked = await searching.handled_by(AllJobs(engine, no_ledger), seen, "h")
        assert (len(walked.jobs), walked.looked, walked.whole) == (39, 39, 90)

    async def test_errors_of_many_queues_are_looked_through_in_turns(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(searching, "LOOKED_AT_MOST", 25)
        names = [f"q{n:02}" for n in range(40)]
        for name in names:
            await engine.submit(name, b"")
            [lease] = await engine.claim(name, worker="w", lease=minutes(1))
            await engine.settle([Bury(lease, f"lost in {name}")])
        seen = {name: await engine.inspect.counts(name) for name in names}
        failed = await searching.failed_with(AllJobs(engine, no_ledger), seen, "LOST")
        assert (len(failed.jobs), failed.looked, failed.whole) == (30, 30, 40)
        failed = await searching.failed_with(AllJobs(engine, no_ledger), seen, "nowhere")
        assert (failed.jobs, failed.looked, failed.whole) == ([], 30, 40)
        failed = await searching.failed_with(AllJobs(engine, no_ledger), seen, "q17")
        assert [job.ref.queue for job in failed.jobs] == ["q17"]
