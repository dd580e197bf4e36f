"""Comparisons with GitHub: find what no webhook reported, and correct wrong labels."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.apps.issues.counting import scripts_run, statements
from tests.apps.issues.services import REPOSITORY
from tests.apps.issues.synced import SyncedIssueServices, options_for
from towpath import Towpath, minutes, seconds
from towpath.apps.issues import tables
from towpath.apps.issues.github import github_of
from towpath.apps.issues.handlers import add_issues
from towpath.apps.issues.model import Facts, IssueSource
from towpath.apps.issues.policy import IssuePolicy
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerRefused, CallFailed
from towpath.clock import Duration, ManualClock, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger
from towpath.testing.github.double import GitHubDouble
from towpath.testing.github.trouble import answers, hangs_up, rate_limit
from towpath.worker.schedules import fire_due
from towpath.worker.worker import Worker


async def test_a_sync_finds_all_open_issues_page_by_page(synced: SyncedIssueServices) -> None:
    for number in range(1, 251):
        synced.people.open(f"Number {number}", labels=["P2"])
    report = await synced.sync()
    assert (report.issues, report.changed) == (250, 250)
    numbers = [(await synced.take(f"a{n}")).issue_number for n in range(3)]
    assert numbers == [1, 2, 3]


async def test_a_sync_of_unchanged_issues_needs_two_requests(synced: SyncedIssueServices) -> None:
    for number in range(1, 151):
        synced.people.open(f"Number {number}")
    await synced.sync()
    used = synced.github.used
    again = await synced.sync()
    assert (again.changed, again.issues) == (0, 150)
    assert synced.github.used - used <= 2  # the repository and the list of pull requests
    synced.people.label(150, "P0")
    assert (await synced.sync()).changed == 1
    assert (await synced.get_issue(150)).priority == 100


class TestAServerThatWasStartedAgain:
    async def test_a_restarted_server_reads_no_unchanged_page(
        self, synced: SyncedIssueServices
    ) -> None:
        for number in range(1, 251):
            synced.people.open(f"Number {number}")
        await synced.sync()
        used, asked = synced.github.used, len(synced.github.asked)
        again = await synced.restarted().sync()
        assert (again.changed, again.issues, again.requests) == (0, 250, 5)
        pages = [
            request for request in synced.github.asked[asked:] if request.path.endswith("/issues")
        ]
        assert all(request.headers.get("if-none-match") for request in pages)
        assert synced.github.used - used == 2  # the repository and the list of pull requests
        synced.people.label(120, "P0")
        assert (await synced.restarted().sync()).changed == 1
        assert (await synced.get_issue(120)).priority == 100

    async def test_a_restarted_server_continues_after_the_pages_that_were_read(
        self, synced: SyncedIssueServices
    ) -> None:
        for number in range(1, 251):
            synced.people.open(f"Number {number}")
        slow_down = synced.github.limit = synced.github.used + 3  # the repository and two pages
        with pytest.raises(AnswerRefused):
            await synced.sync()
        synced.github.limit = 5000
        again = synced.restarted()
        assert (await again.sync()).changed == 50
        assert synced.github.used == slow_down + 3

    async def test_a_restarted_server_reads_again_the_issues_that_it_labelled(
        self, synced: SyncedIssueServices
    ) -> None:
        """A label that is set and removed within a second leaves the ETag of GitHub's list."""
        synced.people.open("It breaks")
        await synced.sync()
        await synced.take("ann")
        await synced.project()
        asked = len(synced.github.asked)
        await synced.restarted().sync()
        [page] = [
            request for request in synced.github.asked[asked:] if request.path.endswith("/issues")
        ]
        assert "if-none-match" not in page.headers


@pytest.mark.parametrize("repositories", [1, 3])
async def test_a_sync_of_new_issues_costs_a_few_statements_and_calls_per_page(
    synced: SyncedIssueServices, server: EmbeddedServer, repositories: int
) -> None:
    """The work is per page of a hundred, not per issue; and no page costs more than the one
    before.
    """
    names = [f"octo/repo-{n}" for n in range(repositories)]
    for name in names:
        for number in range(1, 301):
            synced.at(name).open(
                f"Number {number}", labels=[f"P{number % 5}", f"role:r{number % 7}"]
            )
    await synced.store.maintain_once()
    requests = len(synced.github.asked)
    with statements() as executed:
        before = scripts_run(server)
        await asyncio.gather(*(synced.sync(name) for name in names))
        scripts = scripts_run(server) - before
    pages = 3 * repositories
    assert len(synced.github.asked) - requests == pages + 2 * repositories
    assert 0 < scripts <= 3 * pages
    assert len(executed) <= 8 * pages + 20 * repositories
    assert (await synced.store.ledger.read(tables.issues_not_in_queue(wall_ms() + 1000, 10))) == []


