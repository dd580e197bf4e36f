"""GitHub shows who holds an issue, and never decides it."""

import pytest

from tests.apps.issues.synced import SyncedIssueServices
from towpath.apps.issues.policy import IssuePolicy, Showing
from towpath.testing.github.trouble import Trouble, answers, hangs_up, rate_limit, too_many


class TestAnIssueThatIsHeld:
    async def test_a_held_issue_has_labels_and_a_branch(self, synced: SyncedIssueServices) -> None:
        synced.people.open("It breaks", labels=["P1"])
        await synced.deliver()
        task = await synced.take("ann")
        assert await synced.project() == 1
        assert synced.labels(1) == {"P1", "in-progress", "agent:ann"}
        assert task.branch in synced.people.repository.branches
        issue = await synced.get_issue(1)
        assert issue.branch == "issue-1"
        assert issue.labels == ("P1", "agent:ann", "in-progress")

    async def test_a_label_that_towpath_set_does_not_withhold_the_issue(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("It breaks")
        await synced.deliver()
        task = await synced.take("ann")
        await synced.project()
        await synced.deliver()  # GitHub sends webhooks about our own labels
        await synced.service.release(task.task_id, task.token)
        assert (await synced.get_issue(1)).withheld == ""
        assert (await synced.take("bob")).issue_number == 1

    @pytest.mark.parametrize("verb", ["complete", "release", "fail"])
    async def test_labels_are_removed_when_the_hold_has_ended(
        self, synced: SyncedIssueServices, verb: str
    ) -> None:
        synced.people.open("It breaks", labels=["P1"])
        await synced.deliver()
        task = await synced.take("ann")
        await synced.project()
        says = synced.service
        if verb == "fail":
            await says.fail(task.task_id, task.token, reason="no")
        else:
            await getattr(says, verb)(task.task_id, task.token)
        await synced.project()
        assert synced.labels(1) == {"P1"}
        assert (await synced.get_issue(1)).shown == ()

    async def test_the_label_of_the_next_agent_replaces_that_of_the_first(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("It breaks")
        await synced.deliver()
        task = await synced.take("ann")
        await synced.project()
        await synced.service.release(task.task_id, task.token)
        await synced.take("bob")
        await synced.project()
        assert synced.labels(1) == {"in-progress", "agent:bob"}

    async def test_a_repeated_projection_changes_nothing(self, synced: SyncedIssueServices) -> None:
        synced.people.open("It breaks")
        await synced.deliver()
        await synced.take("ann")
        synced.github.trouble(hangs_up(method="POST", path="labels"))
        await synced.project_failing()
        await synced.project()
        await synced.store.submit_projection("octo/repo#1")
        await synced.project()
        assert synced.people[1].labels == ["in-progress", "agent:ann"]


class TestAComment:
    @pytest.fixture
    def policy(self) -> IssuePolicy:
        return IssuePolicy(show=Showing(comment=True))

    async def test_one_comment_is_posted_per_hold(self, synced: SyncedIssueServices) -> None:
        synced.people.open("It breaks")
        await synced.deliver()
        task = await synced.take("ann")
        await synced.project()
        await synced.store.submit_projection("octo/repo#1")
        await synced.project()
        [comment] = synced.people[1].comments
        assert "`ann`" in comment.body
        assert str(task.token) not in comment.body


class TestABranchThatExists:
    async def test_a_branch_that_exists_is_used_as_it_is(self, synced: SyncedIssueServices) -> None:
        synced.people.open("It breaks")
        synced.people.repository.refs["refs/heads/issue-1"] = synced.people.repository.refs[
            "refs/heads/main"
        ]
        await synced.deliver()
        await synced.take("ann")
        await synced.project()
        assert (await synced.get_issue(1)).agent == "ann"


class TestAPermanentRefusalOfGitHub:
    @pytest.mark.parametrize(
        "trouble",
        [
            answers(403, "Resource not accessible", method="POST", path="labels", times=None),
            answers(422, "Validation Failed", method="POST", path="labels", times=None),
            answers(404, method="POST", path="git/refs", times=None),
            answers(410, "Issues are disabled", method="POST", path="labels", times=None),
        ],
        ids=lambda reply: f"{reply.status}",
    )
    async def test_a_permanent_refusal_releases_the_issue_and_offers_it_again(
        self, synced: SyncedIssueServices, trouble: Trouble
    ) -> None:
        synced.people.open("It breaks")
        await synced.deliver()
        task = await synced.take("ann")
        synced.github.trouble(trouble)
        await synced.project()
        issue = await synced.get_issue(1)
        assert (issue.agent, issue.withheld, issue.shown) == ("", "", ())
        assert str(trouble.status) in issue.outcome
        assert synced.labels(1) == set()
        why = await synced.service.explain("octo/repo", 1)
        assert why.why == "refused"
        assert issue.outcome in why.text
        assert (await synced.service.list(assignable=True)).issues == []
        assert issue.task_id == task.task_id
        assert synced.metric("towpath_issues_ended_total", "refused") == 1

    @pytest.mark.parametrize(("status", "attempt"), [(403, 1), (502, 6)])
    async def test_labels_whose_removal_was_refused_are_removed_by_the_next_sync(
        self, synced: SyncedIssueServices, status: int, attempt: int
    ) -> None:
        """The row knows that Towpath set these labels, so they withhold nothing."""
        synced.people.open("It breaks")
        await synced.deliver()
        task = await synced.take("ann")
        await synced.project()
        await synced.service.release(task.task_id, task.token)
        synced.github.trouble(answers(status, "no", method="DELETE", times=None))
        await synced.project(attempt=attempt)
        await synced.sync()
        assert synced.labels(1) == {"in-progress", "agent:ann"}
        assert (await synced.get_issue(1)).withheld == ""
        synced.github.calm()
        await synced.sync()
        await synced.project()
        assert synced.labels(1) == set()
        assert (await synced.get_issue(1)).shown == ()


class TestATemporaryErrorOfGitHub:
    @pytest.mark.parametrize(
        "trouble",
        [answers(502), too_many(), rate_limit(), hangs_up()],
        ids=["502", "429", "403 limit", "hang up"],
    )
    async def test_a_temporary_failure_is_tried_again_and_releases_nothing(
        self, synced: SyncedIssueServices, trouble: object
    ) -> None:
        synced.people.open("It breaks")
        await synced.deliver()
        await synced.take("ann")
        synced.github.trouble(trouble)  # pyright: ignore[reportArgumentType] -- a Trouble
        await synced.project_failing()
        assert (await synced.get_issue(1)).agent == "ann"

    async def test_a_failure_that_lasts_too_long_releases_the_issue(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("It breaks")
        await synced.deliver()
        await synced.take("ann")
        synced.github.trouble(answers(502, method="POST", path="labels", times=None))
        await synced.project(attempt=6)
        assert (await synced.get_issue(1)).agent == ""


async def test_labels_never_decide_who_holds_an_issue(synced: SyncedIssueServices) -> None:
    """Somebody removes the labels of Towpath and sets those of another agent."""
    synced.people.open("It breaks")
    await synced.deliver()
    task = await synced.take("ann")
    await synced.project()
    synced.people.unlabel(1, "in-progress", "agent:ann")
    synced.people.label(1, "agent:eve")
    await synced.deliver()
    issue = await synced.get_issue(1)
    assert (issue.agent, issue.token) == ("ann", task.token)
    assert await synced.request("eve") is None
    await synced.service.heartbeat(task.task_id, task.token)


async def test_an_issue_that_was_deleted_is_released(synced: SyncedIssueServices) -> None:
    synced.people.open("It breaks")
    await synced.deliver()
    task = await synced.take("ann")
    synced.people.delete(1)
    await synced.project()
    issue = await synced.get_issue(1)
    assert (issue.state, issue.agent) == ("gone", "")
    assert issue.outcome
    assert task.issue_number == 1
