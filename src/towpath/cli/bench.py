"""`towpath bench`: how fast this server takes, hands out and settles jobs, from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.engine.url import ServerUrl

EXAMPLES = """
    towpath bench
    towpath bench --jobs 50000 --json
    towpath bench --url redis://queue.example:6379 --yes
"""
_HERE = {"localhost", "127.0.0.1", "::1"}


async def bench(
    session: Session,
    *,
    jobs: Annotated[
        int, typer.Option("--jobs", "-n", min=100, max=10_000_000, help="Jobs in bulk.")
    ] = 10_000,
    batch: Annotated[int, typer.Option(min=1, max=500, help="Jobs in one exchange.")] = 100,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Also on a server elsewhere.")] = False,
) -> None:
    """Measure this server from here.

    Submit, claim and complete, with empty jobs in a queue of its own, which is removed
    afterwards. One process, one call after the other, with leases and tokens as a worker has
    them; no handler's time is in it. Servers on other machines may be busy: they need --yes.
    """
    from towpath.cli.measures import measured  # noqa: PLC0415 -- slow to import
    from towpath.engine.scratch import scratch_queue  # noqa: PLC0415 -- slow to import

    if not _is_here(session.settings.address):
        session.confirm(f"{session.settings.shown} is not on this machine.", yes=yes)
    out = session.out
    async with session.engine() as engine, scratch_queue(engine) as queue:
        facts = engine.facts
        out.note(f"{facts.flavour} {facts.version}, class {facts.durability}, {jobs} jobs")
        async for measure in measured(engine, queue, out, jobs=jobs, batch=batch):
            if out.as_json:
                out.object(measure._asdict())
            else:
                out.line(measure.in_words())


def _is_here(address: ServerUrl) -> bool:
    return all(host in _HERE for host, _ in address.hosts)


def register(app: typer.Typer) -> None:
    verb(app, "bench", examples=EXAMPLES)(bench)
