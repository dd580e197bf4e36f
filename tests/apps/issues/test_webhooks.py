"""Webhooks: unsigned ones are refused, repeated ones have no effect, each changes its issues."""

from typing import Any

import pytest

from tests.apps.issues.synced import SECRET, SyncedIssueServices, options_for
from towpath.apps.issues.policy import IssuePolicy, ReviewTasks
from towpath.apps.issues.webhooks import read_github
from towpath.forges.errors import SignatureInvalid, WebhookInvalid
from towpath.forges.facts import Ignored
from towpath.testing.github.hooks import GitHubDelivery, GitHubHook


def signed(event: str, payload: dict[str, Any]) -> GitHubDelivery:
    return GitHubDelivery(GitHubHook("http://127.0.0.1:1/", SECRET, ()), "d-1", event, payload, [])


class TestADelivery:
    async def test_a_forged_delivery_is_refused(self, synced: SyncedIssueServices) -> None:
        synced.people.open("It breaks")
        [sent] = synced.github.deliveries
        forged = sent.body.replace(b"It breaks", b"It works!")
        for body, secret in ((forged, SECRET), (sent.body, "another")):
            with pytest.raises(SignatureInvalid):
                read_github(sent.headers, body, secrets=[secret])

    async def test_a_delivery_that_comes_twice_has_the_effect_of_one(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("It breaks")
        [sent] = synced.github.deliveries
        for _ in range(3):
            await synced.deliver(sent)
        assert (await synced.get_issue(1)).generation == 1
        assert synced.metric("towpath_issues_webhooks_total", "taken") == 1
        assert synced.metric("towpath_issues_webhooks_total", "stale") == 2

    async def test_a_delivery_of_another_repository_is_ignored(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.at("octo/strange").open("Not ours")
        await synced.deliver()
        assert await synced.rows() == {}

    @pytest.mark.parametrize("event", ["ping", "push", "star"])
    async def test_a_delivery_of_an_unknown_event_is_ignored(
        self, synced: SyncedIssueServices, event: str
    ) -> None:
        sent = signed(event, {"zen": "Keep it simple."})
        assert read_github(sent.headers, sent.body, secrets=[SECRET]) == Ignored(event)

    @pytest.mark.parametrize(
        "spoilt",
        [
            {"issue": None},
            {"issue": {"number": "one"}},
            {"issue": {"number": 0}},
            {"issue": {"state": None, "closed_at": 7}},
            {"repository": {"full_name": "../..", "html_url": "x", "clone_url": "x"}},
        ],
    )
    async def test_a_delivery_with_a_missing_or_wrong_field_is_refused(
        self, synced: SyncedIssueServices, spoilt: dict[str, object]
    ) -> None:
        synced.people.open("It breaks")
        [sent] = synced.github.deliveries
        for name, value in spoilt.items():
            whole = sent.payload[name]
            sent.payload[name] = {**whole, **value} if isinstance(value, dict) else value
        with pytest.raises(WebhookInvalid):
            read_github(sent.headers, sent.body, secrets=[SECRET])


class TestAnEventOfAnIssue:
    async def test_an_opened_issue_is_known_at_once(self, synced: SyncedIssueServices) -> None:
        synced.people.open("It breaks", labels=["P4"])
        synced.people.label(1, "P0")
        synced.people.edit(1, title="It always breaks")
        await synced.deliver()
        issue = await synced.get_issue(1)
        assert (issue.title, issue.priority) == ("It always breaks", 100)
        synced.people.assign(1, "zoe")
        await synced.deliver()
        assert (await synced.get_issue(1)).withheld == "assigned"
        synced.people.unassign(1, "zoe")
        await synced.deliver()
        assert (await synced.take()).issue_number == 1

    @pytest.mark.parametrize("action", ["pinned", "unpinned", "labeled", "typed"])
    async def test_an_issue_event_need_not_have_a_state(
        self, synced: SyncedIssueServices, action: str
    ) -> None:
        """GitHub documents `state` for few actions, and `closed_at` for all."""
        synced.people.open("One")
        synced.people.open("Two")
        synced.people.close(2)
        await synced.deliver()
        for number, state in ((1, "open"), (2, "closed")):
            synced.people.edit(number, title="Another")
            edited = synced.github.deliveries[-1]
            edited.payload["action"] = action
            del edited.payload["issue"]["state"]
            await synced.deliver(edited)
            issue = await synced.get_issue(number)
            assert (issue.title, issue.state) == ("Another", state)

    async def test_an_issue_event_without_state_and_closing_time_is_refused(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One")
        [sent] = synced.github.deliveries
        for name in ("state", "closed_at"):
            del sent.payload["issue"][name]
        with pytest.raises(WebhookInvalid) as refusal:
            read_github(sent.headers, sent.body, secrets=[SECRET])
        assert refusal.value.field == "issue.state"

    async def test_an_issue_that_is_closed_and_reopened_is_offered_again(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("It breaks")
        await synced.deliver()
        first = await synced.take()
        await synced.service.complete(first.task_id, first.token)
        synced.people.close(1)
        synced.people.reopen(1)
        await synced.deliver()
        assert (await synced.take()).task_id == "octo~repo~1~2"

    async def test_a_deleted_issue_stays_deleted_after_a_late_webhook(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("It breaks")
        synced.people.label(1, "P0")
        synced.people.delete(1)
        opened, labelled, deleted = synced.github.deliveries
        for delivery in (deleted, opened, labelled):
            await synced.deliver(delivery)
        assert (await synced.get_issue(1)).state == "gone"


class TestAnEventOfAPullRequest:
    @pytest.fixture
    def policy(self) -> IssuePolicy:
        return IssuePolicy(review=ReviewTasks(restart=True))

    async def test_a_pull_request_is_linked_by_its_branch_or_its_text(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One")
        synced.people.open("Two", labels=["needs-review"])
        synced.people.open_pull("A change", head="issue-1")
        synced.people.open_pull("Another", head="x", body="Fixes #2 and closes octo/other#7")
        await synced.deliver()
        assert ((await synced.get_issue(1)).pr_number, (await synced.get_issue(2)).pr_number) == (
            3,
            4,
        )

    async def test_a_push_restarts_the_review_delay_if_the_policy_says_so(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One", labels=["needs-review"])
        pull = synced.people.open_pull("A change", head="issue-1").number
        await synced.deliver()
        before = await synced.get_issue(1)
        synced.people.push(pull)
        pushed = synced.github.deliveries[-1]
        await synced.deliver(pushed)
        after = await synced.get_issue(1)
        assert after.found > before.found
        await synced.deliver(pushed)
        assert (await synced.get_issue(1)).found == after.found

    async def test_a_review_restarts_the_review_delay_too(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One", labels=["needs-review"])
        pull = synced.people.open_pull("A change", head="issue-1").number
        await synced.deliver()
        before = (await synced.get_issue(1)).found
        synced.people.review(pull, "COMMENTED")
        await synced.deliver()
        assert (await synced.get_issue(1)).found > before


class TestAPushOrAReview:
    """With the built-in policy."""

    async def test_a_push_or_a_review_restarts_no_delay_by_default(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One", labels=["needs-review"])
        pull = synced.people.open_pull("A change", head="issue-1").number
        await synced.deliver()
        before = await synced.get_issue(1)
        synced.people.push(pull)
        synced.people.review(pull, "CHANGES_REQUESTED")
        synced.people.comment(1, "Please.")
        await synced.deliver()
        after = await synced.get_issue(1)
        assert (after.found, after.review_due) == (before.found, before.review_due)
        assert after.task_id == before.task_id


class TestAnIssueThatIsTransferredUnderAHeldLease:
    async def test_a_transferred_issue_is_offered_in_its_new_repository_once_its_agent_has_stopped(
        self, synced: SyncedIssueServices
    ) -> None:
        """Labels of Towpath move with the issue; they are removed when its hold ends."""
        synced.store.options = options_for(synced.github, more=("octo/other",))
        synced.people.open("One")
        await synced.deliver()
        task = await synced.take("ann")
        await synced.project()
        number = synced.github.transfer("octo/repo", 1, "octo/other")
        await synced.deliver()
        held = await synced.service.heartbeat(task.task_id, task.token)
        assert "gone" in str(held.withdrawn)
        assert await synced.request("bob") is None
        await synced.service.release(task.task_id, task.token)
        await synced.project()
        assert (await synced.get_issue(1)).shown == ()
        assert synced.at("octo/other")[number].labels == []
        await synced.deliver()
        there = await synced.take("bob")
        assert (there.repository, there.issue_number) == ("octo/other", number)


class TestALabelOfTheRepository:
    async def test_a_renamed_or_deleted_label_changes_all_issues(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One", labels=["epic", "P1"])
        await synced.deliver()
        repository = synced.github.deliveries[0].payload["repository"]
        label = {"label": {"name": "epos"}, "repository": repository}
        changes = {"changes": {"name": {"from": "epic"}}}
        await synced.deliver(signed("label", {"action": "edited", **label, **changes}))
        issue = await synced.get_issue(1)
        assert (issue.labels, issue.withheld) == (("P1", "epos"), "")
        await synced.deliver(
            signed(
                "label", {"action": "deleted", "label": {"name": "P1"}, "repository": repository}
            )
        )
        assert (await synced.get_issue(1)).labels == ("epos",)


class TestARepository:
    async def test_issues_follow_a_renamed_repository(self, synced: SyncedIssueServices) -> None:
        synced.people.open("One")
        await synced.deliver()
        told = dict(synced.github.deliveries[0].payload["repository"])
        told |= {"full_name": "octo/repo"}
        before = {"changes": {"repository": {"name": {"from": "older"}}}}
        await synced.put(7, repository="octo/older")
        sent = {"action": "renamed", "repository": told, **before}
        await synced.deliver(signed("repository", sent))
        assert sorted(await synced.rows()) == ["octo/repo#1", "octo/repo#7"]

    @pytest.mark.parametrize(
        ("name", "then"), [("octo/renamed", "octo/third"), ("zoe/repo", "mia/repo")]
    )
    async def test_issues_are_handed_out_under_the_new_name_while_the_options_have_the_old_one(
        self, synced: SyncedIssueServices, name: str, then: str
    ) -> None:
        synced.people.open("One")
        await synced.deliver()
        task = await synced.take("ann")
        synced.github.rename("octo/repo", name)
        synced.at(name).open("Two", labels=["P0"])
        synced.at("octo/strange").open("Not ours")
        await synced.deliver()
        assert sorted(await synced.rows()) == [f"{name}#1", f"{name}#2"]
        assert (await synced.service.get(name, 1)).agent == "ann"
        assert (await synced.take("bob", repositories=(name,))).issue_number == 2
        synced.github.rename(name, then)
        synced.at(then).close(1)
        await synced.deliver()
        held = await synced.service.heartbeat(task.task_id, task.token)
        assert "closed" in str(held.withdrawn)

    async def test_the_agent_of_an_issue_in_a_deleted_repository_is_asked_to_stop(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One")
        await synced.deliver()
        task = await synced.take("ann")
        await synced.project()
        synced.github.delete("octo/repo")
        await synced.deliver()
        held = await synced.service.heartbeat(task.task_id, task.token)
        assert "gone" in str(held.withdrawn)
        await synced.service.release(task.task_id, task.token)
        await synced.project()
        issue = await synced.get_issue(1)
        assert (issue.agent, issue.shown, issue.withheld) == ("", (), "gone")
        assert await synced.request("bob") is None

    async def test_a_deleted_repository_offers_no_issue(self, synced: SyncedIssueServices) -> None:
        synced.people.open("One")
        synced.github.delete("octo/repo")
        await synced.deliver()
        assert (await synced.get_issue(1)).withheld == "gone"
