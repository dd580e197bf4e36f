"""The search: by id, queue, lane, handler, state and error, and what it says of its limits."""

from itertools import count
from typing import Any

import pytest

from tests.dashboard.sessions import SessionClient, log_in
from tests.server.serving import Api, RunningServer
from tests.waiting import eventually
from towpath.clock import minutes
from towpath.dashboard import searching
from towpath.engine.engine import Engine
from towpath.engine.model import Bury, new_job

_numbers = count(1)


@pytest.fixture
def word() -> str:
    """What nobody has searched for."""
    return f"sought{next(_numbers)}"


def found(visitor: SessionClient, wanted: str, text: str, **params: Any) -> str:
    """The page, as soon as it has *wanted*: what is shared may be a second old."""
    page = ""

    def has() -> bool:
        nonlocal page
        page = visitor.client.get(
            "/ui/search", params={"q": text, **params}, follow_redirects=True
        ).text
        return wanted in page

    eventually(has)
    return page


class TestById:
    def test_the_only_job_is_opened(self, admin: SessionClient, api: Api, word: str) -> None:
        api.submit(id=word)
        for by in ("", "id"):
            page = found(admin, "Why it isn't running", word, by=by)
            assert f"/ui/queues/{api.queue}/jobs/{word}" in page
        assert "Why it isn't running" in found(admin, word, f"{api.queue}/{word}")

    def test_jobs_of_several_queues_are_listed(
        self, running: RunningServer, admin: SessionClient, api: Api, word: str
    ) -> None:
        api.submit(id=word)
        running.api(f"{api.queue}-other").submit(id=word)
        page = found(admin, "Jobs with this id", word)
        assert f"/ui/queues/{api.queue}-other/jobs/{word}" in page


class TestByName:
    def test_queues_by_a_part_of_it(self, admin: SessionClient, api: Api) -> None:
        api.submit()
        for by in ("", "queue"):
            found(admin, f'href="/ui/queues/{api.queue}"', api.queue[1:], by=by)

    def test_lanes_by_all_of_it(self, admin: SessionClient, api: Api, word: str) -> None:
        for n in range(3):
            api.submit(id=f"{word}-{n}", lane=word)
        for by in ("", "lane"):
            page = found(admin, "Lanes with this name", word, by=by)
            assert f"{word}-0" in page
            assert "2 behind it" in page
        assert "Lanes with this name" not in found(admin, "was found", word[:-1], by="lane")

    def test_a_state_with_how_many_there_are(self, admin: SessionClient, api: Api) -> None:
        api.submit(delay=3600)
        page = found(admin, f'"/ui/queues/{api.queue}?state=delayed">', "Delayed", by="state")
        assert f'{api.queue}</a>: 1' in page  # fmt: skip
        assert "Jobs that are delayed" in found(admin, api.queue, "delayed")


class TestByHandler:
    def test_jobs_in_every_state(self, admin: SessionClient, api: Api, word: str) -> None:
        api.submit(id=f"{word}-ready", headers={"handler": word})
        api.submit(id=f"{word}-later", headers={"handler": word}, delay=3600)
        api.submit(id=f"{word}-none", headers={"handler": f"{word}x"})
        for by in ("", "handler"):
            page = found(admin, "Jobs for this handler", word, by=by)
            assert f"{word}-ready" in page
            assert f"{word}-later" in page
            assert f"{word}-none" not in page

    def test_says_how_many_were_looked_at(self, admin: SessionClient, api: Api, word: str) -> None:
        api.submit()
        page = found(admin, "No job for a handler of this name", word, by="handler")
        assert "jobs, in the order they run" in page


class TestByError:
    def test_dead_jobs_with_a_part_of_it(self, admin: SessionClient, api: Api, word: str) -> None:
        api.bury(f"{word}-1", reason=f"ConnectionError: {word}.example is away")
        api.bury("other", reason="ValueError")
        for by in ("", "error"):
            page = found(admin, f"{api.queue}/jobs/{word}-1", f"{word.upper()}.exam", by=by)
            assert "whose error contains this text" in page
            assert f"/ui/dead?queue={api.queue}&amp;text=" in page
            assert "ConnectionError" in page
            assert "ValueError" not in page

    def test_of_one_queue_says_that_it_covers_the_newest_10_000(
        self, admin: SessionClient, api: Api, word: str
    ) -> None:
        api.bury(word, reason=word)
        page = found(admin, f"jobs/{word}", word, by="error")
        assert "covers its newest 10\u202f000 dead jobs" in page


class TestWhatIsNotThere:
    @pytest.mark.parametrize("by", sorted(searching.KINDS))
    def test_is_said(self, admin: SessionClient, word: str, by: str) -> None:
        page = admin.look("/ui/search", q=word, by=by)
        assert "No " in page

    def test_nothing_asked_for_says_what_to_enter(self, admin: SessionClient) -> None:
        assert "a part of an error" in admin.look("/ui/search")

    def test_another_kind_is_refused(self, admin: SessionClient) -> None:
        admin.look("/ui/search", 422, q="x", by="colour")

    def test_what_a_key_may_not_see_is_not_found(
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


class TestItsLimits:
    async def test_no_more_than_10_000_jobs_are_looked_through(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The figures are made small, and what is found is found among those."""
        monkeypatch.setattr(searching, "LOOKED_AT_MOST", 40)
        monkeypatch.setattr(searching, "_FEWEST", 10)
        for queue in ("a", "b", "c"):
            await engine.submit_many(
                queue, [new_job(b"", headers={"handler": "h"}) for _ in range(30)]
            )
        seen = {name: await engine.inspect.counts(name) for name in "abc"}
        walked = await searching.handled_by(engine, seen, "h")
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
        failed = await searching.failed_with(engine, seen, "LOST")
        assert (len(failed.jobs), failed.looked, failed.whole) == (30, 30, 40)
        failed = await searching.failed_with(engine, seen, "nowhere")
        assert (failed.jobs, failed.looked, failed.whole) == ([], 30, 40)
        failed = await searching.failed_with(engine, seen, "q17")
        assert [job.ref.queue for job in failed.jobs] == ["q17"]
