"""The service of issues on a real database and Redis, with shortcuts for tests."""

from typing import Any

from msgspec.structs import replace

from tests.waiting import eventually_async
from towpath.apps.issues.assignment import TaskRequest
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.model import Facts, Issue, IssueSource, IssueState, Task
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.policy import IssuePolicy
from towpath.apps.issues.service import Issues
from towpath.apps.issues.tables.changes import change_issues
from towpath.clock import Duration
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

REPOSITORY = "octo/repo"


class IssueServices:
    """The service, with the parts that it is made of."""

    def __init__(
        self, engine: Engine, ledger: Ledger, options: IssuesOptions, policy: IssuePolicy
    ) -> None:
        self.engine, self.ledger, self.metrics = engine, ledger, Metrics()
        self.store = IssueStore(
            engine=engine,
            ledger=ledger,
            options=options,
            policy=policy,
            metrics=self.metrics,
            log=Log(),
        )
        self.service = Issues(self.store)

    def with_policy(self, policy: IssuePolicy) -> "IssueServices":
        """Returns the services of another process that has another policy."""
        return IssueServices(self.engine, self.ledger, self.store.options, policy)

    async def put(
        self, number: int, *labels: str, repository: str = REPOSITORY, **fields: Any
    ) -> Issue:
        facts = Facts(repository=repository, number=number, labels=labels, **fields)
        return await self.service.put(facts)

    async def close(self, number: int, *labels: str) -> Issue:
        return await self.put(number, *labels, state=IssueState.CLOSED)

    async def apply_facts(self, facts: Facts, version: int, *, read: bool = False) -> Issue:
        """Store facts as a webhook does, or, with *read*, as a comparison with GitHub does."""
        return await self.service.put(
            replace(facts, source=IssueSource.GITHUB, version=version, read=read)
        )

    async def store_only(self, facts: Facts) -> None:
        """Store facts as a server does that dies before it updates the queue."""
        change = change_issues({facts.id: facts}, policy=self.store.policy, projections=None)
        await self.ledger.jobs.decide(change)

    async def request(
        self, agent: str = "ann", *, wait: Duration | None = None, **wish: Any
    ) -> Task | None:
        return await self.service.assignment.request(TaskRequest(agent=agent, **wish), wait=wait)

    async def take(self, agent: str = "ann", **wish: Any) -> Task:
        task = await self.request(agent, **wish)
        assert task is not None
        return task

    async def get_issue(self, number: int) -> Issue:
        return await self.service.get(REPOSITORY, number)

    async def wait_for_end_of_hold(self, number: int) -> None:
        """Wait until the hold of an issue has ended, and its row says so."""

        async def has_ended() -> bool:
            await self.store.maintain_once()
            return not (await self.get_issue(number)).held

        await eventually_async(has_ended)

    def metric(self, name: str, *labels: str) -> float:
        samples = self.metrics.registry.get_sample_value(
            name, {"state": labels[0]} if labels else {}
        )
        return samples or 0.0
