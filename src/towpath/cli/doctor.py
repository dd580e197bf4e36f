"""`towpath doctor`: whether the server is fit for work, and what to do where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from towpath.console import exits
from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.cli.findings import Finding

EXAMPLES = """
    towpath doctor
    towpath doctor --url redis://queue.example:6379 --json
    towpath doctor --strict
"""


async def doctor(
    session: Session,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as well.")] = False,
) -> None:
    """See whether the server is fit for work.

    Version, durability, eviction, replicas, clock, scripts, memory, round trips, writing. Every
    finding says what to do about it. Exit code 1 if something is bad: Towpath would not start
    there, or would lose work.
    """
    from towpath.apps.application import applications  # noqa: PLC0415 -- slow to import
    from towpath.cli.findings import Finding, Verdict, findings, of_queues  # noqa: PLC0415 -- slow to import
    from towpath.engine.diagnosis import examine  # noqa: PLC0415 -- slow to import

    settings = session.settings
    checkup = await examine(settings.address, within=settings.timeout)
    found: list[Finding] = [Finding("address", Verdict.OK, settings.shown)]
    found += findings(checkup, settings.address, settings.declared)
    if all(it.verdict is not Verdict.BAD for it in found):
        async with session.engine() as engine:
            found += await of_queues(engine)
    named = ", ".join(it.name for it in applications(settings.applications))
    found.append(Finding("applications", Verdict.OK, named))
    for it in found:
        _tell(session, it)
    worst = max(it.verdict for it in found)
    if worst is Verdict.BAD or (strict and worst is Verdict.WARN):
        raise typer.Exit(exits.FAILED)


def _tell(session: Session, it: Finding) -> None:
    word = it.verdict.name.lower()
    if session.out.as_json:
        told = {"check": it.check, "verdict": word, "found": it.found, "do": it.do or None}
        session.out.object(told | ({"server": it.server} if it.server else {}))
        return
    where = f"{it.server}: " if it.server else ""
    session.out.line(f"{word:<5} {it.check:<11} {where}{it.found}")
    if it.do:
        session.out.line(f"      do          {it.do}")


def register(app: typer.Typer) -> None:
    verb(app, "doctor", examples=EXAMPLES)(doctor)
