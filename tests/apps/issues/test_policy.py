"""How the policy judges issues, and how changes of an issue affect its task."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.apps.issues.services import IssueServices
from towpath.apps.issues.forms import IssueOut
from towpath.apps.issues.model import Facts, Issue, IssueState, TaskType
from towpath.apps.issues.policy import IssuePolicy, ReviewTasks, Roles, WorkLimits, read_policy
from towpath.apps.issues.published_keys import SCRIPTS
from towpath.clock import instant, seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.errors import InvalidName

EXAMPLE = Path(__file__).parents[3] / "examples" / "issues" / "policy.toml"


def asked(server: EmbeddedServer, *words: str) -> Any:
    """Returns Redis's own answer to a command."""
    return server.ask(*words)


def an_issue(*labels: str, **more: object) -> Issue:
    return Issue(id="o/r#1", repository="o/r", number=1, labels=labels, **more)  # pyright: ignore[reportArgumentType] -- fields of an issue


class TestTheBuiltInPolicy:
    @pytest.mark.parametrize(
        ("labels", "priority"),
        [((), 40), (("P0",), 100), (("p2",), 60), (("P4", "P1"), 80), (("other",), 40)],
    )
    def test_the_built_in_policy_reads_priorities_from_labels(
        self, labels: tuple[str, ...], priority: int
    ) -> None:
        assert IssuePolicy().urgency(an_issue(*labels)) == priority

    @pytest.mark.parametrize(
        ("labels", "kind", "role"),
        [
            ((), TaskType.DEVELOPMENT, "developer"),
            (("role:backend",), TaskType.DEVELOPMENT, "backend"),
            (("Needs-Review", "role:backend"), TaskType.REVIEW, "reviewer"),
            (("changes-requested",), TaskType.FIX, "developer"),
            (("role:$(id)",), TaskType.DEVELOPMENT, "developer"),
        ],
    )
    def test_the_built_in_policy_reads_roles_from_labels(
        self, labels: tuple[str, ...], kind: TaskType, role: str
    ) -> None:
        policy, issue = IssuePolicy(), an_issue(*labels)
        assert policy.task_type(issue.labels) is kind
        assert policy.role(issue, kind) == role

    @pytest.mark.parametrize(
        ("issue", "word"),
        [
            (an_issue("Epic"), "never"),
            (an_issue("story"), "never"),
            (an_issue("in-progress"), "in_progress"),
            (an_issue("in-progress", shown=("in-progress",)), None),
            (an_issue(assignees=("zoe",)), "assigned"),
            (an_issue(state=IssueState.CLOSED), "closed"),
            (an_issue(done=("development",)), "completed"),
            (an_issue(body="Blocked by #2"), None),
        ],
    )
    def test_the_built_in_policy_withholds_an_issue(self, issue: Issue, word: str | None) -> None:
        found = IssuePolicy().withheld(issue, TaskType.DEVELOPMENT, [])
        assert (found and found.word) == word


def test_reads_blocked_by_from_the_text() -> None:
    policy = IssuePolicy(blocked_by=True)
    body = "Blocked by: #2, #3 and Octo/Lib#9.\nblocked by #1\nunblocked by #4"
    found = policy.blockers(an_issue(body=body))
    assert found == ["o/r#2", "o/r#3", "octo/lib#9"]


def test_the_example_of_a_policy_has_every_setting() -> None:
    text = EXAMPLE.read_bytes()
    policy, said = read_policy(text), tomllib.loads(text.decode())
    assert policy.role(an_issue("Area: API"), TaskType.DEVELOPMENT) == "backend"
    assert (policy.delay, policy.limits.agent) == (seconds(300), 2)
    assert said.keys() == set(IssuePolicy.__struct_fields__)
    for name in ("roles", "review", "fix", "limits", "show"):
        assert said[name].keys() == set(getattr(policy, name).__struct_fields__)


