"""`towpath agent` loses its tasks in every way, and no issue ever has two commands at a time.

The command holds a lock for its issue until all of its processes have ended. A command that finds
the lock taken writes so into the journal.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.amounts import amount, slow
from tests.apps.issues.served import REPOSITORY, ServedIssues, issues_served
from tests.programs import COMMAND, Program
from tests.server.serving import RunningServer, up
from tests.waiting import HANGS, eventually, eventually_async
from towpath.apps.issues.options import IssuesOptions
from towpath.clock import Duration, milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.testing.proxy import Faults, Hole, Proxy

LOCKING = Path(__file__).with_name("locking_command.py")
PLACE = REPOSITORY.replace("/", "%2F")
KINDS = ["heeding", "deaf", "parent"]
two_kinds = pytest.mark.parametrize("kind", ["heeding", "deaf", pytest.param("parent", marks=slow)])


class Agents:
    """Starts `towpath agent` with the locking command, and reads the journal of the commands."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def start(
        self, address: str, key: str, *words: str, name: str = "a-1", kind: str = "heeding"
    ) -> Program[str]:
        command = [sys.executable, str(LOCKING), str(self._folder), kind]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TOWPATH_")}
        process: Program[str] = Program(
            [COMMAND, "agent", "--agent", name, "--wait", "5s", *words, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**inherited, "TOWPATH_API_URL": address, "TOWPATH_API_KEY": key},
            cwd=self._folder,
        )
        self._stack.callback(process.communicate)
        self._stack.callback(process.kill)
        return process

    def lines(self, word: str) -> list[list[str]]:
        journal = self._folder / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(word)]

    def end_commands(self) -> None:
        """End the children of a killed agent's command: the system ends only the command itself."""
        for _, leader in self.lines("began"):
            with suppress(ProcessLookupError):
                os.killpg(int(leader), signal.SIGKILL)

    @property
    def begun(self) -> int:
        return len(self.lines("began"))

    async def have_begun(self, count: int) -> None:
        """Waits until *count* commands began. Fails if one began beside another one."""

        async def there() -> bool:
            assert self.lines("second") == []
            return self.begun >= count

        await eventually_async(there)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    with ExitStack() as stack:
        agents = Agents(tmp_path, stack)
        stack.callback(agents.end_commands)
        yield agents


@pytest.fixture
def lease() -> Duration:
    """Agents that send no heartbeat for this time lose their task."""
    return seconds(6)


@pytest.fixture
async def served(
    server: EmbeddedServer, prepared_file_url: str, lease: Duration
) -> AsyncIterator[ServedIssues]:
    options = IssuesOptions(lease=lease, look=milliseconds(100), attempts=1000)
    async with issues_served(server.url, prepared_file_url, options) as running:
        yield running


@pytest.fixture
async def proxy(served: ServedIssues) -> AsyncIterator[Proxy]:
    """A proxy before the server that can fail."""
    port = int(served.address.rpartition(":")[2])
    async with Proxy(("127.0.0.1", port), Faults(), tcp=True) as line:
        yield line


def through(proxy: Proxy) -> str:
    return proxy.url.replace("redis:", "http:")


async def take_away(served: ServedIssues, number: int) -> None:
    answer = await served.client.post(f"/api/v1/issues/{PLACE}/{number}/release", json={})
    assert answer.status_code in (200, 409), answer.text


async def is_gone(pid: str) -> None:
    """Wait until a command has ended and its parent has read its exit code."""
    await asyncio.to_thread(eventually, lambda: not Path(f"/proc/{pid}").exists())


async def ended(agent: Program[str]) -> tuple[int, Counter[str]]:
    """Returns the exit code of a stopped agent, and the number of its tasks by outcome."""
    out, _ = await asyncio.to_thread(agent.communicate, timeout=HANGS)
    return agent.wait(), Counter(json.loads(line)["outcome"] for line in out.splitlines())


