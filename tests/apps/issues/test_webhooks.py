"""Webhooks: signed or refused, doubled without effect, and what each of them tells."""

from typing import Any

import pytest

from tests.apps.issues.sites import SECRET, Site, options_for
from towpath.apps.issues.hooks import read_github
from towpath.apps.issues.policy import IssuePolicy, ReviewTasks
from towpath.forges.errors import SignatureInvalid, WebhookInvalid
from towpath.forges.facts import Ignored
from towpath.testing.github.hooks import GitHubDelivery, GitHubHook


def signed(event: str, payload: dict[str, Any]) -> GitHubDelivery:
    return GitHubDelivery(GitHubHook("http://127.0.0.1:1/", SECRET, ()), "d-1", event, payload, [])


class TestADelivery:
    async def test_that_is_forged_is_refused(self, site: Site) -> None:
        site.people.open("It breaks")
        [sent] = site.github.deliveries
        forged = sent.body.replace(b"It breaks", b"It works!")
        for body, secret in ((forged, SECRET), (sent.body, "another")):
            with pytest.raises(SignatureInvalid):
                read_github(sent.headers, body, secrets=[secret])

    async def test_that_comes_twice_has_the_effect_of_one(self, site: Site) -> None:
        site.people.open("It breaks")
        [sent] = site.github.deliveries
        for _ in range(3):
            await site.deliver(sent)
        assert (await site.look(1)).generation == 1
        assert site.counted("towpath_issues_webhooks_total", "taken") == 1
        assert site.counted("towpath_issues_webhooks_total", "stale") == 2

    async def test_of_another_repository_is_ignored(self, site: Site) -> None:
        site.at("octo/strange").open("Not ours")
        await site.deliver()
        assert await site.rows() == {}

    @pytest.mark.parametrize("event", ["ping", "push", "star"])
    async def test_that_concerns_nobody_is_ignored(self, site: Site, event: str) -> None:
        sent = signed(event, {"zen": "Keep it simple."})
        assert read_github(sent.headers, sent.body, secrets=[SECRET]) == Ignored(event)

    @pytest.mark.parametrize(
        "spoilt",
        [
            {"issue": None},
            {"issue": {"number": "one"}},
            {"issue": {"number": 0}},
            {"repository": {"full_name": "../..", "html_url": "x", "clone_url": "x"}},
        ],
    )
    async def test_that_lacks_what_github_documents_is_refused(
        self, site: Site, spoilt: dict[str, object]
    ) -> None:
        site.people.open("It breaks")
        [sent] = site.github.deliveries
        for name, value in spoilt.items():
            whole = sent.payload[name]
            sent.payload[name] = {**whole, **value} if isinstance(value, dict) else value
        with pytest.raises(WebhookInvalid):
            read_github(sent.headers, sent.body, secrets=[SECRET])


class TestWhatHappensToAnIssue:
    async def test_is_known_at_once(self, site: Site) -> None:
        site.people.open("It breaks", labels=["P4"])
        site.people.label(1, "P0")
        site.people.edit(1, title="It always breaks")
        await site.deliver()
        issue = await site.look(1)
        assert (issue.title, issue.priority) == ("It always breaks", 100)
        site.people.assign(1, "zoe")
        await site.deliver()
        assert (await site.look(1)).withheld == "assigned"
        site.people.unassign(1, "zoe")
        await site.deliver()
        assert (await site.take()).issue_number == 1

    async def test_that_is_closed_and_reopened_offers_it_anew(self, site: Site) -> None:
        site.people.open("It breaks")
        await site.deliver()
        first = await site.take()
        await site.service.complete(first.task_id, first.token)
        site.people.close(1)
        site.people.reopen(1)
        await site.deliver()
        assert (await site.take()).task_id == "octo~repo~1~2"

    async def test_that_is_deleted_stays_deleted_whatever_comes_late(self, site: Site) -> None:
        site.people.open("It breaks")
        site.people.label(1, "P0")
        site.people.delete(1)
        opened, labelled, deleted = site.github.deliveries
        for it in (deleted, opened, labelled):
            await site.deliver(it)
        assert (await site.look(1)).state == "gone"


class TestWhatHappensToAPullRequest:
    @pytest.fixture
    def policy(self) -> IssuePolicy:
        return IssuePolicy(review=ReviewTasks(restart=True))

    async def test_is_known_by_its_branch_or_its_words(self, site: Site) -> None:
        site.people.open("One")
        site.people.open("Two", labels=["needs-review"])
        site.people.open_pull("A change", head="issue-1")
        site.people.open_pull("Another", head="x", body="Fixes #2 and closes octo/other#7")
        await site.deliver()
        assert ((await site.look(1)).pr_number, (await site.look(2)).pr_number) == (3, 4)

    async def test_begins_the_delay_anew_where_that_is_said(self, site: Site) -> None:
        site.people.open("One", labels=["needs-review"])
        pull = site.people.open_pull("A change", head="issue-1").number
        await site.deliver()
        before = await site.look(1)
        site.people.push(pull)
        pushed = site.github.deliveries[-1]
        await site.deliver(pushed)
        after = await site.look(1)
        assert after.found > before.found
        await site.deliver(pushed)
        assert (await site.look(1)).found == after.found

    async def test_that_is_a_review_begins_it_anew_too(self, site: Site) -> None:
        site.people.open("One", labels=["needs-review"])
        pull = site.people.open_pull("A change", head="issue-1").number
        await site.deliver()
        before = (await site.look(1)).found
        site.people.review(pull, "COMMENTED")
        await site.deliver()
        assert (await site.look(1)).found > before