async def test_an_issue_that_is_being_read_is_not_offered_yet(synced: SyncedIssueServices) -> None:
    """Maintenance leaves rows alone that another process has changed just now."""
    synced.people.open("It breaks")
    await synced.store.maintain_once()
    await synced.store_only(
        Facts(repository="octo/repo", number=1, source=IssueSource.GITHUB, version=1, read=True)
    )
    await synced.store.maintain_once()
    assert await synced.request() is None


async def test_a_blocked_issue_waits_whichever_issue_is_read_first(
    synced: SyncedIssueServices,
) -> None:
    synced.store.policy = IssuePolicy(blocked_by=True)
    for number in range(1, 105):
        blocker = {1: 2, 3: 104, 104: 103}.get(number)
        synced.people.open("It breaks", body=f"Blocked by #{blocker}" if blocker else "")
    await synced.sync()
    assert [(await synced.get_issue(number)).withheld for number in (1, 3, 104)] == ["blocked"] * 3
    for number in (2, 103):
        synced.people.close(number)
    await synced.sync()
    assert [(await synced.get_issue(number)).withheld for number in (1, 3, 104)] == [
        "",
        "blocked",
        "",
    ]
    synced.people.reopen(2)
    await synced.sync()
    assert (await synced.get_issue(1)).withheld == "blocked"


async def test_a_change_whose_webhook_was_lost_is_found_by_the_next_sync(
    synced: SyncedIssueServices,
) -> None:
    synced.people.open("It breaks")
    await synced.deliver()
    synced.people.label(1, "epic")
    await synced.sync()
    assert (await synced.get_issue(1)).withheld == "never"
    assert synced.metric("towpath_issues_repaired_total", "issue") == 1


async def test_an_issue_that_was_closed_meanwhile_is_withdrawn(synced: SyncedIssueServices) -> None:
    synced.people.open("One")
    synced.people.open("Two")
    await synced.sync()
    synced.people.close(1)
    await synced.sync()
    assert (await synced.get_issue(1)).withheld == "closed"
    assert (await synced.take()).issue_number == 2


async def test_deleted_and_transferred_issues_are_gone(
    synced: SyncedIssueServices,
) -> None:
    for _ in range(3):
        synced.people.open("It breaks")
    await synced.sync()
    synced.people.delete(1)
    synced.github.transfer("octo/repo", 2, "octo/other")
    await synced.sync()
    states = {id: row.state for id, row in (await synced.rows()).items()}
    assert states == {"octo/repo#1": "gone", "octo/repo#2": "gone", "octo/repo#3": "open"}


async def test_pull_requests_are_linked_and_not_handed_out(synced: SyncedIssueServices) -> None:
    synced.people.open("It breaks")
    synced.people.open_pull("A change", head="issue-1")
    await synced.sync()
    assert list(await synced.rows()) == ["octo/repo#1"]
    assert (await synced.get_issue(1)).pr_number == 2


