"""`towpath submit`: one job, or one per line of a file."""

from __future__ import annotations

from typing import Annotated

import typer

from towpath.console.arguments import QueueArgument, duration, instant, pairs, priority
from towpath.console.verb import Session, verb

EXAMPLES = """
    towpath submit mails '{"to": "anna"}' --priority high --id mail-7
    towpath submit mails @mail.json --delay 10m --wait 15m
    towpath submit reports '"weekly"' --due 2030-01-31T08:00:00Z --lane finance
    zcat mails.jsonl.gz | towpath submit mails --lines --id import-3
"""

Payload = Annotated[
    str, typer.Argument(metavar="PAYLOAD", help="JSON, @FILE, or - for standard input.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Send any bytes, not only JSON.")]
Lines = Annotated[
    bool, typer.Option("--lines", help="One job per line of the file or standard input.")
]
Priority = Annotated[
    str, typer.Option("--priority", metavar="HIGH|0-100", help="Higher runs first.")
]
Delay = Annotated[str | None, typer.Option(metavar="TIME", help="Not before so long from now.")]
Due = Annotated[str | None, typer.Option(metavar="INSTANT", help="Not before then.")]
Lane = Annotated[str | None, typer.Option(help="Jobs of one lane run one at a time, in order.")]
Id = Annotated[
    str | None, typer.Option("--id", help="Same id, same job; with --lines: ID.1, ID.2, …")
]
KeepExisting = Annotated[
    bool,
    typer.Option("--keep-existing", help="Take a job of that id as it is, whatever its payload."),
]
MaxAttempts = Annotated[int | None, typer.Option(min=1, help="Deliveries before it is dead.")]
Keep = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long it can be looked at after its end.")
]
Headers = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="What goes with it; repeat it.")
]
HandlerName = Annotated[str | None, typer.Option(help="The handler, where a queue has several.")]
Wait = Annotated[
    str | None, typer.Option(metavar="TIME", help="Wait for its end and show the result.")
]


async def submit(
    session: Session,
    *,
    queue: QueueArgument,
    payload: Payload = "-",
    raw: Raw = False,
    lines: Lines = False,
    urgency: Priority = "normal",
    delay: Delay = None,
    due: Due = None,
    lane: Lane = None,
    id: Id = None,
    keep_existing: KeepExisting = False,
    max_attempts: MaxAttempts = None,
    keep: Keep = None,
    header: Headers = None,
    handler: HandlerName = None,
    wait: Wait = None,
) -> None:
    """Take jobs in. When this returns they exist.

    With --id a repeat is harmless: the same id is the same job, and the answer says `existed`. With
    another payload it is refused (exit code 4), and the job that exists stays as it is.
    With --wait the exit code tells the end: 0 done, 4 dead or cancelled, 75 not ended in time.
    """
    from towpath.cli.taking import Taking  # noqa: PLC0415 -- slow to import

    headers = pairs("header", header or []) | ({"handler": handler} if handler else {})
    options = {
        "priority": priority(urgency),
        "delay": duration("delay", delay),
        "due": instant("due", due),
        "lane": lane,
        "max_attempts": max_attempts,
        "keep": duration("keep", keep),
        "headers": headers or None,
    }
    options = {name: value for name, value in options.items() if value is not None}
    on_conflict = "keep" if keep_existing else "refuse"
    taking = Taking(session, queue, options, id=id, raw=raw, on_conflict=on_conflict)
    if lines:
        taking.refuse_waiting(wait)
        await taking.every_line(payload)
    else:
        await taking.one(payload, duration("wait", wait))


def register(app: typer.Typer) -> None:
    verb(app, "submit", examples=EXAMPLES)(submit)
