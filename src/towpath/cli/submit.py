"""`towpath submit`: one job, or one per line of a file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import cached_property, partial
from typing import Annotated, Any

import typer.main
from typer.core import TyperCommand

from towpath.console.arguments import QueueArgument, duration
from towpath.console.verb import Session, verb
from towpath.errors import InvalidOption

EXAMPLES = """
    towpath submit mails '{"to": "anna"}' --priority high --id mail-7
    towpath submit mails @mail.json --delay 10m --wait 15m
    towpath submit reminders '"pay"' --id order-7 --delay 30m --replace
    towpath submit reports '"weekly"' --due 2030-01-31T08:00:00Z --lane finance
    towpath submit reports '"weekly"' --retry listed:1m,10m,1h
    zcat mails.jsonl.gz | towpath submit mails --lines --id import-3
"""

Payload = Annotated[
    str, typer.Argument(metavar="PAYLOAD", help="JSON, @FILE, or - for standard input.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Send any bytes, not only JSON.")]
Lines = Annotated[
    bool, typer.Option("--lines", help="One job per line of the file or standard input.")
]
KeepExisting = Annotated[
    bool,
    typer.Option(
        "--keep-existing", help="Keep an existing job with that id, whatever its payload."
    ),
]
Replace = Annotated[
    bool,
    typer.Option("--replace", help="Replace the waiting job with that id, or create it."),
]
Record = Annotated[
    bool,
    typer.Option("--record", help="For a handler with record=True: create its record."),
]
HandlerName = Annotated[
    str | None, typer.Option(help="The handler's name, if the queue has several.")
]
Wait = Annotated[
    str | None, typer.Option(metavar="TIME", help="Wait for the job and show its result.")
]


def command_with_job_fields(
    body: Callable[..., Any], name: str, *, examples: str, but: Collection[str] = ()
) -> type[TyperCommand]:
    """A command class for *body* that adds an option for each field of a job, except those in
    *but*. The options are created when they are needed, because importing the fields is slow.
    """

    class Command(TyperCommand):
        @cached_property
        def _whole(self) -> Any:
            from towpath.cli.job_input import field_parameters  # noqa: PLC0415 -- slow to import

            signature = inspect.signature(body, eval_str=True)
            own = list(signature.parameters.values())[:-1]
            fields = [parameter for parameter in field_parameters() if parameter.name not in but]
            whole: Any = partial(body)
            whole.__signature__ = signature.replace(parameters=[*own, *fields])
            whole.__doc__, whole.__name__ = body.__doc__, body.__name__
            app = typer.Typer(add_completion=False)
            verb(app, name, examples=examples)(whole)
            return typer.main.get_command(app)

        def get_params(self, ctx: Any) -> list[Any]:
            return self._whole.get_params(ctx)

        def invoke(self, ctx: Any) -> Any:
            return self._whole.invoke(ctx)

    return Command


async def submit(
    session: Session,
    *,
    queue: QueueArgument,
    payload: Payload = "-",
    raw: Raw = False,
    lines: Lines = False,
    keep_existing: KeepExisting = False,
    replace: Replace = False,
    record: Record = False,
    handler: HandlerName = None,
    wait: Wait = None,
    **said: Any,
) -> None:
    """Submit jobs. Returns once they are stored.

    With --id, repeating the command is safe: the same id is the same job, and the answer says
    `existed`. Another payload under the same id is refused (exit code 4). With --replace the new
    job replaces the waiting one, unless it is running (exit code 4). With --lines the ids are
    ID.1, ID.2, … With --wait the exit code is the outcome: 0 done, 4 dead or cancelled, 75 not
    ended in time.
    """
    from towpath.cli.job_input import JobSubmitter, options_in  # noqa: PLC0415 -- slow to import

    if handler is not None:
        said["headers"] = [*(said["headers"] or ()), f"handler={handler}"]
    options = options_in(said)
    id = options.pop("id", None)
    if replace and (lines or keep_existing):
        raise InvalidOption(
            "replace", replace, rule="can't be combined with --lines or --keep-existing"
        )
    on_conflict = "replace" if replace else "keep" if keep_existing else "refuse"
    taking = JobSubmitter(session, queue, options, id=id, raw=raw, on_conflict=on_conflict)
    if record and lines:
        raise InvalidOption("record", record, rule="can't be combined with --lines")
    if record:
        await taking.one_record(payload, duration("wait", wait))
    elif not lines:
        await taking.one(payload, duration("wait", wait))
    elif wait is None:
        await taking.every_line(payload)
    else:
        raise InvalidOption("wait", wait, rule="can't be combined with --lines")


def register(towpath: typer.Typer) -> None:
    cls = command_with_job_fields(submit, "submit", examples=EXAMPLES)
    verb(towpath, "submit", examples=EXAMPLES, cls=cls)(submit)