class TestWrongLabels:
    async def test_wrong_labels_are_corrected_by_the_next_sync(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("It breaks")
        await synced.sync()
        await synced.take("ann")
        await synced.project()
        synced.people.unlabel(1, "in-progress", "agent:ann")
        assert (await synced.sync()).repaired == 1
        await synced.project()
        assert synced.labels(1) == {"in-progress", "agent:ann"}
        assert (await synced.sync()).repaired == 0
        assert synced.metric("towpath_issues_repaired_total", "label") == 1

    async def test_labels_are_removed_from_an_issue_without_a_holder(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("It breaks")
        await synced.sync()
        task = await synced.take("ann")
        await synced.project()
        await synced.service.release(task.task_id, task.token)
        await synced.project()
        synced.people.label(1, "agent:ann")
        await synced.sync()
        await synced.project()
        assert synced.labels(1) == {"agent:ann"}  # belongs to somebody else now


class TestARepository:
    async def test_a_renamed_repository_keeps_its_issues_and_tasks(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One")
        synced.people.open("Two", labels=["P0"])
        await synced.sync()
        task = await synced.take("ann")
        assert task.issue_number == 2
        synced.github.rename("octo/repo", "octo/renamed")
        report = await synced.sync()
        assert report.repository == "octo/renamed"
        assert sorted(await synced.rows()) == ["octo/renamed#1", "octo/renamed#2"]
        held = await synced.service.get("octo/renamed", 2)
        assert (held.agent, held.token) == ("ann", task.token)
        await synced.service.heartbeat(task.task_id, task.token)
        other = await synced.take("bob", repositories=("octo/renamed",))
        assert other.issue_number == 1
        await synced.service.complete(task.task_id, task.token)
        assert (await synced.service.get("octo/renamed", 2)).withheld == "completed"

    async def test_a_deleted_repository_offers_no_issue(self, synced: SyncedIssueServices) -> None:
        synced.people.open("One")
        synced.people.open("Two")
        await synced.sync()
        task = await synced.take("ann")
        synced.github.delete("octo/repo")
        assert (await synced.sync()).gone
        assert await synced.request("bob") is None
        held = await synced.service.heartbeat(task.task_id, task.token)
        assert "gone" in str(held.withdrawn)

    async def test_issues_of_a_repository_that_is_back_are_offered_again(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One")
        await synced.sync()
        synced.github.trouble(answers(404, path="^/repos/octo/repo$"))
        assert (await synced.sync()).gone
        assert await synced.request() is None
        await synced.sync()
        assert (await synced.take()).task_id == "octo~repo~1~2"


class TestASyncInTrouble:
    @pytest.mark.parametrize(
        "trouble", [rate_limit(), answers(502), hangs_up()], ids=["limit", "502", "hang up"]
    )
    async def test_a_sync_that_fails_changes_no_row(
        self, synced: SyncedIssueServices, trouble: object
    ) -> None:
        synced.people.open("One")
        await synced.sync()
        synced.people.close(1)
        synced.github.trouble(trouble)  # pyright: ignore[reportArgumentType] -- a Trouble
        with pytest.raises((AnswerRefused, CallFailed)):
            await synced.sync()
        assert (await synced.get_issue(1)).state == "open"

    async def test_a_sync_sends_no_request_during_a_rate_limit(
        self, synced: SyncedIssueServices
    ) -> None:
        synced.people.open("One")
        synced.github.trouble(rate_limit())
        with pytest.raises(AnswerRefused):
            await synced.sync()
        asked = len(synced.github.asked)
        with pytest.raises(AnswerRefused):
            await synced.sync()
        assert len(synced.github.asked) == asked


async def test_an_issue_that_redis_lost_is_offered_again(
    synced: SyncedIssueServices, server: EmbeddedServer
) -> None:
    for number in range(1, 4):
        synced.people.open(f"Number {number}")
    await synced.sync()
    held = await synced.take("ann")
    await synced.store.maintain_once()
    server.ask("FLUSHALL")
    await synced.store.maintain_once()
    assert not (await synced.get_issue(1)).held
    numbers = {(await synced.take(f"b{n}")).issue_number for n in range(3)}
    assert numbers == {1, 2, 3}
    assert held.issue_number == 1


@pytest.mark.parametrize("every", [seconds(1), seconds(10), minutes(1), minutes(10)], ids=str)
async def test_repositories_are_synced_as_often_as_the_options_say(
    engine_url: str, ledger: Ledger, github: GitHubDouble, caller: Caller, every: Duration
) -> None:
    """Several processes share each sync."""
    options, clock = replace(options_for(github), sync=every), ManualClock()
    app = Towpath(engine_url, ledger=ledger)
    add_issues(app, github_of(options, caller), options, IssuePolicy())

    def compared() -> int:
        return sum(request.path.endswith(REPOSITORY) for request in github.asked)

    with app.pointed_at(engine_url, clock=clock):
        async with app:
            await fire_due(app.engine, app.declared_schedules)
            await Worker(app, signals=()).drain()
            before = compared()
            for number in range(1, 6):
                clock.advance(every)
                await fire_due(app.engine, app.declared_schedules)
                for _ in range(2):
                    await Worker(app, signals=()).drain()
                assert compared() - before == number
