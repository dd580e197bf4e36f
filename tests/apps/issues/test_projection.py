"""GitHub shows who holds an issue, and never decides it."""

import pytest

from tests.apps.issues.sites import Site
from towpath.apps.issues.policy import IssuePolicy, Showing
from towpath.testing.github.trouble import answers, hangs_up, rate_limit, too_many


class TestAnIssueThatIsHeld:
    async def test_has_labels_and_a_branch(self, site: Site) -> None:
        site.people.open("It breaks", labels=["P1"])
        await site.deliver()
        task = await site.take("ann")
        assert await site.project() == 1
        assert site.labels(1) == {"P1", "in-progress", "agent:ann"}
        assert task.branch in site.people.repository.branches
        issue = await site.look(1)
        assert issue.branch == "issue-1"
        assert issue.labels == ("P1", "agent:ann", "in-progress")

    async def test_is_not_withheld_by_our_own_label(self, site: Site) -> None:
        site.people.open("It breaks")
        await site.deliver()
        task = await site.take("ann")
        await site.project()
        await site.deliver()  # GitHub tells of our own labels
        await site.service.release(task.task_id, task.token)
        assert (await site.look(1)).withheld == ""
        assert (await site.take("bob")).issue_number == 1

    @pytest.mark.parametrize("verb", ["complete", "release", "fail"])
    async def test_has_none_of_them_when_the_hold_has_ended(self, site: Site, verb: str) -> None:
        site.people.open("It breaks", labels=["P1"])
        await site.deliver()
        task = await site.take("ann")
        await site.project()
        says = site.service
        if verb == "fail":
            await says.fail(task.task_id, task.token, reason="no")
        else:
            await getattr(says, verb)(task.task_id, task.token)
        await site.project()
        assert site.labels(1) == {"P1"}
        assert (await site.look(1)).shown == ()

    async def test_shows_the_next_agent_in_place_of_the_first(self, site: Site) -> None:
        site.people.open("It breaks")
        await site.deliver()
        task = await site.take("ann")
        await site.project()
        await site.service.release(task.task_id, task.token)
        await site.take("bob")
        await site.project()
        assert site.labels(1) == {"in-progress", "agent:bob"}

    async def test_is_shown_once_however_often_it_is_tried(self, site: Site) -> None:
        site.people.open("It breaks")
        await site.deliver()
        await site.take("ann")
        site.github.trouble(hangs_up(method="POST", path="labels"))
        await site.project_in_vain()
        await site.project()
        await site.board.show("octo/repo#1")
        await site.project()
        assert site.people[1].labels == ["in-progress", "agent:ann"]


class TestAComment:
    @pytest.fixture
    def policy(self) -> IssuePolicy:
        return IssuePolicy(show=Showing(comment=True))

    async def test_is_made_once_per_hold(self, site: Site) -> None:
        site.people.open("It breaks")
        await site.deliver()
        await site.take("ann")
        await site.project()
        await site.board.show("octo/repo#1")
        await site.project()
        [comment] = site.people[1].comments
        assert comment.body.startswith("`ann` works on this")


class TestABranchThatIsThere:
    async def test_is_as_good_as_a_new_one(self, site: Site) -> None:
        site.people.open("It breaks")
        site.people.repository.refs["refs/heads/issue-1"] = site.people.repository.refs[
            "refs/heads/main"
        ]
        await site.deliver()
        await site.take("ann")
        await site.project()
        assert (await site.look(1)).agent == "ann"


class TestARefusalThatLasts:
    @pytest.mark.parametrize(
        "trouble",
        [
            answers(403, "Resource not accessible", method="POST", path="labels", times=None),
            answers(422, "Validation Failed", method="POST", path="labels", times=None),
            answers(404, method="POST", path="git/refs", times=None),
            answers(410, "Issues are disabled", method="POST", path="labels", times=None),
        ],
        ids=lambda it: f"{it.status}",
    )
    async def test_releases_the_issue_and_offers_it_again(
        self, site: Site, trouble: object
    ) -> None:
        site.people.open("It breaks")
        await site.deliver()
        task = await site.take("ann")
        site.github.trouble(trouble)  # pyright: ignore[reportArgumentType] -- a Trouble
        await site.project()
        issue = await site.look(1)
        assert (issue.agent, issue.withheld, issue.shown) == ("", "", ())
        assert "GitHub refused" in issue.outcome
        assert site.labels(1) == set()
        why = await site.service.explain("octo/repo", 1)
        assert why.why == "not_due"
        assert issue.task_id == task.task_id
        assert site.counted("towpath_issues_ended_total", "refused") == 1

    @pytest.mark.parametrize(("status", "attempt"), [(403, 1), (502, 6)])
    async def test_of_an_undo_leaves_nothing_labelled_for_ever(
        self, site: Site, status: int, attempt: int
    ) -> None:
        """What is left there is known as ours: it withholds nothing, and goes with a comparison."""
        site.people.open("It breaks")
        await site.deliver()
        task = await site.take("ann")
        await site.project()
        await site.service.release(task.task_id, task.token)
        site.github.trouble(answers(status, "no", method="DELETE", times=None))
        await site.project(attempt=attempt)
        await site.sync()
        assert site.labels(1) == {"in-progress", "agent:ann"}
        assert (await site.look(1)).withheld == ""
        site.github.calm()
        await site.sync()
        await site.project()
        assert site.labels(1) == set()
        assert (await site.look(1)).shown == ()


class TestTroubleThatPasses:
    @pytest.mark.parametrize(
        "trouble",
        [answers(502), too_many(), rate_limit(), hangs_up()],
        ids=["502", "429", "403 limit", "hang up"],
    )
    async def test_is_tried_again_and_releases_nothing(self, site: Site, trouble: object) -> None:
        site.people.open("It breaks")
        await site.deliver()
        await site.take("ann")
        site.github.trouble(trouble)  # pyright: ignore[reportArgumentType] -- a Trouble
        await site.project_in_vain()
        assert (await site.look(1)).agent == "ann"

    async def test_that_lasts_too_long_releases_the_issue(self, site: Site) -> None:
        site.people.open("It breaks")
        await site.deliver()
        await site.take("ann")
        site.github.trouble(answers(502, method="POST", path="labels", times=None))
        await site.project(attempt=6)
        assert (await site.look(1)).agent == ""


async def test_labels_never_decide_who_holds_what(site: Site) -> None:
    """Somebody takes our labels away, and puts those of another agent on it."""
    site.people.open("It breaks")
    await site.deliver()
    task = await site.take("ann")
    await site.project()
    site.people.unlabel(1, "in-progress", "agent:ann")
    site.people.label(1, "agent:eve")
    await site.deliver()
    issue = await site.look(1)
    assert (issue.agent, issue.token) == ("ann", task.token)
    assert await site.ask("eve") is None
    await site.service.heartbeat(task.task_id, task.token)


async def test_an_issue_that_is_gone_is_released(site: Site) -> None:
    site.people.open("It breaks")
    await site.deliver()
    task = await site.take("ann")
    site.people.delete(1)
    await site.project()
    issue = await site.look(1)
    assert (issue.state, issue.agent) == ("gone", "")
    assert issue.outcome
    assert task.issue_number == 1
