"""`towpath doctor`: checks Redis, queues, the database and applications, and says what to fix."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.console import exits
from towpath.console.verb import Session, open_ledger, verb
from towpath.engine.findings import Finding, Grade, findings, of_queues, of_records
from towpath.errors import InvalidOption, TowpathError

if TYPE_CHECKING:
    from towpath.apps.application import Application
    from towpath.engine.engine import Engine

EXAMPLES = """
    towpath doctor
    towpath doctor --url redis://queue.example:6379 --json
    towpath doctor --strict
"""


async def doctor(
    session: Session,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as failures.")] = False,
) -> None:
    """Check Redis and say what to fix.

    Checks version, durability, eviction, replicas, clock, scripts, memory, round trips and
    writing; then the queues, the database, the applications and the keys of earlier releases. Each
    finding says what to do.

    Exit code 1 if something is bad: Towpath would not start there, or jobs could not be stored.
    Warnings, for example a Redis without persistence or a wrong clock, exit with 0; --strict makes
    them exit with 1.
    """
    from towpath.engine.diagnosis import examine  # noqa: PLC0415 -- slow to import

    settings = session.settings
    checkup = await examine(settings.address, within=settings.timeout)
    found = [Finding("address", Grade.OK, settings.shown)]
    found += findings(checkup, settings.address, settings.declared)
    if all(finding.verdict is not Grade.BAD for finding in found):
        async with session.engine() as engine:
            found += await of_queues(engine)
            found += await of_ledger(session, engine)
            found += await of_applications(session, engine)
            found += await of_old_keys(session)
    for finding in found:
        _show_finding(session, finding)
    worst = max(finding.verdict for finding in found)
    if worst is Grade.BAD or (strict and worst is Grade.WARN):
        raise typer.Exit(exits.FAILED)


def _show_finding(session: Session, finding: Finding) -> None:
    word = finding.verdict.name.lower()
    if session.out.as_json:
        fields = {
            "check": finding.check,
            "verdict": word,
            "found": finding.found,
            "do": finding.do or None,
        }
        session.out.object(fields | ({"server": finding.server} if finding.server else {}))
        return
    where = f"{finding.server}: " if finding.server else ""
    session.out.line(f"{word:<5} {finding.check:<11} {where}{finding.found}")
    if finding.do:
        session.out.line(f"      do          {finding.do}")


async def of_ledger(session: Session, engine: Engine) -> list[Finding]:
    """Findings about the database: whether workers keep their records in another one."""
    from towpath.engine.worker_registry import find_records_elsewhere  # noqa: PLC0415 -- slow to import

    workers = await engine.workers.list()
    if not any(worker.report.recorded for worker in workers):
        return []
    try:
        ledger = open_ledger(session, None)
        async with ledger:
            own = await ledger.identity()
    except InvalidOption as error:
        text = "workers keep records, and no database is set here to compare with theirs"
        return [Finding("ledger", Grade.OK, text, error.rule)]
    except TowpathError as error:
        return [Finding("ledger", Grade.WARN, str(error), error.remedy)]
    found = of_records(find_records_elsewhere(workers, own)) if own else []
    return found or [Finding("ledger", Grade.OK, "the database that workers use, too")]


async def of_old_keys(session: Session) -> list[Finding]:
    """Findings about keys of releases without owners; none if no database can be opened."""
    from towpath.apps.application import applications, raw_queues  # noqa: PLC0415 -- slow to import
    from towpath.ledger.keys.findings import of_keys  # noqa: PLC0415 -- the same

    with suppress(TowpathError):  # other findings report the database or the application
        async with open_ledger(session, None) as ledger:
            old = await ledger.keys.list_without_owner()
        return of_keys(old, raw_queues(applications(session.settings.applications)))
    return []


# ── applications ─────────────────────────────────────────────────────────────────────────

_PROBED_WITHIN = 2.0


async def of_applications(session: Session, engine: Engine) -> list[Finding]:
    """Findings about applications: their names, and the results of their probes."""
    from towpath.apps.application import ApplicationInvalid, applications, tables_of  # noqa: PLC0415 -- slow to import

    check, settings = "applications", session.settings
    try:
        known = applications(settings.applications)
    except ApplicationInvalid as error:
        return [Finding(check, Grade.BAD, str(error), error.remedy)]
    found = [Finding(check, Grade.OK, ", ".join(application.name for application in known))]
    probed = [application for application in known if application.probe]
    if not probed:
        return found
    try:
        ledger = open_ledger(session, None, lambda: tables_of(known))
    except InvalidOption as error:
        return [*found, Finding(check, Grade.OK, "not probed: no database is set", error.rule)]
    async with ledger:
        for application in probed:
            options = settings.of(application.options)
            trouble = await _probe(application, options=options, engine=engine, ledger=ledger)
            found.append(trouble or Finding(check, Grade.OK, f"{application.name} works"))
    return found


async def _probe(application: Application, **given: Any) -> Finding | None:
    """The finding if an application's probe fails; None if it succeeds."""
    from towpath.apps.application import Host  # noqa: PLC0415 -- slow to import
    from towpath.telemetry.logs import Silent  # noqa: PLC0415 -- the same
    from towpath.telemetry.metrics import Metrics  # noqa: PLC0415 -- the same

    host = Host(metrics=Metrics(), log=Silent(), **given)
    serving = application.load(application.service, nullcontext)
    try:
        async with asyncio.timeout(_PROBED_WITHIN), serving(host) as service:
            await application.load(application.probe)(service)
    except TowpathError as error:
        what = f"{application.name}: {error.code}: {error}"
        return Finding("applications", Grade.BAD, what, error.remedy)
    except TimeoutError:
        what = f"{application.name}: its probe timed out after {_PROBED_WITHIN:g} s"
        return Finding("applications", Grade.BAD, what, "Check that the services it uses respond.")
    return None


def register(towpath: typer.Typer) -> None:
    verb(towpath, "doctor", examples=EXAMPLES)(doctor)