class TestAChangeOfAnIssue:
    async def test_an_issue_that_is_withheld_loses_its_task(self, issues: IssueServices) -> None:
        await issues.put(1)
        await issues.put(1, "epic")
        assert await issues.request() is None
        await issues.put(1, "P1")
        task = await issues.take()
        assert task.task_id == "octo~repo~1~2"

    async def test_another_priority_counts_at_once(self, issues: IssueServices) -> None:
        await issues.put(1, "P2")
        await issues.put(2, "P3")
        await issues.put(2, "P0")
        assert (await issues.take()).issue_number == 2

    async def test_a_change_of_a_held_issue_leaves_the_task_with_its_agent(
        self, issues: IssueServices
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        await issues.put(1, "P0", "role:ops", "needs-review")
        held = await issues.service.heartbeat(task.task_id, task.token)
        assert held.withdrawn is None
        await issues.service.release(task.task_id, task.token)
        issue = await issues.get_issue(1)
        assert (issue.task_type, issue.role, issue.priority) == ("review", "reviewer", 100)

    @pytest.mark.parametrize("how", ["closed", "epic", "assigned"])
    async def test_the_agent_of_a_withdrawn_issue_is_asked_to_stop(
        self, issues: IssueServices, how: str
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        if how == "closed":
            await issues.close(1)
        elif how == "epic":
            await issues.put(1, "epic")
        else:
            await issues.put(1, assignees=("zoe",))
        held = await issues.service.heartbeat(task.task_id, task.token)
        assert held.withdrawn
        assert await issues.request("bob") is None
        ended = await issues.service.release(task.task_id, task.token)
        assert ended.state == "cancelled"
        assert await issues.request("bob") is None

    async def test_a_held_issue_that_changes_and_changes_back_gets_no_second_holder(
        self, issues: IssueServices
    ) -> None:
        """At most one agent holds it, whatever its labels become."""
        await issues.put(1)
        task = await issues.take()
        await issues.put(1, "epic")
        await issues.put(1)
        assert await issues.request("bob") is None
        await issues.service.complete(task.task_id, task.token)
        assert (await issues.get_issue(1)).withheld == "completed"

    async def test_an_issue_is_offered_once_its_blocker_is_closed(
        self, issues: IssueServices
    ) -> None:
        issues = issues.with_policy(IssuePolicy(blocked_by=True))
        await issues.put(1)
        await issues.put(2, "P0", body="Blocked by #1")
        assert (await issues.get_issue(2)).withheld == "blocked"
        await issues.close(1)
        assert (await issues.take()).issue_number == 2

    async def test_another_policy_applies_to_known_issues(self, issues: IssueServices) -> None:
        await issues.put(1, "wontfix")
        other = issues.with_policy(IssuePolicy(never=("wontfix",)))
        await other.store.maintain_once()
        assert (await other.get_issue(1)).withheld == "never"
        assert await other.request() is None


class TestAReviewTask:
    async def test_a_review_task_waits_for_its_delay(
        self, issues: IssueServices, server: EmbeddedServer
    ) -> None:
        before = wall_ms()
        await issues.put(1, "needs-review")
        assert await issues.request() is None
        issue = await issues.get_issue(1)
        assert before <= issue.found <= wall_ms()
        assert issue.review_due == issue.found + 300_000
        assert (await issues.service.explain("octo/repo", 1)).why == "not_due"
        assert (await issues.service.list(assignable=True)).issues == []
        assert (await issues.service.list(assignable=False)).issues == [issue]
        shown = IssueOut.of(issue)
        assert (shown.assignable, shown.offered_at) == (False, instant(issue.review_due))
        kept = asked(server, "HGETALL", "review_delay_octo/repo#1")
        assert b"PENDING" in kept
        assert instant(issue.found).strftime("%Y-%m-%dT%H:%M:%SZ").encode() in kept
        assert 86_000_000 < asked(server, "PTTL", "review_delay_octo/repo#1") <= 86_400_000

    async def test_polling_does_not_restart_a_review_delay(self, issues: IssueServices) -> None:
        first = await issues.put(1, "needs-review")
        await issues.put(1)
        again = await issues.put(1, "needs-review", "P0", title="Another")
        assert again.found == first.found

    async def test_a_review_task_is_offered_when_its_delay_is_over(
        self, issues: IssueServices, server: EmbeddedServer
    ) -> None:
        issues = issues.with_policy(IssuePolicy(review=ReviewTasks(delay="0s")))
        issue = await issues.put(1, "needs-review")
        [listed] = (await issues.service.list(assignable=True)).issues
        assert listed.id == issue.id
        assert (IssueOut.of(issue).assignable, IssueOut.of(issue).offered_at) == (True, None)
        task = await issues.take()
        assert (task.task_type, task.role) == (TaskType.REVIEW, "reviewer")
        await issues.store.maintain_once()
        assert (await issues.get_issue(1)).review_status == "READY_FOR_ASSIGNMENT"
        assert b"READY_FOR_ASSIGNMENT" in asked(server, "HGETALL", "review_delay_octo/repo#1")

    async def test_a_review_delay_is_remembered_for_a_day_after_the_review(
        self, issues: IssueServices
    ) -> None:
        issues = issues.with_policy(IssuePolicy(review=ReviewTasks(delay="0s")))
        first = await issues.put(1, "needs-review")
        task = await issues.take()
        await issues.service.complete(task.task_id, task.token)
        await issues.put(1)
        again = await issues.put(1, "needs-review")
        assert again.found == first.found
        assert (await issues.take()).task_type is TaskType.REVIEW


class TestTheLockForOutsiders:
    async def test_the_lock_key_exists_while_the_issue_is_held(
        self, issues: IssueServices, server: EmbeddedServer
    ) -> None:
        await issues.put(1)
        key = "issue_lock_octo/repo#1"
        assert asked(server, "GET", key) is None
        task = await issues.take()
        assert asked(server, "GET", key) == b"locked"
        assert 590_000 < asked(server, "PTTL", key) <= 600_000
        await issues.service.release(task.task_id, task.token)
        assert asked(server, "GET", key) is None

    async def test_the_lock_key_decides_nothing(
        self, issues: IssueServices, server: EmbeddedServer
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        asked(server, "DEL", "issue_lock_octo/repo#1")
        assert await issues.request("bob") is None
        await issues.service.heartbeat(task.task_id, task.token)
        assert asked(server, "GET", "issue_lock_octo/repo#1") == b"locked"

    async def test_a_deleted_lock_key_is_restored_without_a_heartbeat(
        self, issues: IssueServices, server: EmbeddedServer
    ) -> None:
        keys = [f"issue_lock_octo/repo#{number}" for number in (1, 2, 3)]
        for number in (1, 2, 3):
            await issues.put(number)
        tasks = [await issues.take(agent) for agent in ("ann", "bob", "eve")]
        until = [asked(server, "PEXPIRETIME", key) for key in keys]
        asked(server, "DEL", *keys)
        await issues.service.release(tasks[1].task_id, tasks[1].token)
        await issues.service.store.maintain_once()
        assert [asked(server, "GET", key) for key in keys] == [b"locked", None, b"locked"]
        assert [asked(server, "PEXPIRETIME", key) for key in keys] == [until[0], -2, until[2]]

    async def test_the_lock_key_is_not_restored_for_a_hold_that_ends_meanwhile(
        self, issues: IssueServices, server: EmbeddedServer
    ) -> None:
        await issues.put(1)
        task = await issues.take()
        held = await issues.get_issue(1)
        await issues.service.release(task.task_id, task.token)
        await issues.service.store.restore_lock(held)
        assert asked(server, "GET", "issue_lock_octo/repo#1") is None

    async def test_the_late_lock_of_a_former_hold_leaves_that_of_the_present_one(
        self, issues: IssueServices, server: EmbeddedServer
    ) -> None:
        await issues.put(1)
        await issues.take()
        held = await issues.get_issue(1)
        until = asked(server, "PEXPIRETIME", "issue_lock_octo/repo#1")
        for expires in (held.expires - 60_000, held.held_since - 60_000):
            await issues.store.keys.write_lock(replace(held, expires=expires))
            assert asked(server, "PEXPIRETIME", "issue_lock_octo/repo#1") == until

    async def test_a_key_with_braces_cannot_be_published(self, issues: IssueServices) -> None:
        space = issues.engine.space("issues.locks", SCRIPTS / "locks")
        for key in ("issue_lock_{a}", "x}y"):
            with pytest.raises(InvalidName):
                space.published(key)


class TestALimit:
    async def test_an_agent_holds_no_more_tasks_than_its_limit(self, issues: IssueServices) -> None:
        issues = issues.with_policy(IssuePolicy(limits=WorkLimits(agent=2)))
        for number in range(1, 5):
            await issues.put(number)
        first = await issues.take("ann")
        await issues.take("ann")
        assert await issues.request("ann") is None
        await issues.take("bob")
        await issues.service.complete(first.task_id, first.token)
        await issues.take("ann")

    async def test_a_repository_has_no_more_held_issues_than_its_limit(
        self, issues: IssueServices
    ) -> None:
        issues = issues.with_policy(IssuePolicy(limits=WorkLimits(repository=1)))
        await issues.put(1, "P0")
        await issues.put(2, "P0")
        await issues.put(9, "P4", repository="octo/other")
        assert (await issues.take("ann")).issue_number == 1
        assert (await issues.take("bob")).issue_number == 9
        assert await issues.request("eve") is None
        why = await issues.service.explain("octo/repo", 2)
        assert why.why == "limit"


class TestOnlyTheHighestPriority:
    async def test_only_issues_of_the_highest_priority_are_handed_out(
        self, issues: IssueServices
    ) -> None:
        issues = issues.with_policy(IssuePolicy(only_highest=True))
        await issues.put(1, "P0")
        await issues.put(2, "P1")
        first = await issues.take("ann")
        assert first.issue_number == 1
        assert await issues.request("bob") is None
        await issues.service.complete(first.task_id, first.token)
        assert (await issues.take("bob")).issue_number == 2


class TestRolesAndRepositories:
    async def test_roles_and_repositories_decide_which_agent_gets_an_issue(
        self, issues: IssueServices
    ) -> None:
        issues = issues.with_policy(IssuePolicy(roles=Roles(labels={"db": "ops"})))
        await issues.put(1, "P0", "db")
        await issues.put(2, "P4")
        await issues.put(3, repository="octo/other")
        assert await issues.request("ann", roles=("nobody",)) is None
        assert await issues.request("ann", repositories=("octo/nothing",)) is None
        assert (
            await issues.take("ann", roles=("developer",), repositories=("octo/repo",))
        ).title == ""
        assert (await issues.take("bob", roles=("ops", "developer"))).issue_number == 1
        assert (await issues.take("eve", repositories=("Octo/Other",))).issue_number == 3


def test_text_of_strangers_in_an_issue_is_made_harmless() -> None:
    facts = Facts(repository="o/r", number=1, labels=("b", "a", "b", "\x00", "x\ny"))
    assert facts.labels == ("a", "b", "x y")
