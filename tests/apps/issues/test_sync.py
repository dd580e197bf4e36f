"""Reconciliation: what no webhook told is found, and what GitHub shows wrongly is mended."""

import asyncio

import pytest

from tests.apps.issues.counting import scripts_run, statements
from tests.apps.issues.sites import Site
from towpath.apps.issues import life, tables
from towpath.apps.issues.model import Facts, Issue, IssueSource
from towpath.apps.issues.policy import IssuePolicy
from towpath.calls.errors import AnswerRefused, CallFailed
from towpath.clock import wall_ms
from towpath.embedded import EmbeddedServer
from towpath.testing.github.trouble import answers, hangs_up, rate_limit


async def test_all_open_issues_are_found_page_by_page(site: Site) -> None:
    for number in range(1, 251):
        site.people.open(f"Number {number}", labels=["P2"])
    synced = await site.sync()
    assert (synced.issues, synced.changed) == (250, 250)
    numbers = [(await site.take(f"a{n}")).issue_number for n in range(3)]
    assert numbers == [1, 2, 3]


async def test_what_has_not_changed_costs_nothing(site: Site) -> None:
    for number in range(1, 151):
        site.people.open(f"Number {number}")
    await site.sync()
    used = site.github.used
    again = await site.sync()
    assert (again.changed, again.issues) == (0, 150)
    assert site.github.used - used <= 2  # the repository and the list of pull requests
    site.people.label(150, "P0")
    assert (await site.sync()).changed == 1
    assert (await site.look(150)).priority == 100


class TestAServerThatWasStartedAgain:
    async def test_reads_nothing_that_has_not_changed(self, site: Site) -> None:
        for number in range(1, 251):
            site.people.open(f"Number {number}")
        await site.sync()
        used, asked = site.github.used, len(site.github.asked)
        again = await site.restarted().sync()
        assert (again.changed, again.issues, again.requests) == (0, 250, 5)
        pages = [it for it in site.github.asked[asked:] if it.path.endswith("/issues")]
        assert all(it.headers.get("if-none-match") for it in pages)
        assert site.github.used - used == 2  # the repository and the list of pull requests
        site.people.label(120, "P0")
        assert (await site.restarted().sync()).changed == 1
        assert (await site.look(120)).priority == 100

    async def test_goes_on_behind_the_pages_that_were_read(self, site: Site) -> None:
        for number in range(1, 251):
            site.people.open(f"Number {number}")
        slow_down = site.github.limit = site.github.used + 3  # the repository and two pages
        with pytest.raises(AnswerRefused):
            await site.sync()
        site.github.limit = 5000
        again = site.restarted()
        assert (await again.sync()).changed == 50
        assert site.github.used == slow_down + 3

    async def test_reads_what_it_changed_itself(self, site: Site) -> None:
        """Within one second GitHub's list may come back to what it was."""
        site.people.open("It breaks")
        await site.sync()
        await site.take("ann")
        await site.project()
        asked = len(site.github.asked)
        await site.restarted().sync()
        [page] = [it for it in site.github.asked[asked:] if it.path.endswith("/issues")]
        assert "if-none-match" not in page.headers


@pytest.mark.parametrize("repositories", [1, 3])
async def test_what_is_new_costs_a_few_statements_and_calls_a_page(
    site: Site, server: EmbeddedServer, repositories: int
) -> None:
    """Work per page of a hundred, not per issue; and no page costs more than the one before."""
    names = [f"octo/repo-{n}" for n in range(repositories)]
    for name in names:
        for number in range(1, 301):
            site.at(name).open(f"Number {number}", labels=[f"P{number % 5}", f"role:r{number % 7}"])
    await site.board.tend_once()
    requests = len(site.github.asked)
    with statements() as executed:
        before = scripts_run(server)
        await asyncio.gather(*(site.sync(name) for name in names))
        scripts = scripts_run(server) - before
    pages = 3 * repositories
    assert len(site.github.asked) - requests == pages + 2 * repositories
    assert 0 < scripts <= 3 * pages
    assert len(executed) <= 8 * pages + 20 * repositories
    assert (await site.board.ledger.read(tables.unsettled(wall_ms() + 1000, 10))) == []


async def test_what_is_being_told_is_left_to_who_tells_it(site: Site) -> None:
    """While issues are read, whoever looks after what was left undone does not do it again."""
    site.people.open("It breaks")
    await site.board.tend_once()
    facts = Facts(repository="octo/repo", number=1)

    def told(before: Issue | None) -> Issue:
        return life.told(
            before, facts, source=IssueSource.GITHUB, version=1, read=True, now=wall_ms()
        )

    await site.board.revise(facts.id, told, settle=False)
    await site.board.tend_once()
    assert await site.ask() is None


async def test_an_issue_that_others_block_waits_whichever_is_found_first(site: Site) -> None:
    site.board.policy = IssuePolicy(blocked_by=True)
    for number in range(1, 105):
        blocker = {1: 2, 3: 104, 104: 103}.get(number)
        site.people.open("It breaks", body=f"Blocked by #{blocker}" if blocker else "")
    await site.sync()
    assert [(await site.look(it)).withheld for it in (1, 3, 104)] == ["blocked"] * 3
    for number in (2, 103):
        site.people.close(number)
    await site.sync()
    assert [(await site.look(it)).withheld for it in (1, 3, 104)] == ["", "blocked", ""]
    site.people.reopen(2)
    await site.sync()
    assert (await site.look(1)).withheld == "blocked"


