"""A task's life: asked for, held, completed, failed, released, lost."""

import asyncio

import pytest

from tests.apps.issues.agents import Desk
from tests.apps.issues.counting import read_whole, statements
from tests.waiting import eventually_async
from towpath.apps.issues import life
from towpath.apps.issues.errors import NotHeld, TaskNotFound, TaskStale
from towpath.apps.issues.model import ISSUES, Facts, Issue, IssueSource, TaskType
from towpath.apps.issues.options import IssuesOptions
from towpath.clock import instant, seconds, wall_ms
from towpath.engine.leases import lease_by_token
from towpath.engine.model import job_ref

SHORT = IssuesOptions(lease=seconds(1), attempts=2, look=seconds(0.05))


class TestAskingForATask:
    async def test_gives_the_most_urgent_issue(self, desk: Desk) -> None:
        await desk.put(1)
        await desk.put(2, "P0")
        await desk.put(3, "P4")
        numbers = [(await desk.take(f"a{n}")).issue_number for n in range(3)]
        assert numbers == [2, 1, 3]
        assert await desk.ask() is None

    async def test_tells_all_that_an_agent_needs(self, desk: Desk) -> None:
        url = "https://github.com/octo/repo/issues/7"
        await desk.put(7, "P1", title="It breaks", body="Always.", url=url)
        task = await desk.take("ann")
        assert (task.repository, task.issue_number, task.url) == ("octo/repo", 7, url)
        assert (task.title, task.body, task.labels) == ("It breaks", "Always.", ("P1",))
        assert (task.branch, task.role) == ("issue-7", "developer")
        assert (task.task_type, task.task_id) == (TaskType.DEVELOPMENT, "octo~repo~7~1")
        left = task.expires_at - instant(wall_ms())
        assert seconds(590) < left <= seconds(601)
        issue = await desk.look(7)
        assert (issue.agent, issue.token) == ("ann", task.token)

    async def test_gives_each_issue_to_one_of_many(self, desk: Desk) -> None:
        for number in range(1, 11):
            await desk.put(number)
        found = await asyncio.gather(*(desk.ask(f"a{n}") for n in range(30)))
        taken = [it.issue_number for it in found if it is not None]
        assert sorted(taken) == list(range(1, 11))

    async def test_waits_for_an_issue(self, desk: Desk) -> None:
        asking = asyncio.create_task(desk.ask("ann", wait=seconds(30)))
        await desk.put(1)
        task = await asking
        assert task is not None
        assert task.issue_number == 1

    async def test_of_one_who_goes_away_gives_nothing_away(self, desk: Desk) -> None:
        asking = asyncio.create_task(desk.ask("ann", wait=seconds(30)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await desk.put(1)
        assert (await desk.take("bob", wait=seconds(30))).issue_number == 1


class TestCompletingATask:
    async def test_ends_it(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        ended = await desk.service.complete(task.task_id, task.token, result="ok", pr_number=9)
        assert ended.state == "done"
        issue = await desk.look(1)
        assert (issue.agent, issue.withheld, issue.pr_number) == ("", "completed", 9)
        assert issue.outcome == "completed by ann: ok"
        assert await desk.ask() is None

    async def test_can_be_repeated(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        for _ in range(2):
            assert (await desk.service.complete(task.task_id, task.token)).state == "done"

    async def test_is_noticed_when_the_row_was_not_told(self, desk: Desk) -> None:
        """The server died between the two."""
        await desk.put(1)
        task = await desk.take()
        lease = lease_by_token(job_ref(ISSUES, task.task_id), task.token, worker="ann")
        await desk.engine.complete(lease, b'{"agent":"ann","pr_number":4}')
        await desk.board.look_at(await desk.look(1))
        issue = await desk.look(1)
        assert (issue.agent, issue.done, issue.pr_number) == ("", ("development",), 4)

    async def test_leaves_the_review_to_be_done(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        await desk.put(1, "needs-review")
        assert (await desk.look(1)).task_id == task.task_id
        await desk.service.complete(task.task_id, task.token)
        issue = await desk.look(1)
        assert (issue.task_type, issue.withheld, issue.task_id) == ("review", "", "octo~repo~1~2")

    async def test_of_an_issue_that_is_reopened_offers_it_anew(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        await desk.service.complete(task.task_id, task.token)
        await desk.close(1)
        await desk.put(1)
        again = await desk.take()
        assert again.task_id == "octo~repo~1~2"


class TestAnAgentThatNoLongerHoldsItsTask:
    @pytest.fixture
    def options(self) -> IssuesOptions:
        return SHORT

    async def test_is_refused_with_holder_and_expiry(self, desk: Desk) -> None:
        await desk.put(1)
        late = await desk.take("late")
        current = await desk.take("current", wait=seconds(30))
        assert current.task_id == late.task_id
        says = desk.service
        for refused in (
            says.heartbeat(late.task_id, late.token),
            says.complete(late.task_id, late.token),
            says.fail(late.task_id, late.token, reason="no"),
            says.release(late.task_id, late.token),
        ):
            with pytest.raises(TaskStale) as refusal:
                await refused
            assert refusal.value.told["holder"] == "current"
            assert refusal.value.told["expires_at"]
        assert (await desk.look(1)).agent == "current"

    async def test_is_refused_while_nobody_has_it(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        await desk.lapse(1)
        with pytest.raises(TaskStale) as refusal:
            await desk.service.heartbeat(task.task_id, task.token)
        assert refusal.value.told == {"state": "ready", "holder": None, "expires_at": None}

    async def test_is_given_up_after_the_last_attempt(self, desk: Desk) -> None:
        await desk.put(1)
        for _ in range(2):
            await desk.take(wait=seconds(30))
            await desk.lapse(1)
        issue = await desk.look(1)
        assert issue.withheld == "dead"
        assert "given up" in issue.why
        assert (await desk.service.take_away("octo/repo", 1)).task_id == "octo~repo~1~2"
        assert (await desk.take()).task_id == "octo~repo~1~2"

    async def test_stays_in_it_with_heartbeats(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        held = await desk.service.heartbeat(task.task_id, task.token, agent="ann")
        assert held.expires_at > task.expires_at
        assert held.withdrawn == ""
        issue = await desk.look(1)
        assert instant(issue.expires) == held.expires_at


class TestAServerThatDiesWithALock:
    @pytest.fixture
    def options(self) -> IssuesOptions:
        return SHORT

    async def test_before_it_noted_who_holds_it_locks_it_for_a_lease_only(self, desk: Desk) -> None:
        await desk.put(1)
        [lost] = await desk.engine.claim(ISSUES, worker="dead", lease=seconds(1))
        assert not (await desk.look(1)).held
        task = await desk.take("bob", wait=seconds(30))
        assert (task.issue_number, task.token > lost.token) == (1, True)

    async def test_after_that_is_noticed_though_nobody_asks(self, desk: Desk) -> None:
        await desk.put(1)
        await desk.take("dead")
        await desk.lapse(1)
        assert (await desk.look(1)).outcome
        assert desk.counted("towpath_issues_ended_total", "expired") == 1

    async def test_before_the_queue_was_told_is_made_up_for(self, desk: Desk) -> None:
        facts = Facts(repository="octo/repo", number=1)

        def told(before: Issue | None) -> Issue:
            source = IssueSource.GITHUB
            return life.told(before, facts, source=source, version=1, read=False, now=wall_ms())

        await desk.board.tend_once()  # Redis knows all that there is: nothing is offered anew
        await desk.board.revise(facts.id, told, settle=False)
        assert await desk.ask() is None

        async def made_up_for() -> bool:
            await desk.board.tend_once()
            return await desk.ask() is not None

        await eventually_async(made_up_for)
        assert (await desk.look(1)).held


async def test_what_is_looked_after_again_and_again_reads_no_more_than_there_is_to_do(
    desk: Desk,
) -> None:
    """Every few seconds, and at every request: with 50,000 issues that do not change."""
    for number in range(1, 4):
        await desk.put(number)
    await desk.board.tend_once()
    with statements() as executed:
        await desk.board.tend_once()
        task = await desk.take(roles=("developer",), repositories=("octo/repo",))
        await desk.service.heartbeat(task.task_id, task.token)
        await desk.service.complete(task.task_id, task.token)
    assert len(executed) > 8
    assert await read_whole(desk.ledger, executed) == []


class TestTheTokenOfAnother:
    async def test_is_of_no_use_to_one_who_says_who_it_is(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take("ann")
        with pytest.raises(TaskStale) as refusal:
            await desk.service.complete(task.task_id, task.token, agent="bob")
        assert refusal.value.told["holder"] == "ann"
        assert (await desk.look(1)).agent == "ann"

    async def test_that_was_never_given_is_refused(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take("ann")
        with pytest.raises(TaskStale):
            await desk.service.complete(task.task_id, task.token + 1)

    @pytest.mark.parametrize("name", ["octo~repo~9~1", "nothing", "~", "a" * 600, "\x00"])
    async def test_of_no_task_is_refused(self, desk: Desk, name: str) -> None:
        with pytest.raises(TaskNotFound):
            await desk.service.heartbeat(name, 1)


class TestGivingATaskBack:
    async def test_offers_it_again_under_the_same_name(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        ended = await desk.service.release(task.task_id, task.token, reason="not mine")
        assert ended.state == "ready"
        issue = await desk.look(1)
        assert (issue.agent, issue.outcome, issue.withheld) == ("", "not mine", "")
        again = await desk.take("bob")
        assert again.task_id == task.task_id
        assert again.token > task.token

    async def test_can_let_it_rest(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        until = instant(wall_ms()) + seconds(3600)
        await desk.service.release(task.task_id, task.token, not_before=until)
        assert await desk.ask() is None
        why = await desk.service.explain("octo/repo", 1)
        assert why.why == "not_due"

    async def test_that_failed_lets_it_rest_for_a_while(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        ended = await desk.service.fail(task.task_id, task.token, reason="no compiler")
        assert ended.state == "delayed"
        assert (await desk.look(1)).outcome == "no compiler"
        assert await desk.ask() is None

    async def test_by_force_refuses_its_holder(self, desk: Desk) -> None:
        await desk.put(1)
        task = await desk.take()
        await desk.service.take_away("octo/repo", 1)
        with pytest.raises(TaskStale):
            await desk.service.complete(task.task_id, task.token)
        with pytest.raises(NotHeld):
            await desk.service.take_away("octo/repo", 1)
