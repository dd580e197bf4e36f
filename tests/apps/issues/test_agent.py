"""`towpath agent`: runs any command for one task after the other, and reports each outcome."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.issues.served import REPOSITORY, ServedIssues
from tests.programs import COMMAND, Program
from tests.waiting import HANGS, eventually, eventually_async
from towpath.apps.issues.options import IssuesOptions
from towpath.clock import milliseconds, seconds

WITHIN = HANGS


@pytest.fixture
def options() -> IssuesOptions:
    """Agents that are silent for 12 s lose their task; they send a heartbeat every 4 s."""
    return IssuesOptions(lease=seconds(12), look=milliseconds(100))


class Agent:
    """A running `towpath agent`."""

    def __init__(self, process: Program[str]) -> None:
        self.process = process

    async def ended(self) -> tuple[int, list[Any], str]:
        """Returns its exit code, its standard output and its standard error."""
        out, err = await asyncio.to_thread(self.process.communicate, timeout=WITHIN)
        return self.process.wait(), [json.loads(line) for line in out.splitlines()], err

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@pytest.fixture
async def agents(served: ServedIssues, tmp_path: Path) -> AsyncIterator[Any]:
    """Starts agents: `agents("--once", command=[…])`."""
    started: list[Program[str]] = []

    def start(*words: str, command: list[str], key: str = served.key, **env: str) -> Agent:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TOWPATH_")}
        own = {"TOWPATH_API_URL": served.address, "TOWPATH_API_KEY": key, **env}
        process: Program[str] = Program(
            [COMMAND, "agent", "--agent", "a-1", *words, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, **own},
            cwd=tmp_path,
        )
        started.append(process)
        return Agent(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


async def is_there(path: Path) -> None:
    await asyncio.to_thread(eventually, path.exists, within=WITHIN)


class TestACommand:
    @pytest.fixture
    def options(self) -> IssuesOptions:
        """A lease so long that no task is lost on a busy machine."""
        return IssuesOptions(look=milliseconds(100))

    async def test_a_command_gets_the_task_and_no_key_of_towpath(
        self, served: ServedIssues, agents: Any, tmp_path: Path
    ) -> None:
        await served.put_issue(
            7, title="Repair $(touch pwned)", body="`touch pwned`", labels=["P1"]
        )
        script = "cat > task.json; env > env.txt; echo first; echo 'Repaired it.'"
        secrets = {"REDIS_URL": "redis://:secret@example/", "TOWPATH_PASSWORD": "secret"}
        code, told, _ = await agents("--once", command=sh(script), **secrets).ended()
        assert code == 0
        assert told[0]["outcome"] == "complete"
        task = json.loads((tmp_path / "task.json").read_text())
        assert (task["issue_number"], task["title"]) == (7, "Repair $(touch pwned)")
        lines = (tmp_path / "env.txt").read_text().splitlines()
        seen = {name: value for name, _, value in (line.partition("=") for line in lines)}
        assert seen["TOWPATH_TASK_REPOSITORY"] == REPOSITORY
        assert seen["TOWPATH_TASK_ISSUE"] == "7"
        assert seen["TOWPATH_TASK_ID"] == task["task_id"]
        assert seen["TOWPATH_TASK_BRANCH"] == task["branch"]
        own = {name for name in seen if name.startswith(("TOWPATH_", "REDIS", "DATABASE"))}
        assert all(name.startswith("TOWPATH_TASK_") for name in own), own
        assert not any(served.key in value or "secret" in value for value in seen.values())
        assert not (tmp_path / "pwned").exists()
        issue = await served.get_issue(7)
        assert issue["holder"] is None
        assert issue["withheld"] == "completed"

    @pytest.mark.parametrize(
        ("script", "outcome", "facts"),
        [
            ("echo no tests >&2; exit 3", "fail", ["3", "no tests"]),
            ("echo not mine >&2; exit 75", "release", ["75", "not mine"]),
            ("kill -9 $$", "fail", ["SIGKILL"]),
            ("sleep 1000", "fail", ["0:00:02"]),
            ('echo working; echo \'{"pr_number": 31, "result": "ok"}\'', "complete", ["ok"]),
            ("head -c 300000 /dev/zero | tr '\\0' x; echo; echo end", "complete", ["end"]),
        ],
    )
    async def test_the_exit_code_of_a_command_decides_the_outcome_of_its_task(
        self, served: ServedIssues, agents: Any, script: str, outcome: str, facts: list[str]
    ) -> None:
        await served.put_issue(7)
        agent = agents("--once", "--limit", "2s", command=sh(script))
        code, [told], err = await agent.ended()
        assert code == 0, err
        assert told["outcome"] == outcome
        assert [fact for fact in facts if fact not in told["said"]] == []
        issue = await served.get_issue(7)
        assert issue["holder"] is None
        assert issue["pr_number"] == (31 if "31" in script else None)

    async def test_a_command_that_does_not_exist_is_refused_before_a_task_is_requested(
        self, served: ServedIssues, agents: Any
    ) -> None:
        await served.put_issue(7)
        code, told, err = await agents("--once", command=["./no-such-program"]).ended()
        assert (code, told) == (75, [])
        assert "command_unavailable" in err
        assert "./no-such-program" in err
        assert (await served.get_issue(7))["outcome"] is None


class TestAnAgent:
    async def test_an_agent_holds_its_task_while_the_command_runs(
        self, served: ServedIssues, agents: Any, tmp_path: Path
    ) -> None:
        await served.put_issue(7)
        agent = agents("--once", command=sh("touch began; until test -e go; do sleep 0.05; done"))
        await is_there(tmp_path / "began")
        first = (await served.get_issue(7))["expires_at"]

        async def renewed_twice() -> bool:
            issue = await served.get_issue(7)
            assert issue["holder"] == "a-1"
            return issue["expires_at"] > first and await served.take() is None

        await eventually_async(renewed_twice)
        (tmp_path / "go").touch()
        assert (await agent.ended())[1][0]["outcome"] == "complete"

    async def test_a_stopped_agent_releases_its_task(
        self, served: ServedIssues, agents: Any, tmp_path: Path
    ) -> None:
        await served.put_issue(7)
        agent = agents(
            command=sh("trap 'touch stopped; exit 1' TERM; touch began; sleep 1000 & wait")
        )
        await is_there(tmp_path / "began")
        agent.signal(signal.SIGTERM)
        code, [told], _ = await agent.ended()
        assert (code, told["outcome"]) == (0, "release")
        assert (tmp_path / "stopped").exists()
        assert (await served.take())["issue_number"] == 7

    async def test_an_agent_stops_its_command_when_the_task_is_lost(
        self, served: ServedIssues, agents: Any, tmp_path: Path
    ) -> None:
        await served.put_issue(7)
        agent = agents("--once", command=sh("touch began; sleep 1000; touch went-on"))
        await is_there(tmp_path / "began")
        place = REPOSITORY.replace("/", "%2F")
        taken = await served.client.post(f"/api/v1/issues/{place}/7/release", json={})
        assert taken.status_code == 200
        code, [told], _ = await agent.ended()
        assert (code, told["outcome"]) == (0, "lost")
        assert not (tmp_path / "went-on").exists()

    async def test_an_agent_stops_its_command_when_the_issue_is_closed(
        self, served: ServedIssues, agents: Any, tmp_path: Path
    ) -> None:
        await served.put_issue(7)
        agent = agents("--once", command=sh("touch began; sleep 1000"))
        await is_there(tmp_path / "began")
        await served.put_issue(7, state="closed")
        _, [told], _ = await agent.ended()
        assert told["outcome"] == "release"
        assert "closed" in told["said"]

    async def test_an_agent_works_on_one_task_after_the_other_until_it_is_stopped(
        self, served: ServedIssues, agents: Any, tmp_path: Path
    ) -> None:
        agent = agents(command=sh("echo $TOWPATH_TASK_ISSUE >> done.txt"))

        async def waits() -> bool:
            return served.waiting == 1

        await eventually_async(waits)  # it asks for a task, and there is none
        for number in (1, 2, 3):
            await served.put_issue(number)
        done = tmp_path / "done.txt"
        await asyncio.to_thread(
            eventually, lambda: done.exists() and len(done.read_text().split()) == 3
        )
        await eventually_async(waits)
        agent.signal(signal.SIGINT)
        code, told, _ = await agent.ended()
        assert (code, [line["outcome"] for line in told]) == (0, ["complete"] * 3)
        assert done.read_text().split() == ["1", "2", "3"]

    async def test_an_agent_exits_with_75_if_there_is_no_task(self, agents: Any) -> None:
        code, told, err = await agents("--once", "--wait", "0s", command=["true"]).ended()
        assert (code, told) == (75, [])
        assert "refused" not in err

    async def test_an_agent_without_the_scope_is_refused(
        self, served: ServedIssues, agents: Any
    ) -> None:
        reader = await served.client_key("read")
        code, told, err = await agents("--once", command=["true"], key=reader).ended()
        assert (code, told) == (1, [])
        assert "scope_missing" in err
        assert reader not in err
