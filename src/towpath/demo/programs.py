"""The programs of the demo: a server with its Redis and database, workers, and a fake GitHub."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from towpath.clock import steady
from towpath.console.exits import DemoFailed
from towpath.console.remote import Remote
from towpath.demo.handlers import FOLDER
from towpath.embedded.errors import EmbeddedError
from towpath.embedded.process import ask_fields
from towpath.processes.launch import follow_parent
from towpath.testing.github.double import TOKEN, GitHubDouble

SECRET = "the-demo-s-webhooks"  # noqa: S105 -- of webhooks that never leave this machine
NAME, WORKERS = "demo", 2
"""The name and the number of the worker processes."""
_COMMAND = "from towpath.cli.main import main; main()"
_READY, _LOG_SHOWN = 120.0, 2000
"""Seconds within which everything must run; characters of a log that an error shows."""
_ENDED = 30.0
_LEASE = "8s"
"""Short, so that the jobs of a killed worker return during the demo."""
_LOOK = 0.05


class Programs(NamedTuple):
    """The running programs, and how to reach them."""

    folder: Path
    notes: Path
    address: str
    login: str
    key: str
    redis: str
    """The URL of Redis."""
    remote: Remote
    agents: Remote
    github: GitHubDouble
    environment: Mapping[str, str]

    # ── the Redis process ────────────────────────────────────────────────────────────────

    def redis_pid(self) -> int:
        """The pid of Redis. Raises OSError, EmbeddedError while it does not answer."""
        path = Path(unquote(urlsplit(self.redis).path))
        return int(ask_fields(path, "INFO", "server")["process_id"])

    def redis_is_another(self, pid: int) -> bool:
        """Whether a Redis answers that is not the process *pid*."""
        try:
            return self.redis_pid() != pid
        except (OSError, EmbeddedError):
            return False


async def wait_until(for_what: str, fact: Any, *, within: float = _READY) -> None:
    """Wait until *fact* returns True. Raises DemoFailed after *within* seconds."""
    end = steady() + within
    while not await asyncio.to_thread(fact):
        if steady() > end:
            raise DemoFailed(f"{for_what} did not appear within {within:g} s")
        await asyncio.sleep(_LOOK)


# ── start and end ────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[Programs]:
    """Start all programs in the order of their dependencies; end them in reverse."""
    notes, scratch = folder / "notes", folder / "scratch"
    notes.mkdir()
    scratch.mkdir()
    with GitHubDouble(live=False) as github:
        environment = _environment(github.url) | {FOLDER: str(notes), "TMPDIR": str(scratch)}
        async with _program(["up", "--data", str(folder / "data"), "--port", "0", "--json"],
                            folder, environment) as server:  # fmt: skip
            started = await _read_start(server, folder)
            secret, link = _read(started["api_key_file"]), started["login_file"]
            # Show the link itself only in a terminal, because others may read a log.
            login = _read(link) if sys.stderr.isatty() else f"the link in {link}"
            hook = f"{started['address']}/api/v1/webhooks/github"
            github.listen(hook, secret=SECRET)
            words = ["worker", "towpath.demo.handlers:app", "--name", NAME]
            words += ["--url", started["store"]]
            words += ["--processes", str(WORKERS), "--lease", _LEASE, "--grace", "5s"]
            async with (
                Remote(started["address"], secret) as remote,
                Remote(started["address"], secret) as agents,
                _program(words, folder, environment),
            ):
                yield Programs(
                    folder, notes, started["address"], login, secret, started["store"],
                    remote, agents, github, environment,
                )  # fmt: skip


def _read(file: str) -> str:
    """The text of a file that `towpath up` wrote, readable by its owner only."""
    return Path(file).read_text().strip()


def _environment(github: str) -> dict[str, str]:
    """The environment of the programs, without the user's own settings."""
    ours = ("TOWPATH_", "REDIS_", "DATABASE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    settings = {
        "CALLS__ALLOW": "127.0.0.1",
        "REVIEWS__GITHUB_SECRETS": SECRET,
        "REVIEWS__GITHUB_TOKEN": TOKEN,
        "REVIEWS__GITHUB_HOST": github,
        "REVIEWS__REVIEWER_FUNCTION": "towpath.demo.handlers:review",
        "ISSUES__GITHUB_SECRETS": SECRET,
        "ISSUES__GITHUB_TOKEN": TOKEN,
        "ISSUES__GITHUB_HOST": github,
        "ISSUES__LEASE": _LEASE,
        "ISSUES__LOOK": "0.5s",
    }
    return kept | {f"TOWPATH_{name}": value for name, value in settings.items()}


@asynccontextmanager
async def _program(
    words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a `towpath` command while the block runs; it ends with this process at the latest."""
    with log_of(folder, words[0]).open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *follow_parent(), sys.executable, "-c", _COMMAND, *words,
            cwd=folder, env=dict(environment), start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_ENDED):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def log_of(folder: Path, command: str) -> Path:
    """The log file of a command."""
    return folder / f"{command}.log"


async def _read_start(server: asyncio.subprocess.Process, folder: Path) -> dict[str, Any]:
    """The JSON that `towpath up` prints when it serves. Raises DemoFailed with its log's end."""
    assert server.stdout is not None  # noqa: S101 -- it was asked for
    with suppress(TimeoutError):
        async with asyncio.timeout(_READY):
            if line := await server.stdout.readline():
                return json.loads(line)
    words = await asyncio.to_thread(log_of(folder, "up").read_text, errors="replace")
    raise DemoFailed(f"the server did not start: {words[-_LOG_SHOWN:].strip()}")


async def upload_files(programs: Programs, files: Sequence[Path]) -> list[dict[str, Any]]:
    """Upload *files* with `towpath upload`; returns what it prints for each of them."""
    words = ["upload", *map(str, files), "--server", programs.address]
    words += ["--chunk-size", "1m", "--json"]
    with log_of(programs.folder, "upload").open("ab") as log:
        sending = await asyncio.create_subprocess_exec(
            *follow_parent(), sys.executable, "-c", _COMMAND, *words, cwd=programs.folder,
            env={**programs.environment, "TOWPATH_API_KEY": programs.key}, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        output, _ = await sending.communicate()
    except asyncio.CancelledError:
        sending.kill()
        await sending.wait()
        raise
    return [json.loads(line) for line in output.splitlines()]
