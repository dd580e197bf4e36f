"""Agents over HTTP that race for issues, and a check that no issue has two holders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec

from benchmarks.web.account import Violation
from benchmarks.web.serving import KEY
from benchmarks.web.wire import HttpAnswer, HttpClient, Place, client, request

REPOSITORY = "octo/repo"
RELEASED = 0.2
"""The share of tasks that an agent gives back, for another one to take."""
_PAUSE, _PAUSE_BUSY = 0.01, 1.0
_BUSY = 503
_TELLERS = 20
_WITHIN = 300.0


class IssueHolders:
    """Which agent holds which of the issues of one round."""

    def __init__(self, issues: Iterable[int]) -> None:
        self._left = set(issues)
        self._live: dict[int, str] = {}
        self._tokens: dict[int, int] = {}
        self.handed_out = 0

    @property
    def all_done(self) -> bool:
        return not self._left

    def given(self, issue: int, agent: str, token: int) -> None:
        """An agent got an issue. Raises Violation if another agent has it, or it was done
        before.
        """
        if holder := self._live.get(issue):
            raise Violation(f"issue {issue} was given to {agent} while {holder} held it")
        if issue not in self._left:
            raise Violation(f"issue {issue} was given to {agent} after it was completed")
        if token <= self._tokens.get(issue, 0):
            raise Violation(f"issue {issue} was given to {agent} under an older token")
        self._live[issue], self._tokens[issue] = agent, token
        self.handed_out += 1

    def ending(self, issue: int) -> None:
        """Its holder is about to complete it, or to give it back."""
        del self._live[issue]

    def completed(self, issue: int) -> None:
        self._left.discard(issue)


class IssueRace:
    """One race: issues are made known, agents take them, all of them are completed in the end."""

    def __init__(self, place: Place, *, seed: int) -> None:
        self._place, self._chance = place, Random(seed)
        self.requests = self.busy = 0
        """Requests that were answered, and those that the server was too busy for: sent again."""
        self.times_ms: list[float] = []
        """Of requests for a task."""

    async def told(self, issues: Iterable[int]) -> None:
        """Makes issues known to the server, unmeasured."""
        numbers = list(issues)

        async def tell(some: list[int]) -> None:
            async with client(self._place) as teller:
                for number in some:
                    issue = {"repository": REPOSITORY, "number": number, "title": "t"}
                    await asked(teller, "/api/v1/issues", issue, 200)

        await asyncio.gather(*(tell(numbers[at::_TELLERS]) for at in range(_TELLERS)))

    async def run(self, agents: int, issues: range) -> IssueHolders:
        """Runs until all issues are completed. Raises Violation, also if that takes too long."""
        holders = IssueHolders(issues)
        try:
            async with asyncio.timeout(_WITHIN), asyncio.TaskGroup() as everybody:
                for number in range(agents):
                    everybody.create_task(self._agent(f"agent-{number}", holders))
        except TimeoutError:
            raise Violation(f"not all issues were completed within {_WITHIN:g} s") from None
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return holders

    async def _agent(self, name: str, holders: IssueHolders) -> None:
        async with client(self._place) as agent:
            while not holders.all_done:
                began = time.perf_counter()
                wish = {"agent_id": name}
                answer = await self._asked(agent, "/api/v1/request-task", wish, 200, 204)
                self.times_ms.append((time.perf_counter() - began) * 1000)
                self.requests += 1
                if answer.status == 204:
                    await asyncio.sleep(_PAUSE * self._chance.random())
                    continue
                await self._work(agent, msgspec.json.decode(answer.body), name, holders)

    async def _work(self, agent: HttpClient, task: Any, name: str, holders: IssueHolders) -> None:
        issue = task["issue_number"]
        holders.given(issue, name, task["token"])
        await asyncio.sleep(_PAUSE * self._chance.random())
        verb = "release" if self._chance.random() < RELEASED else "complete"
        holders.ending(issue)
        path = f"/api/v1/tasks/{task['task_id']}/{verb}"
        # 409: it was released before, and the answer said only that the server was busy.
        said = {"token": task["token"], "agent_id": name}
        await self._asked(agent, path, said, 200, *([409] if verb == "release" else []))
        self.requests += 1
        if verb == "complete":
            holders.completed(issue)

    async def _asked(self, who: HttpClient, path: str, body: object, *statuses: int) -> HttpAnswer:
        """The answer; a busy server is asked again under the same name."""
        name = str(self._chance.random())
        while True:
            answer = await asked(who, path, body, *statuses, _BUSY, name=name)
            if answer.status != _BUSY:
                return answer
            self.busy += 1
            await asyncio.sleep(_PAUSE_BUSY * self._chance.random())


async def asked(
    who: HttpClient, path: str, body: object, *statuses: int, name: str = ""
) -> HttpAnswer:
    answer = await who.ask(request("POST", path, KEY, msgspec.json.encode(body), name=name))
    if answer.status not in statuses:
        raise Violation(f"{path} was answered with {answer.status}: {answer.body[:200]!r}")
    return answer
