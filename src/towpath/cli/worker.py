"""`towpath worker`: run an app's handlers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from towpath.console.arguments import LogFormat
from towpath.console.verb import Session, verb

EXAMPLES = """
    towpath worker shop.jobs:app
    towpath worker shop.jobs:app --queues mails,reports=3 --concurrency 20
    towpath worker shop.jobs:app --processes 4
    towpath worker shop.jobs:app --reload
    towpath worker shop.jobs:app --drain
    towpath worker shop.jobs:app --check
"""

AppPath = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The app, as MODULE:NAME: shop.jobs:app.")
]
Queues = Annotated[
    str | None,
    typer.Option(
        metavar="A,B=3", help="Only these queues, with weights: mails,reports=3.  [setting]"
    ),
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "-c", help="How many jobs run at once.  [setting]")
]
Processes = Annotated[
    int | None, typer.Option("--processes", "-p", help="How many worker processes.  [setting]")
]
Reload = Annotated[
    bool, typer.Option("--reload", help="Restart when source files change, for development.")
]
Grace = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time for running jobs after SIGTERM.  [setting]")
]
Lease = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long a worker may be silent.  [setting]")
]
Name = Annotated[str | None, typer.Option(help="Name in listings.  [setting]")]
MetricsPort = Annotated[int | None, typer.Option(help="Port for Prometheus metrics.  [setting]")]
Drain = Annotated[bool, typer.Option("--drain", help="Stop when there is nothing left to run now.")]
Check = Annotated[
    bool, typer.Option("--check", help="Check that it can start, show its queues, then exit.")
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
    check: Check = False,
) -> None:
    """Run the handlers of an app.

    Runs jobs of its queues until it is stopped.

    SIGTERM or Ctrl-C: claim no more jobs, let running jobs finish within the grace time, give back
    the rest. A second signal gives back all jobs at once. In Kubernetes, keep --grace a few
    seconds below terminationGracePeriodSeconds. With --json, logs are JSON.

    With --processes, a parent process passes signals on and replaces worker processes that die.
    Its exit code is the worst one of its processes.
    """
    from towpath.cli.running import WorkerRun  # noqa: PLC0415 -- slow to import

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
    running = WorkerRun(session, app, worker=wanted, log=logs)
    if check:
        running.check()
    elif code := running.run(drain=drain, reload=reload):
        raise typer.Exit(code)


def register(towpath: typer.Typer) -> None:
    verb(towpath, "worker", examples=EXAMPLES)(worker)