async def test_a_webhook_that_never_came_is_made_up_for(site: Site) -> None:
    site.people.open("It breaks")
    await site.deliver()
    site.people.label(1, "epic")
    await site.sync()
    assert (await site.look(1)).withheld == "never"
    assert site.counted("towpath_issues_repaired_total", "issue") == 1


async def test_an_issue_that_was_closed_meanwhile_is_withdrawn(site: Site) -> None:
    site.people.open("One")
    site.people.open("Two")
    await site.sync()
    site.people.close(1)
    await site.sync()
    assert (await site.look(1)).withheld == "closed"
    assert (await site.take()).issue_number == 2


async def test_issues_that_were_deleted_or_transferred_are_gone(site: Site) -> None:
    for _ in range(3):
        site.people.open("It breaks")
    await site.sync()
    site.people.delete(1)
    site.github.transfer("octo/repo", 2, "octo/other")
    await site.sync()
    states = {id: it.state for id, it in (await site.rows()).items()}
    assert states == {"octo/repo#1": "gone", "octo/repo#2": "gone", "octo/repo#3": "open"}


async def test_pull_requests_are_not_handed_out_but_known(site: Site) -> None:
    site.people.open("It breaks")
    site.people.open_pull("A change", head="issue-1")
    await site.sync()
    assert list(await site.rows()) == ["octo/repo#1"]
    assert (await site.look(1)).pr_number == 2


class TestLabelsThatDoNotSayWhoHoldsWhat:
    async def test_are_mended(self, site: Site) -> None:
        site.people.open("It breaks")
        await site.sync()
        await site.take("ann")
        await site.project()
        site.people.unlabel(1, "in-progress", "agent:ann")
        assert (await site.sync()).repaired == 1
        await site.project()
        assert site.labels(1) == {"in-progress", "agent:ann"}
        assert (await site.sync()).repaired == 0
        assert site.counted("towpath_issues_repaired_total", "label") == 1

    async def test_are_taken_away_where_nobody_holds_it(self, site: Site) -> None:
        site.people.open("It breaks")
        await site.sync()
        task = await site.take("ann")
        await site.project()
        await site.service.release(task.task_id, task.token)
        await site.project()
        site.people.label(1, "agent:ann")
        await site.sync()
        await site.project()
        assert site.labels(1) == {"agent:ann"}  # somebody else's now


class TestARepository:
    async def test_that_was_renamed_keeps_its_issues_and_tasks(self, site: Site) -> None:
        site.people.open("One")
        site.people.open("Two", labels=["P0"])
        await site.sync()
        task = await site.take("ann")
        assert task.issue_number == 2
        site.github.rename("octo/repo", "octo/renamed")
        synced = await site.sync()
        assert synced.repository == "octo/renamed"
        assert sorted(await site.rows()) == ["octo/renamed#1", "octo/renamed#2"]
        held = await site.service.get("octo/renamed", 2)
        assert (held.agent, held.token) == ("ann", task.token)
        await site.service.heartbeat(task.task_id, task.token)
        other = await site.take("bob", repositories=("octo/renamed",))
        assert other.issue_number == 1
        await site.service.complete(task.task_id, task.token)
        assert (await site.service.get("octo/renamed", 2)).withheld == "completed"

    async def test_that_was_deleted_offers_nothing(self, site: Site) -> None:
        site.people.open("One")
        site.people.open("Two")
        await site.sync()
        task = await site.take("ann")
        site.github.delete("octo/repo")
        assert (await site.sync()).gone
        assert await site.ask("bob") is None
        held = await site.service.heartbeat(task.task_id, task.token)
        assert "gone" in held.withdrawn

    async def test_that_is_there_again_is_taken_up_again(self, site: Site) -> None:
        site.people.open("One")
        await site.sync()
        site.github.trouble(answers(404, path="^/repos/octo/repo$"))
        assert (await site.sync()).gone
        assert await site.ask() is None
        await site.sync()
        assert (await site.take()).task_id == "octo~repo~1~2"


class TestTrouble:
    @pytest.mark.parametrize(
        "trouble", [rate_limit(), answers(502), hangs_up()], ids=["limit", "502", "hang up"]
    )
    async def test_changes_nothing_and_is_told(self, site: Site, trouble: object) -> None:
        site.people.open("One")
        await site.sync()
        site.people.close(1)
        site.github.trouble(trouble)  # pyright: ignore[reportArgumentType] -- a Trouble
        with pytest.raises((AnswerRefused, CallFailed)):
            await site.sync()
        assert (await site.look(1)).state == "open"

    async def test_about_the_limit_leaves_github_alone(self, site: Site) -> None:
        site.people.open("One")
        site.github.trouble(rate_limit())
        with pytest.raises(AnswerRefused):
            await site.sync()
        asked = len(site.github.asked)
        with pytest.raises(AnswerRefused):
            await site.sync()
        assert len(site.github.asked) == asked


async def test_what_redis_has_lost_is_offered_again(site: Site, server: EmbeddedServer) -> None:
    for number in range(1, 4):
        site.people.open(f"Number {number}")
    await site.sync()
    held = await site.take("ann")
    await site.board.tend_once()
    server.ask("FLUSHALL")
    await site.board.tend_once()
    assert not (await site.look(1)).held
    numbers = {(await site.take(f"b{n}")).issue_number for n in range(3)}
    assert numbers == {1, 2, 3}
    assert held.issue_number == 1
