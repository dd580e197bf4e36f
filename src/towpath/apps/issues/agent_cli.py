"""`towpath agent`: any command as an agent that works on issues."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from towpath.clock import parse_duration
from towpath.console import exits
from towpath.console.exits import NotInstalled
from towpath.console.verb import Session, verb

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_ENDED_BY = (signal.SIGTERM, signal.SIGINT)

Words = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="The command to run for each task.")
]
Roles = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only tasks of these roles. [default: all]")
]
Repositories = Annotated[
    str | None, typer.Option(metavar="OWNER/NAME,…", help="Only these repositories. [default: all]")
]
Name = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="The agent's name.  [default: host name and pid]"),
]
Wait = Annotated[
    str, typer.Option(metavar="TIME", help="How long a request waits for a task, at most 60s.")
]
Within = Annotated[
    str, typer.Option("--limit", metavar="TIME", help="How long the command may take.")
]
Directory = Annotated[Path, typer.Option(help="Directory to run the command in.")]
ReleaseCode = Annotated[
    int, typer.Option(min=1, max=255, help="The exit code that gives the task back.")
]
Once = Annotated[
    bool, typer.Option("--once", help="Work on one task, then exit; code 75 if there is none.")
]
Server = Annotated[
    str | None,
    typer.Option("--api-url", metavar="URL", help="URL of the HTTP server.  [setting: api_url]"),
]


@verb(
    app,
    "agent",
    examples="""
        towpath agent --roles backend -- ./solve.sh
        towpath agent --once --wait 0s -- python solve.py
        towpath agent --repositories octo/repo --limit 2h -- claude -p "Solve the issue on stdin."
    """,
)
async def agent(
    session: Session,
    *,
    command: Words,
    roles: Roles = None,
    repositories: Repositories = None,
    name: Name = None,
    wait: Wait = "30s",
    limit: Within = "1h",
    directory: Directory = Path(),
    release_code: ReleaseCode = exits.LATER,
    once: Once = False,
    api_url: Server = None,
) -> None:
    """Work on issues: run a command for each task that the server hands out.

    The command gets the task as JSON on standard input, and its plain fields as TOWPATH_TASK_…
    variables: ID, REPOSITORY, ISSUE, URL, BRANCH, ROLE, TYPE, PR. Heartbeats hold the task while
    the command runs. Exit code 0 completes the task; the end of the output is its result. The exit
    code of --release-code gives the task back. Any other code is a failed attempt.

    The key comes from TOWPATH_API_KEY or TOWPATH_API_KEY_FILE; the command does not see it. When
    the task is lost or withdrawn, the command is stopped. SIGTERM and Ctrl-C stop the command and
    give the task back.
    """
    try:
        from towpath.console.remote import Remote  # noqa: PLC0415 -- slow to import, and an extra
    except ModuleNotFoundError as error:
        raise NotInstalled(error.name or "a library", extra="server") from error
    from towpath.apps.issues.agent import AgentPlan, TaskRunner, run_all  # noqa: PLC0415 -- the same

    plan = AgentPlan(
        agent=name or f"{socket.gethostname().split('.')[0]}-{os.getpid()}",
        roles=_listed(roles),
        repositories=_listed(repositories),
        command=tuple(command),
        directory=directory,
        wait=parse_duration("wait", wait),
        within=parse_duration("limit", limit),
        release_code=release_code,
    )
    async with Remote.of(session, api_url) as remote:
        runner = TaskRunner(remote, plan, log=session.out.note)
        runner.check()
        for number in _ENDED_BY:
            asyncio.get_running_loop().add_signal_handler(number, runner.stop)
        took_one = await run_all(runner, once=once, print_end=session.out.object)
    if once and not took_one and not runner.stopped:
        session.out.note("there is no task now")
        raise typer.Exit(exits.LATER)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
