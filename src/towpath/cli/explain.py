"""`towpath explain`: why a job is not running."""

from __future__ import annotations

import typer

from towpath.console.arguments import JobArgument, QueueOption, find_job
from towpath.console.verb import Session, verb

EXAMPLES = """
    towpath explain mails/01JB7Q
    towpath explain 01JB7Q --json
"""


async def explain(session: Session, *, job: JobArgument, queue: QueueOption = None) -> None:
    """Tell why a job is not running.

    Also how many are ahead of it, and about how long that takes.
    """
    from towpath.cli.listing import in_words, placed  # noqa: PLC0415 -- slow to import

    async with session.engine() as engine:
        ref = await find_job(engine, job, queue)
        why, position = await engine.explain(ref), await engine.position(ref)
    if session.out.as_json:
        told = {"queue": ref.queue, "id": ref.id, "why": why.why, "text": why.text}
        session.out.object(told | placed(position))
        return
    session.out.line(f"{ref}: {why.text}")
    if position is not None and why.why in _IN_LINE:
        session.out.line(in_words(position))


_IN_LINE = ("behind_lane", "behind_others", "all_busy", "next")
"""Why a job waits that will run when it is its turn: only then a place says something."""


def register(app: typer.Typer) -> None:
    verb(app, "explain", examples=EXAMPLES)(explain)
