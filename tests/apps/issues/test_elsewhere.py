"""The same on PostgreSQL, on a Redis cluster, and on Redis 6.2: from the webhook to the end."""

import asyncio

import pytest

from tests.apps.issues.sites import Site
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
    """A database and a store."""
    database, store = PLACES[request.param]
    return request.getfixturevalue(database), request.getfixturevalue(store).url


@pytest.fixture
def url(place: tuple[str, str]) -> str:
    return place[0]


@pytest.fixture
def engine_url(place: tuple[str, str]) -> str:
    return place[1]


async def test_a_task_from_the_webhook_to_its_end(site: Site) -> None:
    site.people.open("It breaks", labels=["P1"])
    site.people.open("More", labels=["needs-review"])
    await site.deliver()
    task = await site.take("ann", roles=("developer",), repositories=("octo/repo",))
    assert await site.ask("bob") is None  # the other one waits for its review
    held = await site.service.heartbeat(task.task_id, task.token)
    assert held.expires_at >= task.expires_at
    await site.project()
    assert site.labels(1) == {"P1", "in-progress", "agent:ann"}
    with pytest.raises(TaskStale):
        await site.service.complete(task.task_id, task.token + 1)
    ended = await site.service.complete(task.task_id, task.token, result="ok", pr_number=9)
    assert ended.state == "done"
    await site.project()
    assert site.labels(1) == {"P1"}
    issue = await site.look(1)
    assert (issue.withheld, issue.pr_number, issue.shown) == ("completed", 9, ())
    assert (await site.service.list(assignable=True)).issues[0].number == 2


async def test_a_comparison_with_github(site: Site) -> None:
    for number in range(1, 11):
        site.people.open(f"Number {number}", labels=[f"role:r{number % 3}"])
    assert (await site.sync()).changed == 10
    again = await site.restarted().sync()
    assert (again.issues, again.changed) == (10, 0)
    task = await site.take("ann", roles=("r1",))
    assert task.issue_number == 1
    site.people.close(1)
    site.people.label(2, "epic")
    site.people.delete(3)
    assert (await site.sync()).changed == 3
    held = await site.service.heartbeat(task.task_id, task.token)
    assert "closed" in held.withdrawn
    words = [(await site.look(it)).withheld for it in (1, 2, 3, 4)]
    assert words == ["closed", "never", "gone", ""]
    site.github.rename("octo/repo", "octo/new")
    await site.sync()
    assert (await site.service.get("octo/new", 4)).task_id == "octo~repo~4~1"
    await site.board.tend_once()


class TestAmongMany:
    @pytest.fixture
    def policy(self) -> IssuePolicy:
        return IssuePolicy(limits=WorkLimits(agent=1, repository=4), blocked_by=True)

    async def test_each_issue_has_one_holder_and_limits_hold(self, site: Site) -> None:
        """Told of and asked for at the same time."""
        await asyncio.gather(*(site.put(n, body="Blocked by #1") for n in range(1, 9)))
        await site.close(1)
        found = await asyncio.gather(*(site.ask(f"a{n % 6}") for n in range(12)))
        taken = [it for it in found if it is not None]
        assert len(taken) == len({it.issue_number for it in taken}) == 4
        held = [it for it in (await site.rows()).values() if it.held]
        assert len({it.agent for it in held}) == len(held) == 4
        for task in taken:
            await site.service.release(task.task_id, task.token)
        assert not any(it.held for it in (await site.rows()).values())
        assert (await site.take("ann")).issue_number in range(2, 9)


async def test_the_steps_make_the_tables_that_the_code_says(server_url: str) -> None:
    assert await drift(TABLES, url=server_url) == []
