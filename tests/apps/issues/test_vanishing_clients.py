"""Clients of `/mcp` and `towpath mcp` that cancel, time out, hang up, die or freeze while they wait
for a task: the wait ends, and no issue is held for an answer that nobody receives.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from tests.amounts import slow
from tests.apps.issues.served import ServedIssues, issues_served
from tests.programs import COMMAND, ROOT, Program
from tests.waiting import HANGS, eventually_async
from towpath import Engine
from towpath.embedded import EmbeddedServer
from towpath.testing.proxy import Faults, Hole, Proxy
from towpath.web.dependencies import Poll
from towpath.web.limits import ServerLimits
from towpath.web.open_requests import OpenRequests

BROUGHT = Path(sys.prefix) / "npm" / "node_modules"
NODE = shutil.which("node")
PYTHON_CLIENT = (sys.executable, "-m", "tests.server.mcp_vanishing")
NODE_CLIENT = (str(NODE), str(ROOT / "tests" / "server" / "mcp_vanishing.js"))
needs_npm = pytest.mark.skipif(
    NODE is None or not (BROUGHT / "@modelcontextprotocol").is_dir(),
    reason="npm's packages are not installed",
)


def clients_of(*old: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Parameters for every client; those with the older protocol have the marks *old*."""
    python, node, legacy = PYTHON_CLIENT, NODE_CLIENT, {"mode": "legacy"}
    return pytest.mark.parametrize(
        ("program", "how"),
        [
            pytest.param(python, {"mode": "auto"}, id="python"),
            pytest.param(python, legacy, id="python with a handshake", marks=old),
            pytest.param(python, {"mode": "auto", "stdio": True}, id="python over stdio"),
            pytest.param(node, {"mode": "auto"}, id="typescript, auto", marks=needs_npm),
            pytest.param(node, legacy, id="typescript, legacy", marks=(needs_npm, *old)),
        ],
    )


every_client, newer_clients = clients_of(), clients_of(slow)


@pytest.fixture
async def served(server: EmbeddedServer, prepared_file_url: str) -> AsyncIterator[ServedIssues]:
    """A held issue is held for ten minutes, which is longer than any test waits."""
    async with issues_served(server.url, prepared_file_url) as running:
        yield running


