"""Issues on PostgreSQL, on a Redis cluster, and on Redis 6.2: from the webhook to the end."""

import asyncio

import pytest

from tests.apps.issues.synced import SyncedIssueServices
from towpath.apps.issues.errors import TaskStale
from towpath.apps.issues.policy import IssuePolicy, WorkLimits
from towpath.apps.issues.tables import TABLES
from towpath.testing import drift

PLACES = {
    "postgresql": ("prepared_server_url", "server"),
    "cluster": ("prepared_file_url", "cluster"),
    "both": ("prepared_server_url", "cluster"),
    "oldest": ("prepared_file_url", "oldest_server"),
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """URLs of a database and of a Redis."""
    database, store = PLACES[request.param]
    return request.getfixturevalue(database), request.getfixturevalue(store).url


@pytest.fixture
def url(place: tuple[str, str]) -> str:
    return place[0]


@pytest.fixture
def engine_url(place: tuple[str, str]) -> str:
    return place[1]


async def test_a_task_runs_from_the_webhook_to_its_end(synced: SyncedIssueServices) -> None:
    synced.people.open("It breaks", labels=["P1"])
    synced.people.open("More", labels=["needs-review"])
    await synced.deliver()
    task = await synced.take("ann", roles=("developer",), repositories=("octo/repo",))
    assert await synced.request("bob") is None  # the other one waits for its review
    held = await synced.service.heartbeat(task.task_id, task.token)
    assert held.expires_at >= task.expires_at
    await synced.project()
    assert synced.labels(1) == {"P1", "in-progress", "agent:ann"}
    with pytest.raises(TaskStale):
        await synced.service.complete(task.task_id, task.token + 1)
    ended = await synced.service.complete(task.task_id, task.token, result="ok", pr_number=9)
    assert ended.state == "done"
    await synced.project()
    assert synced.labels(1) == {"P1"}
    issue = await synced.get_issue(1)
    assert (issue.withheld, issue.pr_number, issue.shown) == ("completed", 9, ())
    assert (await synced.service.list(assignable=True)).issues == []
    assert [one.number for one in (await synced.service.list(assignable=False)).issues] == [1, 2]


async def test_a_sync_with_github_finds_all_issues(synced: SyncedIssueServices) -> None:
    for number in range(1, 11):
        synced.people.open(f"Number {number}", labels=[f"role:r{number % 3}"])
    assert (await synced.sync()).changed == 10
    again = await synced.restarted().sync()
    assert (again.issues, again.changed) == (10, 0)
    task = await synced.take("ann", roles=("r1",))
    assert task.issue_number == 1
    synced.people.close(1)
    synced.people.label(2, "epic")
    synced.people.delete(3)
    assert (await synced.sync()).changed == 3
    held = await synced.service.heartbeat(task.task_id, task.token)
    assert "closed" in str(held.withdrawn)
    words = [(await synced.get_issue(number)).withheld for number in (1, 2, 3, 4)]
    assert words == ["closed", "never", "gone", ""]
    synced.github.rename("octo/repo", "octo/new")
    await synced.sync()
    assert (await synced.service.get("octo/new", 4)).task_id == "octo~repo~4~1"
    await synced.store.maintain_once()


class TestManyAgents:
    @pytest.fixture
    def policy(self) -> IssuePolicy:
        return IssuePolicy(limits=WorkLimits(agent=1, repository=4), blocked_by=True)

    async def test_share_issues_with_one_holder_each_within_the_limits(
        self, synced: SyncedIssueServices
    ) -> None:
        """Many issues are reported and requested at the same time."""
        await asyncio.gather(*(synced.put(n, body="Blocked by #1") for n in range(1, 9)))
        await synced.close(1)
        found = await asyncio.gather(*(synced.request(f"a{n % 6}") for n in range(12)))
        taken = [task for task in found if task is not None]
        assert len(taken) == len({task.issue_number for task in taken}) == 4
        held = [row for row in (await synced.rows()).values() if row.held]
        assert len({row.agent for row in held}) == len(held) == 4
        for task in taken:
            await synced.service.release(task.task_id, task.token)
        assert not any(row.held for row in (await synced.rows()).values())
        assert (await synced.take("ann")).issue_number in range(2, 9)


async def test_the_migration_steps_make_the_declared_tables(server_url: str) -> None:
    assert await drift(TABLES, url=server_url) == []
