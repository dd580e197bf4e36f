"""A server that notes its claim in the row only after its lease has ended: newer holds stay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.apps.issues.services import REPOSITORY, IssueServices
from tests.fixtures import LEDGER_LIMIT
from tests.waiting import HANGS
from towpath.apps.issues.assignment import Assignment, TaskRequest
from towpath.apps.issues.issue_store import ClaimRefusal, IssueStore
from towpath.apps.issues.model import (
    ISSUES,
    PROJECTIONS,
    Facts,
    Issue,
    Task,
    TaskResult,
)
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.policy import IssuePolicy
from towpath.apps.issues.repositories import Repositories
from towpath.apps.issues.tables import TABLES
from towpath.apps.issues.transitions import task_result
from towpath.clock import hours, milliseconds, seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Lease, job_ref
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RecordState


class StandingStore(IssueStore):
    """A store that stands still before it notes its first hold, until `go_on` is set."""

    claimed: asyncio.Event
    go_on: asyncio.Event

    async def hold(self, lease: Lease, agent: str, owner: str | None) -> Issue | ClaimRefusal:
        self.claimed.set()
        await self.go_on.wait()
        return await super().hold(lease, agent, owner)


class LateServer:
    """A server whose agent ann asks for a task, and that stands still after its claim."""

    def __init__(self, services: IssueServices) -> None:
        self.services, store = services, services.store
        self.store = StandingStore(
            engine=store.engine,
            ledger=store.ledger,
            options=IssuesOptions(lease=seconds(1), github_token="t"),  # noqa: S106
            policy=store.policy,
            metrics=store.metrics,
            log=store.log,
        )
        self.store.claimed, self.store.go_on = asyncio.Event(), asyncio.Event()
        self._request: asyncio.Task[Task | None] | None = None

    async def claim(self) -> None:
        """Claims the task for ann; the lease lasts for a second."""
        requested = Assignment(self.store).request(TaskRequest(agent="ann"), owner="A")
        self._request = asyncio.create_task(requested)
        await self.store.claimed.wait()

    async def go_on(self) -> Task | None:
        """Goes on with the request, and returns the answer."""
        assert self._request is not None
        self.store.go_on.set()
        return await self._request


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    which = "prepared_file_url" if request.param == "sqlite" else "prepared_server_url"
    return request.getfixturevalue(which)


@pytest.fixture
def options() -> IssuesOptions:
    return IssuesOptions(github_token="t")  # noqa: S106 -- of no GitHub


@pytest.fixture
async def late(
    engine_url: str, url: str, issues: IssueServices, policy: IssuePolicy
) -> AsyncIterator[LateServer]:
    """Another server than `issues`: it has an engine and a ledger of its own."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(engine_url))
        opened = Ledger(url, tables=[TABLES], limit=LEDGER_LIMIT)
        ledger = await stack.enter_async_context(opened)
        yield LateServer(IssueServices(engine, ledger, issues.store.options, policy))


async def offer(issues: IssueServices) -> None:
    await issues.apply_facts(Facts(repository=REPOSITORY, number=1), 1)


async def take_over(issues: IssueServices, late: LateServer) -> Task:
    """Ann's server claims the task and stands still; bob gets the task after the lease of ann."""
    await offer(issues)
    await late.claim()
    bob = TaskRequest(agent="bob")
    task = await issues.service.assignment.request(bob, owner="B", wait=seconds(HANGS))
    assert task is not None
    return task


async def test_a_late_hold_leaves_the_newer_holder_in_the_row(
    issues: IssueServices, late: LateServer
) -> None:
    task = await take_over(issues, late)
    before = await issues.get_issue(1)
    assert await late.go_on() is None
    issue = await issues.get_issue(1)
    assert (issue.agent, issue.owner, issue.token) == ("bob", "B", task.token)
    assert issue == before
    held = await issues.service.heartbeat(task.task_id, task.token, agent="bob")
    assert held.withdrawn is None
    ended = await issues.service.complete(task.task_id, task.token, agent="bob")
    assert ended.state == "done"
    assert (await issues.get_issue(1)).withheld == "completed"


async def test_a_late_hold_is_not_shown_and_not_counted(
    issues: IssueServices, late: LateServer
) -> None:
    await take_over(issues, late)
    shown = await issues.ledger.jobs.list(PROJECTIONS)
    assert await late.go_on() is None
    assert await issues.ledger.jobs.list(PROJECTIONS) == shown
    assert [record.state for record in shown.records] == [RecordState.PENDING]
    assert late.services.metric("towpath_issues_handed_out_total", "development") == 0


async def test_a_late_hold_leaves_a_task_that_was_released_to_the_next_claim(
    issues: IssueServices, late: LateServer
) -> None:
    task = await take_over(issues, late)
    await issues.service.release(task.task_id, task.token, reason="not mine")
    again = await late.go_on()
    assert again is not None
    assert again.task_id == task.task_id
    assert again.token > task.token
    assert (await issues.get_issue(1)).token == again.token


async def test_a_late_hold_leaves_a_failed_task_to_its_pause(
    issues: IssueServices, late: LateServer
) -> None:
    task = await take_over(issues, late)
    await issues.service.fail(task.task_id, task.token, reason="no compiler")
    before = await issues.get_issue(1)
    assert await late.go_on() is None
    issue = await issues.get_issue(1)
    assert (issue.agent, issue.outcome) == ("", "no compiler")
    assert issue == before


async def test_a_late_hold_leaves_a_completed_issue_completed(
    issues: IssueServices, late: LateServer
) -> None:
    task = await take_over(issues, late)
    await issues.service.complete(task.task_id, task.token, result="ok")
    before = await issues.get_issue(1)
    assert await late.go_on() is None
    assert await issues.get_issue(1) == before
    job = await issues.engine.inspect.job(job_ref(ISSUES, task.task_id))
    assert (job.state, task_result(job)) == ("done", TaskResult(agent="bob", result="ok"))


async def test_a_late_hold_leaves_an_issue_that_has_moved_since(
    issues: IssueServices, late: LateServer
) -> None:
    task = await take_over(issues, late)
    await issues.service.fail(task.task_id, task.token, reason="no compiler")
    await Repositories(issues.store).rename(REPOSITORY, "octo/renamed")
    before = await issues.service.get("octo/renamed", 1)
    assert before.task_id == task.task_id
    assert await late.go_on() is None
    assert await issues.service.get("octo/renamed", 1) == before


async def test_tokens_grow_again_after_redis_lost_them_and_its_clock_went_back(
    issues: IssueServices, server: EmbeddedServer
) -> None:
    """The row has a token that Redis, by its clock, would reach in an hour."""
    await offer(issues)
    ahead = (wall_ms() + hours(1) // milliseconds(1)) * 1000
    await issues.engine.queues.incarnation(ISSUES, floor=ahead)
    task = await issues.take("ann")
    assert task.token > ahead
    await issues.service.release(task.task_id, task.token)
    server.ask("FLUSHALL")
    await issues.store.maintain_once()
    again = await issues.take("bob")
    assert again.token > task.token
    assert (await issues.get_issue(1)).agent == "bob"
    await issues.service.complete(again.task_id, again.token)
