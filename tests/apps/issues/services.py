"""The service of issues with all that it needs, and what tells it of issues."""

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
    """The service, and what is behind it."""

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

    def under(self, policy: IssuePolicy) -> "IssueServices":
        """Another process, with another policy."""
        return IssueServices(self.engine, self.ledger, self.store.options, policy)

    async def put(
        self, number: int, *labels: str, repository: str = REPOSITORY, **fields: Any
    ) -> Issue:
        facts = Facts(repository=repository, number=number, labels=labels, **fields)
        return await self.service.put(facts)

    async def close(self, number: int, *labels: str) -> Issue:
        return await self.put(number, *labels, state=IssueState.CLOSED)

    async def tell(self, facts: Facts, version: int, *, read: bool = False) -> Issue:
        """As a webhook does; *read*: as reconciliation does."""
        return await self.service.put(
            replace(facts, source=IssueSource.GITHUB, version=version, read=read)
        )

    async def store_only(self, facts: Facts) -> None:
        """Store facts as a server does that dies before it updates the queue."""
        change = change_issues({facts.id: facts}, policy=self.store.policy, projections=None)
        await self.ledger.jobs.decide(change)

    async def ask(
        self, agent: str = "ann", *, wait: Duration | None = None, **wish: Any
    ) -> Task | None:
        return await self.service.assignment.request(TaskRequest(agent=agent, **wish), wait=wait)

    async def take(self, agent: str = "ann", **wish: Any) -> Task:
        task = await self.ask(agent, **wish)
        assert task is not None
        return task

    async def look(self, number: int) -> Issue:
        return await self.service.get(REPOSITORY, number)

    async def lapse(self, number: int) -> None:
        """Wait until the hold of an issue has ended, and was noticed."""

        async def noticed() -> bool:
            await self.store.maintain_once()
            return not (await self.look(number)).held

        await eventually_async(noticed)

    def counted(self, name: str, *labels: str) -> float:
        samples = self.metrics.registry.get_sample_value(
            name, {"state": labels[0]} if labels else {}
        )
        return samples or 0.0
