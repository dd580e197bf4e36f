"""`towpath worker`: run an app's handlers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from towpath.console.verb import Session, verb
from towpath.errors import InvalidOption

EXAMPLES = """
    towpath worker shop.jobs:app
    towpath worker shop.jobs:app --queues mails,reports=3 --concurrency 20
    towpath worker shop.jobs:app --processes 4
    towpath worker shop.jobs:app --reload
    towpath worker shop.jobs:app --drain
    towpath worker shop.jobs:app --check
"""

AppPath = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Where the Towpath is, as in shop.jobs:app.")
]
Queues = Annotated[
    str | None, typer.Option(metavar="A,B=3", help="Only these, with weights.  [setting]")
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "-c", help="Jobs at once.  [setting]")
]
Processes = Annotated[
    int | None, typer.Option("--processes", "-p", help="Worker processes.  [setting]")
]
Reload = Annotated[
    bool, typer.Option("--reload", help="Restart when source files change, for development.")
]
Grace = Annotated[
    str | None, typer.Option(metavar="TIME", help="For running jobs after SIGTERM.  [setting]")
]
Lease = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long it may be silent.  [setting]")
]
Name = Annotated[str | None, typer.Option(help="What it is called in listings.  [setting]")]
MetricsPort = Annotated[int | None, typer.Option(help="Serve Prometheus metrics there.  [setting]")]
LogFormat = Annotated[
    str | None, typer.Option(metavar="AUTO|HUMAN|JSON", help="How to log.  [setting]")
]
Drain = Annotated[bool, typer.Option("--drain", help="Stop when there is nothing left to run now.")]
OldDrain = Annotated[bool, typer.Option("--burst", hidden=True)]
Check = Annotated[
    bool, typer.Option("--check", help="Check that it could start, and show what it serves.")
]


def worker(
    session: Session,
    *,
    app: AppPath,
    queues: Queues = None,
    concurrency: Concurrency = None,
    processes: Processes = None,
    reload: Reload = False,
    grace: Grace = None,
    lease: Lease = None,
    name: Name = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    drain: Drain = False,
    burst: OldDrain = False,
    check: Check = False,
) -> None:
    """Run the handlers of an app.

    Takes jobs of its queues until a signal ends it.

    SIGTERM or Ctrl-C: take no more, let running jobs finish within the grace time, give back the
    rest. A second one: give back all at once. In Kubernetes, keep --grace a few seconds below
    terminationGracePeriodSeconds. With --json, logs are JSON.

    With --processes, one parent passes signals on and starts a process again that dies; its exit
    code is that of the process that ended worst.
    """
    if burst:
        raise InvalidOption("--burst", "", rule="is now --drain")
    from towpath.cli.running import Running  # noqa: PLC0415 -- slow to import

    wanted: dict[str, Any] = {
        "queues": queues,
        "concurrency": concurrency,
        "processes": processes,
        "grace": grace,
        "lease": lease,
        "name": name,
        "metrics_port": metrics_port,
    }
    logs = {"format": log_format or ("json" if session.out.as_json else None)}
    running = Running(session, app, worker=wanted, log=logs)
    if check:
        running.check()
    elif code := running.run(drain=drain, reload=reload):
        raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    verb(app, "worker", examples=EXAMPLES)(worker)
