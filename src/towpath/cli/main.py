"""The `towpath` command: all nouns and verbs together."""

from __future__ import annotations

import sys
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Annotated

import typer

from towpath.cli import (
    bench,
    config,
    dead,
    doctor,
    events,
    explain,
    jobs,
    keys,
    lanes,
    ledger,
    migrate,
    pause,
    queues,
    recurring,
    reviews,
    secrets,
    serve,
    submit,
    top,
    version,
    worker,
)
from towpath.console import exits
from towpath.console.verb import Session, noun

app = typer.Typer(
    name="towpath",
    # Plain help: rich would take longer to load than all the rest, also for each completion.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exits.help_text(),
)


@noun(
    app,
    examples="""
        towpath worker shop.jobs:app
        towpath queues --json
        towpath explain mails/01JB7Q
    """,
)
def towpath(
    session: Session,
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Work that must be done once, in order and on time, on Redis or Valkey.

    The server is named by --url, by TOWPATH_URL or REDIS_URL, or in ./towpath.toml;
    `towpath config` shows what is in force. Times are written 250ms, 10s, 1h30m or 7d.
    """
    if version:
        from towpath.cli.version import tell  # noqa: PLC0415 -- the name is taken by the flag

        return tell(session)
    session.out.note("Say what to do: towpath --help")
    raise typer.Exit(exits.USAGE)


serve.register(app)
worker.register(app)
submit.register(app)
app.add_typer(queues.app, name="queues")
app.add_typer(jobs.app, name="jobs")
app.add_typer(dead.app, name="dead")
explain.register(app)
pause.register(app)
app.add_typer(lanes.app, name="lanes")
app.add_typer(recurring.app, name="recurring")
top.register(app)
doctor.register(app)
config.register(app)
bench.register(app)
app.add_typer(reviews.app, name="reviews")
app.add_typer(events.app, name="events")
app.add_typer(keys.app, name="keys")
secrets.register(app)
app.add_typer(ledger.app, name="ledger")
migrate.register(app)
version.register(app)


def main() -> None:
    """What the installed command runs."""
    sys.excepthook = _say_defect
    # Not `app()`: that would set a hook of its own.
    typer.main.get_command(app)()


def _say_defect(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """The last word on an error that nobody expected: short, unless all of it is wanted.

    It may come from an app's own module, so its place is told.
    """
    if "--debug" in sys.argv:
        sys.__excepthook__(kind, error, at)
        return
    frames = extract_tb(at)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    sys.stderr.write(
        f"refused  defect: {kind.__name__}: {error}{place}\n"
        "do       Say --debug to see where it comes from; report it if that is Towpath.\n"
    )
