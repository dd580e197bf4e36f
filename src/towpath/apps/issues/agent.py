"""The agent of `towpath agent`: takes tasks over HTTP, runs a command for each, reports outcomes.

The command gets the task as JSON on its input, and its plain fields in the environment. It gets
none of Towpath's own variables, and so no key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

import msgspec

from towpath.backoff import Backoff
from towpath.calls.errors import CallFailed
from towpath.clock import Duration, steady
from towpath.console.exits import RemoteRefused
from towpath.console.remote import Remote, ServerAnswer
from towpath.errors import RetryAdvice
from towpath.processes.command import (
    Command,
    CommandError,
    CommandTimedOut,
    Ended,
    require_script,
    run,
)

T = TypeVar("T")

_REQUEST = "/api/v1/request-task"
_RESULT_MOST = 2000
"""Maximum number of characters of a result or a reason that the server keeps."""
_OUTPUT_KEPT = 64 * 1024
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_LAST_REPORT_TIME = 10.0
"""Seconds for the last report about a task: its release, or the outcome of a stopped agent."""
_SHORTEST_BEAT, _LONGEST_BEAT = 0.2, 120.0
_SHORTEST_TRY = 1.0
_STOP_TIME = 5.0
"""Seconds before the end of the lease at which the command is stopped if no heartbeat is answered.
A command that ignores SIGTERM takes one of them; the others are a reserve for a busy machine."""
_HIDDEN_PREFIXES = ("TOWPATH_", "REDIS_URL", "DATABASE_URL")
"""Prefixes of variables that may hold keys, secrets or addresses of Towpath."""
_TASK_VARIABLES = {
    "ID": "task_id", "REPOSITORY": "repository", "ISSUE": "issue_number", "URL": "url",
    "BRANCH": "branch", "ROLE": "role", "TYPE": "task_type", "PR": "pr_number",
}  # fmt: skip


class AgentPlan(NamedTuple):
    """The options of an agent."""

    agent: str
    roles: tuple[str, ...]
    repositories: tuple[str, ...]
    command: tuple[str, ...]
    directory: Path
    wait: Duration
    """How long one request waits for a task."""
    within: Duration
    """How long the command may take."""
    release_code: int
    """The exit code that gives a task back."""


class TaskOutcome(NamedTuple):
    """The outcome of a task."""

    verb: str
    """complete, fail or release; lost = the agent does not hold the task any more."""
    text: str
    """What the server gets as result or reason, or why the task was lost."""
    pr_number: int | None = None

    @property
    def failed(self) -> bool:
        return self.verb == "fail"


class _Lost(Exception):
    """The agent has lost the task, or must give it up."""

    def __init__(self, why: str, *, may_be_held: bool = False) -> None:
        super().__init__(why)
        self.may_be_held = may_be_held
        """Whether the agent may still hold it: it was withdrawn, or no heartbeat was answered."""


class TaskRunner:
    """Takes one task after the other until it is stopped. Calls *log* with lines for people."""

    def __init__(self, remote: Remote, plan: AgentPlan, *, log: Callable[[str], None]) -> None:
        self._remote, self._plan, self._log = remote, plan, log
        self._stopping = asyncio.Event()

    @property
    def stopped(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Take no more tasks; stop the command, and release its task."""
        self._stopping.set()

    def check(self) -> None:
        """Raises CommandUnavailable if the command can't be run."""
        require_script(self._command({}))

    async def next(self) -> Mapping[str, Any] | None:
        """Take a task and run the command for it. Returns the outcome; None if there was no task in
        time, or the agent was stopped. Raises RemoteRefused for a permanent error.
        """
        found = await self._unless_stopped(self._request())
        if found is None or found.content is None:
            return None
        task: dict[str, Any] = found.content
        name = f"{task['repository']}#{task['issue_number']}"
        self._log(f"{name}: {task['task_type']}, task {task['task_id']}")
        outcome = await self._work_on(task, _lease_of(found))
        self._log(f"{name}: {outcome.verb} {outcome.text}".rstrip())
        return {"task_id": task["task_id"], "outcome": outcome.verb, "said": outcome.text}

    # ── requests ─────────────────────────────────────────────────────────────────────────

    async def _request(self) -> ServerAnswer:
        plan = self._plan
        wish = {
            "agent_id": plan.agent,
            "roles": list(plan.roles),
            "repositories": list(plan.repositories),
            "wait": plan.wait.total_seconds(),
        }
        # With the same key, a repeat after a lost response returns the same task.
        headers = {"idempotency-key": uuid.uuid4().hex}
        try:
            return await self._repeat_until_answered(
                lambda: self._remote.post(_REQUEST, wish, headers)
            )
        except asyncio.CancelledError:
            await self._give_back_unseen({**wish, "wait": 0}, headers)
            raise

    async def _give_back_unseen(self, wish: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Release the task of a cancelled request, which the server may have answered already."""
        with suppress(CallFailed, RemoteRefused, TimeoutError):
            async with asyncio.timeout(_LAST_REPORT_TIME):
                found = await self._remote.post(_REQUEST, wish, headers)
            if found.content is not None:
                await self._report(found.content, TaskOutcome("release", "the agent was stopped"))

    async def _repeat_until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat *ask* until the server answers. Raises RemoteRefused for a permanent error."""
        backoff, logged = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), False
        while True:
            try:
                return await ask()
            except (CallFailed, RemoteRefused) as error:
                if error.retry is RetryAdvice.NEVER:
                    raise
                if not logged:
                    self._log(f"waiting for the server: {error}")
                    logged = True
            await asyncio.sleep(backoff.next_pause())

    async def _unless_stopped(self, work: Awaitable[T]) -> T | None:
        """The result of *work*; None if the agent is stopped before, which cancels the work."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await _first(working, stopping)
        finally:
            await _end(working, stopping)
        # The result may have come just before the cancellation; then the caller must use it.
        return None if working.cancelled() else working.result()

    # ── one task ─────────────────────────────────────────────────────────────────────────

    async def _work_on(self, task: Mapping[str, Any], lease: float) -> TaskOutcome:
        """Run the command while the task is held, then report the outcome to the server.

        When this returns or raises, the command and its processes have ended.
        """
        held = asyncio.Event()
        beating = asyncio.create_task(self._send_heartbeats(task, lease, held))
        working = asyncio.create_task(self._run_command(task, held))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await _first(beating, working, stopping)
            # End the command before the report, so that two agents never work on the same task.
            await _end(working)
            lost = _loss(beating)
            if lost is not None and not lost.may_be_held:
                return TaskOutcome("lost", str(lost))
            if not working.cancelled() and not (stopping.done() and working.result().failed):
                outcome = working.result()
            else:
                outcome = TaskOutcome("release", str(lost or "the agent was stopped"))
            return await self._report_outcome(task, outcome, beating, stopping)
        finally:
            await _end(beating, working, stopping)

    async def _report_outcome(
        self,
        task: Mapping[str, Any],
        outcome: TaskOutcome,
        beating: asyncio.Task[None],
        stopping: asyncio.Task[Any],
    ) -> TaskOutcome:
        """Report the outcome while the task is held. A heartbeat may be refused because the server
        has already accepted the outcome: then the answer to the report counts. A stopped agent does
        not wait long for a server that is unreachable.
        """
        reporting = asyncio.create_task(self._report(task, outcome))
        try:
            waiting = [reporting, beating] if stopping.done() else [reporting, beating, stopping]
            await _first(*waiting)
            if not reporting.done():
                await asyncio.wait((reporting,), timeout=_LAST_REPORT_TIME)
        finally:
            await _end(reporting)
        if not reporting.cancelled():
            return reporting.result()
        return TaskOutcome("lost", str(_loss(beating) or f"the server is away; {outcome.text}"))

    async def _send_heartbeats(
        self, task: Mapping[str, Any], lease: float, held: asyncio.Event
    ) -> None:
        """Hold the task while this runs. Raises _Lost.

        Sends the first heartbeat at once, and then sets *held*: the response with the task may have
        taken long. Each lease is counted from the moment before its heartbeat was sent.
        """
        until, path, pause = _stop_at(steady(), lease), _path(task, "heartbeat"), 0.0
        while True:
            await asyncio.sleep(min(pause, max(until - steady(), 0)))
            asked = steady()
            if asked >= until:
                raise _Lost("no heartbeat was answered within the lease", may_be_held=True)
            try:
                # The limit leaves time for another connection if this one does not answer.
                async with asyncio.timeout(min(until - asked, max(lease / 3, _SHORTEST_TRY))):
                    answer = await self._remote.post(path, self._holder_fields(task))
            except TimeoutError:
                pause = 0.0
                continue
            except (CallFailed, RemoteRefused) as error:
                if error.retry is RetryAdvice.NEVER:
                    raise _Lost(str(error)) from error
                pause = min(_FIRST_PAUSE, _pause(lease))
                continue
            if why := answer.content.get("withdrawn"):
                raise _Lost(f"withdrawn: {why}", may_be_held=True)
            lease = answer.content["expires_in"]
            until, pause = _stop_at(asked, lease), _pause(lease)
            held.set()

    async def _report(self, task: Mapping[str, Any], outcome: TaskOutcome) -> TaskOutcome:
        """Report the outcome until the server accepts it. A release is only tried for a while,
        because the lease ends by itself.
        """
        patience = _LAST_REPORT_TIME if outcome.verb == "release" else None
        words = outcome.text[-_RESULT_MOST:]
        body: dict[str, Any] = self._holder_fields(task)
        if outcome.verb == "complete":
            body |= {"result": words}
            body |= {"pr_number": outcome.pr_number} if outcome.pr_number else {}
        else:
            body |= {"reason": words or "no reason given"}
        try:
            async with asyncio.timeout(patience):
                await self._repeat_until_answered(
                    lambda: self._remote.post(_path(task, outcome.verb), body)
                )
        except (CallFailed, RemoteRefused) as error:
            return TaskOutcome("lost", str(error))
        except TimeoutError:
            return TaskOutcome("lost", f"the server is away; {outcome.text}")
        return outcome

    def _holder_fields(self, task: Mapping[str, Any]) -> dict[str, Any]:
        return {"token": task["token"], "agent_id": self._plan.agent}

    # ── the command ──────────────────────────────────────────────────────────────────────

    async def _run_command(self, task: Mapping[str, Any], held: asyncio.Event) -> TaskOutcome:
        """Run the command once the task is *held*. A cancellation ends the command first."""
        await held.wait()
        try:
            ended = await run(self._command(task), msgspec.json.encode(task))
        except CommandTimedOut as error:
            return TaskOutcome("fail", f"{error}. {error.complaint}".strip())
        except (CommandError, OSError) as error:  # OSError: for example a full disk
            return TaskOutcome("release", str(error))
        return self._outcome(ended)

    def _outcome(self, ended: Ended) -> TaskOutcome:
        if ended.code == 0:
            return _read_outcome(ended.output)
        how = f"ended by {_signal(-ended.code)}" if ended.code < 0 else f"exit code {ended.code}"
        verb = "release" if ended.code == self._plan.release_code else "fail"
        return TaskOutcome(verb, f"{how}: {ended.complaint}" if ended.complaint else how)

    def _command(self, task: Mapping[str, Any]) -> Command:
        fields = {
            f"TOWPATH_TASK_{name}": task.get(field) for name, field in _TASK_VARIABLES.items()
        }
        own = {name: str(value) for name, value in fields.items() if value}
        return Command(
            argv=self._plan.command,
            environment={**scrubbed(os.environ), **own},
            directory=self._plan.directory,
            within=self._plan.within,
            largest=_OUTPUT_KEPT,
            only_last=True,
        )


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """*environment* without the variables of Towpath, for a command."""
    return {
        name: value for name, value in environment.items() if not name.startswith(_HIDDEN_PREFIXES)
    }


def _read_outcome(output: bytes) -> TaskOutcome:
    """The outcome of a successful command: the end of its output. A last line of JSON may have
    the result and the pull request.
    """
    text = output.decode(errors="replace").strip()
    with suppress(msgspec.MsgspecError):
        found: Any = msgspec.json.decode(text.rpartition("\n")[2].encode())
        if isinstance(found, dict):
            fields = cast("dict[str, Any]", found)
            number = fields.get("pr_number")
            return TaskOutcome(
                "complete",
                str(fields.get("result") or text),
                number if isinstance(number, int) and number > 0 else None,
            )
    return TaskOutcome("complete", text)


async def _first(*tasks: asyncio.Future[Any]) -> None:
    """Wait until one of *tasks* has ended. Cancels none of them."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel those of *tasks* that still run, and wait until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _loss(beating: asyncio.Task[None]) -> _Lost | None:
    """Why the heartbeat has ended; None while it runs. Raises its error if it is a defect."""
    if not beating.done():
        return None
    error = beating.exception()
    if isinstance(error, _Lost):
        return error
    raise error or AssertionError("a heartbeat ends by an error")


def _path(task: Mapping[str, Any], verb: str) -> str:
    return f"/api/v1/tasks/{quote(task['task_id'], safe='')}/{verb}"


def _lease_of(answer: ServerAnswer) -> float:
    """About how many seconds a new task is held. The first heartbeat returns the exact time."""
    expires = datetime.fromisoformat(answer.content["expires_at"])
    return max(1.0, (expires - parsedate_to_datetime(answer.date)).total_seconds() - 1)


def _stop_at(asked: float, lease: float) -> float:
    """When to stop the command of a task whose *lease* was counted from *asked*."""
    return asked + lease - min(_STOP_TIME, lease / 3)


def _pause(lease: float) -> float:
    return min(max(lease / 3, _SHORTEST_BEAT), _LONGEST_BEAT)


def _signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


async def run_all(
    runner: TaskRunner, *, once: bool, print_end: Callable[[Mapping[str, Any]], None]
) -> bool:
    """Take tasks until the runner is stopped, or one with *once*. Calls *print_end* with each that
    has ended. Returns whether there was one.
    """
    took_one = False
    while not runner.stopped:
        ended = await runner.next()
        if ended is not None:
            took_one = True
            print_end(ended)
        if once:
            break
    return took_one