class VanishingClient:
    """A client in a process of its own that asks for a task and waits for it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(
        cls, served: ServedIssues, program: tuple[str, ...], how: dict[str, Any], **more: Any
    ) -> VanishingClient:
        told = {
            "address": served.address,
            "key": served.key,
            "tool": "request_task",
            "arguments": {"agent_id": "a-1", "wait": 60},
            **how,
            **more,
        }
        process = await asyncio.create_subprocess_exec(
            *program, json.dumps(told),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "NODE_PATH": str(BROUGHT)},
            cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        return cls(process)

    def cancel(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"cancel\n")

    async def line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(await self.process.stdout.readline())

    async def is_over(self) -> None:
        """Waits until the call has ended for the client, which stays connected."""
        while (line := await self.line()) != {"over": True}:
            assert "failed" not in line, line

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    async def end(self) -> None:
        with suppress(ProcessLookupError):  # it has ended, and was not collected yet
            self.signal(signal.SIGKILL)
        await self.process.communicate()


@pytest.fixture
async def clients(served: ServedIssues) -> AsyncIterator[Any]:
    started: list[VanishingClient] = []

    async def start(program: tuple[str, ...], how: dict[str, Any], **more: Any) -> VanishingClient:
        started.append(await VanishingClient.start(served, program, how, **more))
        return started[-1]

    yield start
    for client in started:
        await client.end()


async def are_waiting(served: ServedIssues, count: int) -> None:
    async def so_many() -> bool:
        return served.waiting == count

    await eventually_async(so_many)


async def is_free(served: ServedIssues, number: int) -> None:
    """Waits until another agent gets the issue."""

    async def taken() -> bool:
        task = await served.take("a-2")
        return task is not None and task["issue_number"] == number

    await eventually_async(taken)


class TestAClientThatWaitsForATask:
    @every_client
    async def test_a_client_that_cancels_gets_no_task(
        self, served: ServedIssues, clients: Any, program: tuple[str, ...], how: dict[str, Any]
    ) -> None:
        client = await clients(program, how)
        await are_waiting(served, 1)
        client.cancel()
        await client.is_over()
        await served.put_issue(1)
        await is_free(served, 1)
        await are_waiting(served, 0)

    @newer_clients
    async def test_a_client_that_times_out_gets_no_task(
        self, served: ServedIssues, clients: Any, program: tuple[str, ...], how: dict[str, Any]
    ) -> None:
        client = await clients(program, how, timeout=1)
        await client.is_over()
        await served.put_issue(1)
        await is_free(served, 1)
        await are_waiting(served, 0)

    @newer_clients
    async def test_a_client_that_is_killed_gets_no_task(
        self, served: ServedIssues, clients: Any, program: tuple[str, ...], how: dict[str, Any]
    ) -> None:
        client = await clients(program, how)
        await are_waiting(served, 1)
        client.signal(signal.SIGKILL)
        await client.end()
        await served.put_issue(1)
        await is_free(served, 1)
        await are_waiting(served, 0)

    @newer_clients
    async def test_a_frozen_client_gets_its_task_when_it_continues(
        self, served: ServedIssues, clients: Any, program: tuple[str, ...], how: dict[str, Any]
    ) -> None:
        """The answer waits in its socket; the hold ends with the lease."""
        client = await clients(program, how)
        await are_waiting(served, 1)
        client.signal(signal.SIGSTOP)
        await served.put_issue(1)

        async def held() -> bool:
            return (await served.get_issue(1))["holder"] == "a-1"

        if not how.get("stdio"):  # otherwise the program that was frozen with it asks for the task
            await eventually_async(held)
        client.signal(signal.SIGCONT)
        assert (await client.line())["answer"]["issue_number"] == 1

    @newer_clients
    async def test_a_client_that_shares_a_key_cancels_only_its_own_call(
        self, served: ServedIssues, clients: Any, program: tuple[str, ...], how: dict[str, Any]
    ) -> None:
        """Both clients number their requests alike."""
        first, second = [await clients(program, how) for _ in range(2)]
        await are_waiting(served, 2)
        first.cancel()
        await first.is_over()
        await served.put_issue(1)
        assert (await second.line())["answer"]["issue_number"] == 1


class RawRequest:
    """A request to the server's app whose client leaves at a chosen moment."""

    def __init__(self, served: ServedIssues, path: str, content: Any) -> None:
        self._app, self._path, self._key = served.app, path, served.key
        self._body = json.dumps(content).encode()
        self.left = asyncio.Event()
        self.at_start: Callable[[], Awaitable[None]] | None = None
        self._began = False

    async def run(self) -> None:
        headers = {
            "host": "localhost",
            "authorization": f"Bearer {self._key}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "content-length": str(len(self._body)),
        }
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._began:
            self._began = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and self.at_start is not None:
            await self.at_start()


