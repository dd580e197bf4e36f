"""A held task belongs to the owner of the key that requested it: a guessed token is not enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.issues.served import ALL, ServedIssues
from tests.server.in_process import client_of, key_of
from tests.server.mcp_clients import call, over_http, refused
from tests.server.serving import problem
from towpath.apps.issues.assignment import TaskRequest
from towpath.apps.issues.options import IssuesOptions
from towpath.clock import minutes
from towpath.ledger.ledger import Ledger

VERBS: dict[str, dict[str, Any]] = {
    "heartbeat": {},
    "complete": {"result": "Mine now."},
    "fail": {"reason": "no luck"},
    "release": {},
}
TOOLS = {"heartbeat": "heartbeat"} | {verb: f"{verb}_task" for verb in VERBS if verb != "heartbeat"}
every_verb = pytest.mark.parametrize("verb", VERBS)


async def request(served: ServedIssues, key: str, **more: Any) -> Any:
    async with client_of(served.app, key) as client:
        answer = await client.post("/api/v1/request-task", json=ALL, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def settle(served: ServedIssues, key: str, verb: str, task: Any) -> httpx.Response:
    path = f"/api/v1/tasks/{task['task_id']}/{verb}"
    async with client_of(served.app, key) as client:
        return await client.post(path, json={"token": task["token"], **VERBS[verb]})


class TestATokenThatAnotherOwnerHasGuessed:
    @every_verb
    async def test_a_guessed_token_is_refused_like_a_stale_one_over_http(
        self, served: ServedIssues, verb: str
    ) -> None:
        await served.put_issue(1)
        task = await request(served, served.key)
        before = await served.get_issue(1)
        answer = await settle(served, await served.client_key("work", "read"), verb, task)
        said = problem(answer, 409)
        assert said["type"].endswith("/task-stale")
        assert said["holder"] == "a-1"
        assert said["expires_at"][:19] == task["expires_at"][:19]
        assert await served.get_issue(1) == before
        assert (await settle(served, served.key, verb, task)).status_code == 200

    @every_verb
    async def test_a_guessed_token_is_refused_like_a_stale_one_over_mcp(
        self, served: ServedIssues, verb: str
    ) -> None:
        await served.put_issue(1)
        task = await request(served, served.key)
        before = await served.get_issue(1)
        words = {"task_id": task["task_id"], "token": task["token"], **VERBS[verb]}
        async with over_http(served.address, await served.client_key("work", "read")) as thief:
            said = await refused(thief, TOOLS[verb], **words)
            assert said.startswith("task-stale: ")
            assert '"holder": "a-1"' in said
        assert await served.get_issue(1) == before
        async with over_http(served.address, served.key) as agent:
            assert not (await call(agent, TOOLS[verb], **words)).is_error

    async def test_a_guessed_token_is_refused_before_the_row_names_its_holder(
        self, served: ServedIssues
    ) -> None:
        """A server claims the task first and writes the row a moment later."""
        await served.put_issue(1)
        issue = await served.get_issue(1)
        [lease] = await served.app.state.engine.claim("issues", worker="a-1", lease=minutes(1))
        task = {"task_id": issue["task_id"], "token": lease.token}
        answer = await settle(served, await served.client_key("work"), "complete", task)
        assert problem(answer, 409)["holder"] == "a-1"
        assert (await served.post_task("complete", task)).json()["state"] == "done"


class TestAHeldTask:
    @every_verb
    async def test_all_keys_of_its_owner_can_use_a_held_task(
        self, served: ServedIssues, verb: str
    ) -> None:
        await served.put_issue(1)
        first, second = [await key_of(served.app, "work", owner="team") for _ in range(2)]
        task = await request(served, first)
        assert (await settle(served, second, verb, task)).status_code == 200

    @every_verb
    async def test_a_held_task_stays_with_a_key_that_is_rotated(
        self, served: ServedIssues, verb: str
    ) -> None:
        await served.put_issue(1)
        ledger: Ledger = served.app.state.ledger
        old = await ledger.keys.create("agent", scopes=["work"], queues=["issues"])
        task = await request(served, old.secret.get_secret_value())
        new = (await ledger.keys.rotate(old.info.id)).secret.get_secret_value()
        assert (await settle(served, new, verb, task)).status_code == 200

    @every_verb
    async def test_an_admin_can_use_a_held_task(self, served: ServedIssues, verb: str) -> None:
        await served.put_issue(1)
        task = await request(served, served.key)
        assert (await served.post_task(verb, task, **VERBS[verb])).status_code == 200

    async def test_its_owner_can_complete_a_held_task_twice(self, served: ServedIssues) -> None:
        await served.put_issue(1)
        task = await request(served, served.key)
        first = await settle(served, served.key, "complete", task)
        again = await settle(served, served.key, "complete", task)
        assert (first.json(), again.status_code) == (again.json(), 200)

    async def test_a_released_task_belongs_to_its_next_owner(self, served: ServedIssues) -> None:
        await served.put_issue(1)
        other = await served.client_key("work")
        await settle(served, served.key, "release", await request(served, served.key))
        task = await request(served, other)
        assert problem(await settle(served, served.key, "complete", task), 409)
        assert (await settle(served, other, "complete", task)).status_code == 200

    @every_verb
    async def test_a_task_that_python_requested_needs_only_its_token(
        self, served: ServedIssues, verb: str
    ) -> None:
        await served.put_issue(1)
        task = await served.app.state.services["issues"].assignment.request(
            TaskRequest(agent="a-1")
        )
        held = {"task_id": task.task_id, "token": task.token}
        assert (await settle(served, served.key, verb, held)).status_code == 200

    async def test_a_held_task_is_not_returned_to_another_owner_with_the_same_names(
        self, served: ServedIssues
    ) -> None:
        await served.put_issue(1)
        await served.put_issue(2)
        named = {"headers": {"Idempotency-Key": "k1"}}
        first = await request(served, served.key, **named)
        other = await request(served, await served.client_key("work"), **named)
        assert {first["issue_number"], other["issue_number"]} == {1, 2}
        assert await request(served, served.key, **named) == first


class TestTheLimitOfAnAgent:
    """Two owners may have agents of the same name: each owner's agents count separately."""

    @pytest.fixture
    def options(self, tmp_path: Path) -> IssuesOptions:
        policy = tmp_path / "policy.toml"
        policy.write_text("[limits]\nagent = 1\n")
        return IssuesOptions(policy=str(policy))

    async def request_status(self, served: ServedIssues, key: str, **more: Any) -> int:
        async with client_of(served.app, key) as client:
            answer = await client.post("/api/v1/request-task", json=ALL, **more)
        return answer.status_code

    async def test_another_owner_does_not_use_up_the_limit_of_an_agent(
        self, served: ServedIssues
    ) -> None:
        for number in (1, 2, 3):
            await served.put_issue(number)
        other = await served.client_key("work")
        first = await request(served, served.key)
        assert await self.request_status(served, served.key) == 204
        second = await request(served, other)
        assert {first["issue_number"], second["issue_number"]} == {1, 2}
        assert await self.request_status(served, other) == 204
        await settle(served, served.key, "complete", first)
        assert (await request(served, served.key))["issue_number"] == 3

    async def test_the_limit_of_an_agent_counts_all_keys_of_the_owner(
        self, served: ServedIssues
    ) -> None:
        await served.put_issue(1)
        await served.put_issue(2)
        first, second = [await key_of(served.app, "work", owner="team") for _ in range(2)]
        await request(served, first)
        assert await self.request_status(served, second) == 204

    async def test_a_request_can_be_repeated_at_the_limit_of_an_agent(
        self, served: ServedIssues
    ) -> None:
        await served.put_issue(1)
        named = {"headers": {"Idempotency-Key": "k1"}}
        task = await request(served, served.key, **named)
        assert await request(served, served.key, **named) == task

    async def test_answers_have_the_name_of_the_agent_without_its_owner(
        self, served: ServedIssues
    ) -> None:
        """In the task, in refusals, and in the outcome of the issue."""
        await served.put_issue(1)
        task = await request(served, served.key)
        path = f"/api/v1/tasks/{task['task_id']}/complete"
        async with client_of(served.app, served.key) as client:
            said = {"token": task["token"], "agent_id": "a-2"}
            assert problem(await client.post(path, json=said), 409)["holder"] == "a-1"
            assert (await served.get_issue(1))["holder"] == "a-1"
            answer = await client.post(path, json=said | {"agent_id": "a-1"})
        assert answer.status_code == 200
        assert (await served.get_issue(1))["outcome"] == "completed by a-1"


class TestSharedIssues:
    @pytest.fixture
    def options(self) -> IssuesOptions:
        return IssuesOptions(shared=True)

    @every_verb
    async def test_tasks_of_shared_issues_need_only_their_token(
        self, served: ServedIssues, verb: str
    ) -> None:
        await served.put_issue(1)
        task = await request(served, served.key)
        answer = await settle(served, await served.client_key("work"), verb, task)
        assert answer.status_code == 200
