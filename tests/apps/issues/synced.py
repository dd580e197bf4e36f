"""The service of issues beside the GitHub double."""

from contextlib import suppress

from tests.apps.issues.services import REPOSITORY, IssueServices
from towpath.apps.issues.github import github_of
from towpath.apps.issues.model import PROJECTIONS, Issue
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.policy import IssuePolicy
from towpath.apps.issues.projection import Projector
from towpath.apps.issues.sync import Reconciler, Synced
from towpath.apps.issues.webhooks import read_github
from towpath.calls.caller import Caller
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RecordState
from towpath.testing.github.double import GitHubDouble
from towpath.testing.github.hooks import GitHubDelivery
from towpath.testing.github.people import People
from towpath.worker.context import Context, Retry

SECRET = "of the webhooks"  # noqa: S105 -- of no forge


def options_for(github: GitHubDouble, more: tuple[str, ...] = ()) -> IssuesOptions:
    return IssuesOptions(
        repositories=(REPOSITORY, *more),
        github_secrets=(SECRET,),
        github_token=github.token,
        github_host=github.url,
        github_api=github.url,
    )


class SyncedIssueServices(IssueServices):
    """The service beside the GitHub double; tests do the work of its worker themselves."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        options: IssuesOptions,
        policy: IssuePolicy,
        *,
        github: GitHubDouble,
        caller: Caller,
    ) -> None:
        super().__init__(engine, ledger, options, policy)
        self.github, self.people, self._caller = github, github.at(REPOSITORY), caller
        self.client = github_of(options, caller)
        self.projector = Projector(self.store, self.client)
        self.reconciler = Reconciler(self.store, self.client)
        self.taken = 0
        """Number of webhooks that were delivered."""

    def restarted(self) -> "SyncedIssueServices":
        """Returns the services of another process, on the same database and Redis."""
        again = (self.engine, self.ledger, self.store.options, self.store.policy)
        return SyncedIssueServices(*again, github=self.github, caller=self._caller)

    def at(self, repository: str) -> People:
        return self.github.at(repository)

    async def sync(self, repository: str = REPOSITORY) -> Synced:
        return await self.reconciler.compare(repository)

    async def deliver(self, *deliveries: GitHubDelivery) -> None:
        """Deliver these webhooks, or all that GitHub sent since the last call."""
        some = deliveries or self.github.deliveries[self.taken :]
        if not deliveries:
            self.taken += len(some)
        for delivery in some:
            told = read_github(delivery.headers, delivery.body, secrets=[SECRET])
            await self.service.webhooks.apply(told)

    async def project(self, *, attempt: int = 1) -> int:
        """Run the waiting projections; returns how many there were."""
        done = 0
        while True:
            page = await self.ledger.jobs.list(PROJECTIONS, state=RecordState.PENDING)
            if not page.records:
                return done
            for record in reversed(page.records):
                await self.ledger.jobs.cancel(PROJECTIONS, record.id)
                await self.projector.project(record.payload, Attempt(attempt))
                done += 1

    async def project_failing(self) -> None:
        """Run the waiting projection, which must fail: it still waits afterwards."""
        [record] = (await self.ledger.jobs.list(PROJECTIONS, state=RecordState.PENDING)).records
        with suppress(Retry):
            await self.projector.project(record.payload, Attempt(1))
            raise AssertionError("the projection did not fail")

    def labels(self, number: int) -> set[str]:
        return set(self.people[number].labels)

    async def rows(self) -> dict[str, Issue]:
        page = await self.service.list(size=200)
        return {row.id: row for row in page.issues}


class Attempt(Context):
    """The context of an attempt whose number a test chooses."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        here = Context.here(PROJECTIONS, handler="project")
        for slot in set(Context.__slots__) - {"__weakref__"}:
            setattr(self, slot, getattr(here, slot))
        self._number = number

    @property
    def attempt(self) -> int:
        return self._number