class TestTheCommandOfALostTask:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_the_command_of_a_lost_task_ends_before_the_next_one_begins(
        self, served: ServedIssues, agents: Agents, kind: str
    ) -> None:
        await served.put_issue(7)
        agent = agents.start(served.address, served.key, kind=kind)
        losses = amount(1, thoroughly=3)
        for count in range(1, losses + 1):
            await agents.have_begun(count)
            await take_away(served, 7)
        await agents.have_begun(losses + 1)
        agent.send_signal(signal.SIGTERM)
        code, outcomes = await ended(agent)
        assert (code, outcomes["lost"], outcomes["complete"]) == (0, losses, 0)

    @two_kinds
    async def test_the_command_of_a_withdrawn_task_ends_before_that_of_another_issue_begins(
        self, served: ServedIssues, agents: Agents, kind: str
    ) -> None:
        """A closed issue is withdrawn: its task is released, and the agent takes the next one."""
        await served.put_issue(7)
        agents.start(served.address, served.key, kind=kind)
        await agents.have_begun(1)
        await served.put_issue(8)
        await served.put_issue(7, state="closed")
        await agents.have_begun(2)
        [[_, first], [issue, _]] = agents.lines("began")
        assert issue == "8"
        await is_gone(first)
        assert (await served.get_issue(7))["holder"] is None
        await served.put_issue(7, state="open")
        await served.put_issue(8, state="closed")
        await agents.have_begun(3)

    @two_kinds
    async def test_a_stopped_agent_ends_its_command_and_releases_the_task(
        self, served: ServedIssues, agents: Agents, kind: str
    ) -> None:
        await served.put_issue(7)
        agent = agents.start(served.address, served.key, kind=kind)
        await agents.have_begun(1)
        agent.send_signal(signal.SIGINT)
        assert await ended(agent) == (0, {"release": 1})
        assert (await served.take())["issue_number"] == 7
        again = agents.start(served.address, served.key, kind=kind)
        await served.put_issue(7, state="closed")
        await served.put_issue(7, state="open")
        await agents.have_begun(2)
        again.kill()


class TestAnAgentThatGetsNoAnswers:
    @pytest.fixture
    def lease(self) -> Duration:
        """The command is stopped five seconds before the end: enough on a busy machine."""
        return seconds(15)

    @pytest.mark.parametrize("fault", ["requests", pytest.param("replies", marks=slow), "reset"])
    async def test_an_agent_without_answers_ends_its_command_before_another_agent_begins(
        self, served: ServedIssues, agents: Agents, proxy: Proxy, fault: str
    ) -> None:
        """The other agent gets the issue when the lease ends."""
        await served.put_issue(7)
        agents.start(through(proxy), served.key, kind="deaf")
        await agents.have_begun(1)
        agents.start(served.address, served.key, name="a-2")
        proxy.faults.hole = Hole.REPLIES if fault == "replies" else Hole.REQUESTS
        proxy.faults.reset = fault == "reset"

        async def taken_over() -> bool:
            if fault == "reset":
                await proxy.drop_all()
            assert agents.lines("second") == []
            return agents.begun == 2

        await eventually_async(taken_over)
        assert (await served.get_issue(7))["holder"] == "a-2"


class TestAServerOfIssues:
    @pytest.fixture
    def running(self, tmp_path: Path) -> Iterator[RunningServer]:
        home = tmp_path / "home"
        home.mkdir()
        with up(home, TOWPATH_ISSUES__LEASE="6s", TOWPATH_ISSUES__LOOK="100ms") as server:
            issue = {"repository": REPOSITORY, "number": 7, "title": "Issue"}
            assert server.client().post("/api/v1/issues", json=issue).status_code == 200
            yield server

    @pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
    async def test_no_command_runs_after_the_server_was_silent_for_longer_than_the_lease(
        self, running: RunningServer, agents: Agents, number: signal.Signals
    ) -> None:
        agents.start(running.address, running.key)
        await agents.have_begun(1)
        running.process.send_signal(number)
        [[_, pid]] = agents.lines("began")
        try:
            await is_gone(pid)
        finally:
            running.process.send_signal(signal.SIGCONT)
        if number == signal.SIGSTOP:
            await agents.have_begun(2)


async def test_no_issue_has_two_commands_over_many_losses(
    served: ServedIssues, agents: Agents, proxy: Proxy
) -> None:
    """People take tasks away, close and reopen issues, and connections to the server fail."""
    seed = int(os.environ.get("LOST_TASKS_SEED", random.randrange(2**32)))
    print(f"LOST_TASKS_SEED={seed}")  # noqa: T201 -- shown when the test fails
    chance = random.Random(seed)
    for number in (1, 2):
        await served.put_issue(number)
    agents.start(through(proxy), served.key, kind=chance.choice(KINDS))
    for round in range(1, amount(5, thoroughly=100)):
        await agents.have_begun(round)
        [number, pid] = agents.lines("began")[-1]
        match chance.choice(["taken", "closed", "hole", "reset"]):
            case "taken":
                await take_away(served, int(number))
            case "closed":
                await served.put_issue(int(number), state="closed")
                await served.put_issue(int(number), state="open")
            case fault:
                proxy.faults.hole = chance.choice([Hole.REQUESTS, Hole.REPLIES])
                proxy.faults.reset = fault == "reset"
                await proxy.drop_all()
                await is_gone(pid)
                proxy.faults.hole, proxy.faults.reset = Hole.NOTHING, False
                await proxy.drop_all()  # requests that were swallowed have no answer