class TestATaskForAnAnswerThatNobodyReceives:
    """The issue is held already, and the answer is not sent yet."""

    @pytest.fixture
    async def request_(self, served: ServedIssues) -> RawRequest:
        await served.put_issue(1)
        params = {"name": "request_task", "arguments": {"agent_id": "a-1"}}
        message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        return RawRequest(served, "/mcp", message)

    async def is_held(self, served: ServedIssues) -> None:
        async def held() -> bool:
            return (await served.get_issue(1))["holder"] == "a-1"

        await eventually_async(held)

    async def test_a_task_is_released_if_its_client_hangs_up(
        self, served: ServedIssues, request_: RawRequest
    ) -> None:
        async def hang_up() -> None:
            await self.is_held(served)
            request_.left.set()

        request_.at_start = hang_up
        await request_.run()
        await is_free(served, 1)

    async def test_a_task_is_released_if_its_client_cancels(
        self, served: ServedIssues, request_: RawRequest
    ) -> None:
        async def cancel() -> None:
            await self.is_held(served)
            params = {"requestId": 5}
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            await RawRequest(served, "/mcp", message).run()

        request_.at_start = cancel
        await request_.run()
        await is_free(served, 1)

    async def test_a_task_is_released_if_the_call_is_cancelled_between_the_answer_and_its_end(
        self, served: ServedIssues, request_: RawRequest
    ) -> None:
        """The path of the tool has answered, and a middleware around it still runs."""
        answered, inner = asyncio.Event(), served.app.middleware_stack
        assert inner is not None

        async def linger(scope: Scope, receive: Receive, send: Send) -> None:
            await inner(scope, receive, send)
            if scope["path"] == "/api/v1/request-task" and not answered.is_set():
                answered.set()
                await asyncio.Event().wait()  # until it is cancelled

        served.app.middleware_stack = linger
        running = asyncio.ensure_future(request_.run())
        await answered.wait()
        await self.is_held(served)
        params = {"requestId": 5}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        await RawRequest(served, "/mcp", message).run()
        await running
        await is_free(served, 1)

    async def test_a_client_that_hangs_up_with_its_answer_keeps_the_task(
        self, served: ServedIssues, request_: RawRequest
    ) -> None:
        await request_.run()
        request_.left.set()
        await self.is_held(served)

    async def test_no_task_is_held_for_an_http_client_that_has_left(
        self, served: ServedIssues
    ) -> None:
        """Also for a request without `wait`."""
        await served.put_issue(1)
        request = RawRequest(served, "/api/v1/request-task", {"agent_id": "a-1"})
        request.left.set()
        await request.run()
        await is_free(served, 1)


async def test_a_task_is_released_if_its_request_is_cancelled_while_its_wait_ends() -> None:
    """The wait has its answer and is about to stop watching the client."""
    ending, go_on, given_back = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await go_on.wait()
        return {"type": "http.disconnect"}

    async def find() -> str:
        await asyncio.sleep(0)  # the wait checks its client meanwhile
        return "task"

    async def give_back(found: str) -> None:
        assert found == "task"
        given_back.set()

    request, requests = Request({"type": "http"}, receive), OpenRequests(ServerLimits())
    poll = Poll(Engine("redis://127.0.0.1:1"), request, asyncio.Event(), requests)  # never asked
    waiting = asyncio.ensure_future(poll.while_connected(find(), give_back, waits=False))
    await ending.wait()
    waiting.cancel()
    await asyncio.wait((waiting,))
    go_on.set()
    assert waiting.cancelled()
    async with asyncio.timeout(HANGS):
        await given_back.wait()


class TestAnAnswerThatIsLostOnItsWay:
    """The server has sent the answer; its client is stopped before it arrives."""

    @pytest.fixture
    async def proxy(self, served: ServedIssues) -> AsyncIterator[Proxy]:
        port = int(served.address.rpartition(":")[2])
        async with Proxy(("127.0.0.1", port), Faults(), tcp=True) as line:
            yield line

    async def lose_answer(self, served: ServedIssues, proxy: Proxy) -> None:
        await are_waiting(served, 1)
        proxy.faults.hole = Hole.REPLIES
        await served.put_issue(1)

        async def lost() -> bool:
            return proxy.swallowed > 0

        await eventually_async(lost)
        assert (await served.get_issue(1))["holder"] == "a-1"
        proxy.faults.hole = Hole.NOTHING

    async def test_towpath_mcp_releases_the_task_of_a_lost_answer(
        self, served: ServedIssues, clients: Any, proxy: Proxy
    ) -> None:
        address = proxy.url.replace("redis:", "http:")
        how = {"mode": "auto", "stdio": True, "address": address}
        client = await clients(PYTHON_CLIENT, how)
        await self.lose_answer(served, proxy)
        client.cancel()
        await is_free(served, 1)

    async def test_towpath_agent_releases_the_task_of_a_lost_answer(
        self, served: ServedIssues, proxy: Proxy, tmp_path: Path
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TOWPATH_")}
        address = proxy.url.replace("redis:", "http:")
        own = {"TOWPATH_API_URL": address, "TOWPATH_API_KEY": served.key}
        agent: Program[str] = Program(
            [COMMAND, "agent", "--agent", "a-1", "--", "true"],
            env={**inherited, **own},
            cwd=tmp_path,
        )
        with agent:
            await self.lose_answer(served, proxy)
            agent.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(agent.wait, HANGS) == 0
        await is_free(served, 1)
