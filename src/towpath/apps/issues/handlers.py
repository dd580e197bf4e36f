"""The handlers that run in a worker: projections to GitHub, and comparisons with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from towpath.app.app import AtWork, Towpath
from towpath.apps.issues.github import GitHub, caller_of, github_of
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.model import PROJECTIONS, SYNCS
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.policy import IssuePolicy, policy_at
from towpath.apps.issues.projection import ATTEMPTS, RETRY, TIME_LIMIT, Projector
from towpath.apps.issues.sync import Reconciler, Synced, SyncRequest, submit_sync, sync_period
from towpath.clock import ZERO, hours, instant, minutes, wall_ms
from towpath.engine.retry import Exponential
from towpath.engine.schedule import Every
from towpath.errors import ServerError
from towpath.telemetry.logs import Log
from towpath.worker.context import Context

_SYNC_RETRY = Exponential(first=minutes(1), longest=minutes(10))


class IssuesConsumers:
    """The handlers of the application, if the options have a token for GitHub.

    Raises PolicyInvalid, InvalidOption.
    """

    def __init__(self, options: IssuesOptions) -> None:
        self._options, self._policy = options, policy_at(options.policy)
        self._caller = caller_of(options) if options.github_token else None
        self._github = github_of(options, self._caller) if self._caller else None

    @asynccontextmanager
    async def added(self, app: Towpath) -> AsyncGenerator[None]:
        """Add the handlers to *app*, which must have a ledger, and keep connections to GitHub."""
        if self._caller is None or self._github is None:
            yield
            return
        async with self._caller:
            add_issues(app, self._github, self._options, self._policy)
            yield


def add_issues(app: Towpath, github: GitHub, options: IssuesOptions, policy: IssuePolicy) -> None:
    """Add the handlers to *app*, which must have a ledger: they show on GitHub who holds an issue,
    and compare issues with GitHub, at the start and every `sync`.
    """

    def issue_store() -> IssueStore:
        """The issues of the app, which has its engine and its ledger only while it is entered."""
        return IssueStore(
            engine=app.engine,
            ledger=app.ledger,
            options=options,
            policy=policy,
            metrics=app.metrics,
            log=Log(),
        )

    @app.handler(
        PROJECTIONS,
        record=True,
        max_attempts=ATTEMPTS,
        retry=RETRY,
        time_limit=TIME_LIMIT,
        keep=ZERO,
    )
    async def project(payload: bytes, ctx: Context) -> None:
        await Projector(issue_store(), github).project(payload, ctx)

    @app.handler(SYNCS, max_attempts=3, retry=_SYNC_RETRY, time_limit=hours(1), keep=hours(1))
    async def run(request: SyncRequest, ctx: Context) -> Synced | None:
        return await Reconciler(issue_store(), github).run(request, ctx)

    app.recur(run, Every(options.sync), SyncRequest(), name="issues.sync")

    @asynccontextmanager
    async def at_start(_: AtWork) -> AsyncGenerator[None]:
        with suppress(ServerError):  # Redis is away: the schedule fires later
            await submit_sync(
                app.engine, None, period=sync_period(options.sync, instant(wall_ms()))
            )
        yield

    app.around_workers(at_start)