class TestAPushOrAReview:
    """With the built-in policy."""

    async def test_puts_no_review_off(self, site: Site) -> None:
        site.people.open("One", labels=["needs-review"])
        pull = site.people.open_pull("A change", head="issue-1").number
        await site.deliver()
        before = await site.look(1)
        site.people.push(pull)
        site.people.review(pull, "CHANGES_REQUESTED")
        site.people.comment(1, "Please.")
        await site.deliver()
        after = await site.look(1)
        assert (after.found, after.review_due) == (before.found, before.review_due)
        assert after.task_id == before.task_id


class TestAnIssueThatIsTransferredUnderAHeldLease:
    async def test_is_offered_where_it_is_now_once_its_agent_has_stopped(self, site: Site) -> None:
        """Our labels go with it: they say the truth until then, and not for ever."""
        site.board.options = options_for(site.github, more=("octo/other",))
        site.people.open("One")
        await site.deliver()
        task = await site.take("ann")
        await site.project()
        number = site.github.transfer("octo/repo", 1, "octo/other")
        await site.deliver()
        held = await site.service.heartbeat(task.task_id, task.token)
        assert "gone" in held.withdrawn
        assert await site.ask("bob") is None
        await site.service.release(task.task_id, task.token)
        await site.project()
        assert (await site.look(1)).shown == ()
        assert site.at("octo/other")[number].labels == []
        await site.deliver()
        there = await site.take("bob")
        assert (there.repository, there.issue_number) == ("octo/other", number)


class TestALabelOfTheRepository:
    async def test_that_is_renamed_or_deleted_changes_all_issues(self, site: Site) -> None:
        site.people.open("One", labels=["epic", "P1"])
        await site.deliver()
        repository = site.github.deliveries[0].payload["repository"]
        label = {"label": {"name": "epos"}, "repository": repository}
        changes = {"changes": {"name": {"from": "epic"}}}
        await site.deliver(signed("label", {"action": "edited", **label, **changes}))
        issue = await site.look(1)
        assert (issue.labels, issue.withheld) == (("P1", "epos"), "")
        await site.deliver(
            signed(
                "label", {"action": "deleted", "label": {"name": "P1"}, "repository": repository}
            )
        )
        assert (await site.look(1)).labels == ("epos",)


class TestARepository:
    async def test_that_is_renamed_is_followed(self, site: Site) -> None:
        site.people.open("One")
        await site.deliver()
        told = dict(site.github.deliveries[0].payload["repository"])
        told |= {"full_name": "octo/repo"}
        before = {"changes": {"repository": {"name": {"from": "older"}}}}
        await site.put(7, repository="octo/older")
        sent = {"action": "renamed", "repository": told, **before}
        await site.deliver(signed("repository", sent))
        assert sorted(await site.rows()) == ["octo/repo#1", "octo/repo#7"]

    @pytest.mark.parametrize(
        ("name", "then"), [("octo/renamed", "octo/third"), ("zoe/repo", "mia/repo")]
    )
    async def test_is_followed_under_its_new_name_though_the_options_have_the_old_one(
        self, site: Site, name: str, then: str
    ) -> None:
        site.people.open("One")
        await site.deliver()
        task = await site.take("ann")
        site.github.rename("octo/repo", name)
        site.at(name).open("Two", labels=["P0"])
        site.at("octo/strange").open("Not ours")
        await site.deliver()
        assert sorted(await site.rows()) == [f"{name}#1", f"{name}#2"]
        assert (await site.service.get(name, 1)).agent == "ann"
        assert (await site.take("bob", repositories=(name,))).issue_number == 2
        site.github.rename(name, then)
        site.at(then).close(1)
        await site.deliver()
        held = await site.service.heartbeat(task.task_id, task.token)
        assert "closed" in held.withdrawn

    async def test_that_is_deleted_under_a_held_lease_is_told_and_ends(self, site: Site) -> None:
        site.people.open("One")
        await site.deliver()
        task = await site.take("ann")
        await site.project()
        site.github.delete("octo/repo")
        await site.deliver()
        held = await site.service.heartbeat(task.task_id, task.token)
        assert "gone" in held.withdrawn
        await site.service.release(task.task_id, task.token)
        await site.project()
        issue = await site.look(1)
        assert (issue.agent, issue.shown, issue.withheld) == ("", (), "gone")
        assert await site.ask("bob") is None

    async def test_that_is_deleted_offers_nothing(self, site: Site) -> None:
        site.people.open("One")
        site.github.delete("octo/repo")
        await site.deliver()
        assert (await site.look(1)).withheld == "gone"
