"""Tasks: requested, held, completed, failed, released, lost."""

import asyncio

import pytest

from tests.apps.issues.counting import full_scans, statements
from tests.apps.issues.services import IssueServices
from tests.waiting import HANGS, eventually_async
from towpath.apps.issues.errors import NotHeld, TaskNotFound, TaskStale
from towpath.apps.issues.forms import IssueOut
from towpath.apps.issues.model import ISSUES, Facts, IssueSource, TaskType
from towpath.apps.issues.options import IssuesOptions
from towpath.clock import instant, seconds, wall_ms
from towpath.engine.leases import lease_by_token
from towpath.engine.model import job_ref

SHORT = IssuesOptions(lease=seconds(1), attempts=2, look=seconds(0.05))


class TestAskingForATask:
    async def test_a_request_gets_the_most_urgent_issue(self, issues: IssueServices) -> None:
        await issues.put(1)
        await issues.put(2, "P0")
        await issues.put(3, "P4")
        numbers = [(await issues.take(f"a{n}")).issue_number for n in range(3)]
        assert numbers == [2, 1, 3]
        assert await issues.request() is None

    async def test_a_task_has_all_that_an_agent_needs(self, issues: IssueServices) -> None:
        url = "https://github.com/octo/repo/issues/7"
        await issues.put(7, "P1", title="It breaks", body="Always.", url=url)
        task = await issues.take("ann")
        assert (task.repository, task.issue_number, task.url) == ("octo/repo", 7, url)
        assert (task.title, task.body, task.labels) == ("It breaks", "Always.", ("P1",))
        assert (task.branch, task.role) == ("issue-7", "developer")
        assert (task.task_type, task.task_id) == (TaskType.DEVELOPMENT, "octo~repo~7~1")
        left = task.expires_at - instant(wall_ms())
        assert seconds(590) < left <= seconds(601)
        issue = await issues.get_issue(7)
        assert (issue.agent, issue.token) == ("ann", task.token)

    async def test_each_issue_is_handed_out_to_one_of_many_agents(
        self, issues: IssueServices
    ) -> None:
        for number in range(1, 11):
            await issues.put(number)
        found = await asyncio.gather(*(issues.request(f"a{n}") for n in range(30)))
        taken = [task.issue_number for task in found if task is not None]
        assert sorted(taken) == list(range(1, 11))

    async def test_a_request_waits_for_an_issue(self, issues: IssueServices) -> None:
        asking = asyncio.create_task(issues.request("ann", wait=seconds(HANGS)))
        await issues.put(1)
        task = await asking
        assert task is not None
        assert task.issue_number == 1

    async def test_a_cancelled_request_holds_no_issue(self, issues: IssueServices) -> None:
        asking = asyncio.create_task(issues.request("ann", wait=seconds(HANGS)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await issues.put(1)
        assert (await issues.take("bob", wait=seconds(HANGS))).issue_number == 1


class TestCompletingATask:
    async def test_a_completed_task_ends(self, issues: IssueServices) -> None:
        await issues.put(1)
        task = await issues.take()
        ended = await issues.service.complete(task.task_id, task.token, result="ok", pr_number=9)
        assert ended.state == "done"
        issue = await issues.get_issue(1)
        assert (issue.agent, issue.withheld, issue.pr_number) == ("", "completed", 9)
        assert "ann" in issue.outcome
        assert issue.outcome.endswith("ok")
        assert await issues.request() is None

    async def test_a_task_can_be_completed_twice(self, issues: IssueServices) -> None:
        await issues.put(1)
        task = await issues.take()
        for _ in range(2):
            assert (await issues.service.complete(task.task_id, task.token)).state == "done"

    async def test_the_row_follows_a_completion_that_it_missed(self, issues: IssueServices) -> None:
        """The server died between the completion in Redis and the change of the row."""
        await issues.put(1)
        task = await issues.take()
        lease = lease_by_token(job_ref(ISSUES, task.task_id), task.token, worker="ann")
        await issues.engine.complete(lease, b'{"agent":"ann","pr_number":4}')
        await issues.store.check_hold(await issues.get_issue(1))
        issue = await issues.get_issue(1)
        assert (issue.agent, issue.done, issue.pr_number) == ("", ("development",), 4)

    async def test_a_completed_development_task_leaves_the_review_to_be_done(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        await issues.put(1, "needs-review")
        assert (await issues.get_issue(1)).task_id == task.task_id
        await issues.service.complete(task.task_id, task.token)
        issue = await issues.get_issue(1)
        assert (issue.task_type, issue.withheld, issue.task_id) == ("review", "", "octo~repo~1~2")

    async def test_a_completed_issue_is_offered_again_when_it_is_reopened(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        await issues.service.complete(task.task_id, task.token)
        await issues.close(1)
        await issues.put(1)
        again = await issues.take()
        assert again.task_id == "octo~repo~1~2"


class TestAnAgentThatNoLongerHoldsItsTask:
    @pytest.fixture
    def options(self) -> IssuesOptions:
        return SHORT

    async def test_a_former_holder_is_refused_with_the_holder_and_its_expiry(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        late = await issues.take("late")
        current = await issues.take("current", wait=seconds(HANGS))
        assert current.task_id == late.task_id
        says = issues.service
        for refused in (
            says.heartbeat(late.task_id, late.token),
            says.complete(late.task_id, late.token),
            says.fail(late.task_id, late.token, reason="no"),
            says.release(late.task_id, late.token),
        ):
            with pytest.raises(TaskStale) as refusal:
                await refused
            assert refusal.value.facts["holder"] == "current"
            assert refusal.value.facts["expires_at"]
        assert (await issues.get_issue(1)).agent == "current"

    async def test_a_former_holder_is_refused_while_nobody_holds_the_task(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        await issues.wait_for_end_of_hold(1)
        with pytest.raises(TaskStale) as refusal:
            await issues.service.heartbeat(task.task_id, task.token)
        assert refusal.value.facts == {"state": "ready", "holder": None, "expires_at": None}

    async def test_an_issue_is_given_up_after_the_last_attempt(self, issues: IssueServices) -> None:
        await issues.put(1)
        for _ in range(2):
            await issues.take(wait=seconds(HANGS))
            await issues.wait_for_end_of_hold(1)
        issue = await issues.get_issue(1)
        assert issue.withheld == "dead"
        assert issue.why
        assert (await issues.service.take_away("octo/repo", 1)).task_id == "octo~repo~1~2"
        assert (await issues.take()).task_id == "octo~repo~1~2"

    async def test_heartbeats_keep_the_task_with_its_agent(self, issues: IssueServices) -> None:
        await issues.put(1)
        task = await issues.take()
        held = await issues.service.heartbeat(task.task_id, task.token, agent="ann")
        assert held.expires_at > task.expires_at
        assert held.withdrawn is None
        issue = await issues.get_issue(1)
        assert instant(issue.expires) == held.expires_at


class TestAServerThatDiesWhileItHoldsALock:
    @pytest.fixture
    def options(self) -> IssuesOptions:
        return SHORT

    async def test_a_claim_that_no_row_notes_locks_its_issue_for_a_lease_only(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        [lost] = await issues.engine.claim(ISSUES, worker="dead", lease=seconds(1))
        assert not (await issues.get_issue(1)).held
        task = await issues.take("bob", wait=seconds(HANGS))
        assert (task.issue_number, task.token > lost.token) == (1, True)

    async def test_an_expired_hold_is_noted_without_any_request(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        await issues.take("dead")
        await issues.wait_for_end_of_hold(1)
        assert (await issues.get_issue(1)).outcome
        assert issues.metric("towpath_issues_ended_total", "expired") == 1

    async def test_a_hold_ends_although_a_later_claim_that_no_row_notes_holds_the_task(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        await issues.take("ann")
        wait = seconds(HANGS)
        [later] = await issues.engine.claim(ISSUES, worker="dead", lease=wait, wait=wait)
        await issues.wait_for_end_of_hold(1)
        assert issues.metric("towpath_issues_ended_total", "expired") == 1
        await issues.engine.release(later)
        assert (await issues.take("bob")).token > later.token

    async def test_the_queue_gets_a_task_whose_server_died_after_it_stored_the_row(
        self, issues: IssueServices
    ) -> None:
        await issues.store.maintain_once()  # Redis knows all that there is: nothing is offered anew
        await issues.store_only(
            Facts(repository="octo/repo", number=1, source=IssueSource.GITHUB, version=1)
        )
        assert await issues.request() is None

        async def made_up_for() -> bool:
            await issues.store.maintain_once()
            return await issues.request() is not None

        await eventually_async(made_up_for)
        assert (await issues.get_issue(1)).held


async def test_no_repeated_statement_reads_a_whole_table(
    issues: IssueServices,
) -> None:
    """These statements run every few seconds or for every request, also with 50,000 issues."""
    for number in range(1, 4):
        await issues.put(number)
    await issues.store.maintain_once()
    with statements() as executed:
        await issues.store.maintain_once()
        task = await issues.take(roles=("developer",), repositories=("octo/repo",))
        await issues.service.heartbeat(task.task_id, task.token)
        await issues.service.complete(task.task_id, task.token)
    assert len(executed) > 8
    assert await full_scans(issues.ledger, executed) == []


class TestAnIssueWhoseTaskSomebodyElseEnds:
    """A generic call of the queue ends it; nobody holds the issue."""

    @pytest.fixture
    def options(self) -> IssuesOptions:
        return IssuesOptions(attempts=1)

    async def test_an_issue_is_offered_again_after_its_task_was_cancelled(
        self, issues: IssueServices
    ) -> None:
        issue = await issues.put(1)
        await issues.put(2)
        await issues.store.maintain_once()
        untouched = await issues.get_issue(2)
        await issues.engine.cancel(job_ref(ISSUES, issue.task_id))
        await issues.store.maintain_once()
        assert (await issues.get_issue(1)).outcome == "withdrawn"
        numbers = {(await issues.take(f"a{n}")).issue_number for n in range(2)}
        assert numbers == {1, 2}
        assert untouched.task_id == (await issues.get_issue(2)).task_id
        assert issues.metric("towpath_issues_repaired_total", "task") == 1

    async def test_a_sync_offers_an_issue_again_whose_task_was_cancelled(
        self, issues: IssueServices
    ) -> None:
        issue = await issues.put(1)
        await issues.engine.cancel(job_ref(ISSUES, issue.task_id))
        await issues.store.offer_all()
        assert (await issues.take()).task_id != issue.task_id

    async def test_an_issue_is_completed_if_its_task_was(self, issues: IssueServices) -> None:
        await issues.put(1)
        [lease] = await issues.engine.claim(ISSUES, worker="w", lease=seconds(HANGS))
        await issues.store.maintain_once()
        await issues.engine.complete(lease)
        await issues.store.maintain_once()
        assert (await issues.get_issue(1)).withheld == "completed"

    async def test_an_issue_is_given_up_if_its_task_died_and_can_be_offered_again(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        [lease] = await issues.engine.claim(ISSUES, worker="w", lease=seconds(HANGS))
        await issues.engine.fail(lease, "no")
        await issues.store.maintain_once()
        assert (await issues.get_issue(1)).withheld == "dead"
        await issues.service.take_away("octo/repo", 1)
        assert (await issues.take()).issue_number == 1

    async def test_ended_tasks_are_found_among_many_issues(self, issues: IssueServices) -> None:
        """Each maintenance checks a part of the issues and continues where the last one ended."""
        facts = {f"octo/repo#{n}": Facts(repository="octo/repo", number=n) for n in range(1, 452)}
        await issues.store.change_all(facts)
        await issues.store.maintain_once()
        some = [1, 230, 451]
        for number in some:
            await issues.engine.cancel(job_ref(ISSUES, (await issues.get_issue(number)).task_id))
        for _ in range(4):
            await issues.store.maintain_once()
        assert [(await issues.get_issue(number)).outcome for number in some] == ["withdrawn"] * 3


class TestTheTokenOfAnother:
    async def test_the_token_of_another_agent_is_refused_with_ones_own_name(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        task = await issues.take("ann")
        with pytest.raises(TaskStale) as refusal:
            await issues.service.complete(task.task_id, task.token, agent="bob")
        assert refusal.value.facts["holder"] == "ann"
        assert (await issues.get_issue(1)).agent == "ann"

    async def test_a_token_that_was_never_given_is_refused(self, issues: IssueServices) -> None:
        await issues.put(1)
        task = await issues.take("ann")
        with pytest.raises(TaskStale):
            await issues.service.complete(task.task_id, task.token + 1)

    @pytest.mark.parametrize("name", ["octo~repo~9~1", "nothing", "~", "a" * 600, "\x00"])
    async def test_a_heartbeat_for_an_unknown_task_is_refused(
        self, issues: IssueServices, name: str
    ) -> None:
        with pytest.raises(TaskNotFound):
            await issues.service.heartbeat(name, 1)


class TestGivingATaskBack:
    async def test_a_released_task_is_offered_again_under_the_same_id(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        ended = await issues.service.release(task.task_id, task.token, reason="not mine")
        assert ended.state == "ready"
        issue = await issues.get_issue(1)
        assert (issue.agent, issue.outcome, issue.withheld) == ("", "not mine", "")
        again = await issues.take("bob")
        assert again.task_id == task.task_id
        assert again.token > task.token

    async def test_a_task_can_be_released_until_a_given_time(self, issues: IssueServices) -> None:
        await issues.put(1)
        task = await issues.take()
        until = instant(wall_ms()) + seconds(3600)
        await issues.service.release(task.task_id, task.token, not_before=until)
        assert await issues.request() is None
        why = await issues.service.explain("octo/repo", 1)
        assert why.why == "not_due"
        assert (await issues.service.list(assignable=True)).issues == []
        assert IssueOut.of(await issues.get_issue(1)).offered_at is not None

    async def test_a_failed_task_is_offered_again_after_a_pause(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        ended = await issues.service.fail(task.task_id, task.token, reason="no compiler")
        assert ended.state == "delayed"
        assert (await issues.get_issue(1)).outcome == "no compiler"
        assert await issues.request() is None

    async def test_the_holder_is_refused_after_its_issue_was_taken_away(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        await issues.service.take_away("octo/repo", 1)
        with pytest.raises(TaskStale):
            await issues.service.complete(task.task_id, task.token)
        with pytest.raises(NotHeld):
            await issues.service.take_away("octo/repo", 1)
