"""I41: what one credential holds ends with it, and nothing else ends.

A credential is a key, or a login of the dashboard. It holds event streams, waiting claims, waiting
calls of tools, and bodies under way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import httpx
import pytest

from tests.dashboard.sessions import csrf_in
from tests.server.serving import RunningServer, up
from tests.waiting import HANGS, eventually_async

WAIT = 60
"""Seconds that a claim waits by itself. Those that go on begin first: so they prove that the others
ended before their time.
"""
SCOPES = ("read", "work", "submit")
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_numbers = count(1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with up(tmp_path_factory.mktemp("credentials")) as running:
        yield running


@dataclass
class Held:
    """One open request. Its task ends with the status of the answer; 0 = it was cut."""

    name: str
    over: asyncio.Task[int]
    prove: Callable[[], Awaitable[object]]
    """Uses it once more, and fails if that does not work."""

    async def has_ended(self) -> None:
        """An answer of 401 would mean that it never began."""
        assert await asyncio.wait_for(self.over, HANGS) in (0, 200, 204), self.name

    async def goes_on(self) -> None:
        assert not self.over.done(), self.name
        await self.prove()


@dataclass
class Credential:
    """A key, or a login of one, and its open requests."""

    client: httpx.AsyncClient
    headers: dict[str, str] = field(default_factory=dict[str, str])
    held: list[Held] = field(default_factory=list[Held])

    async def counts(self) -> bool:
        answer = await self.client.get("/api/v1/queues")
        assert answer.status_code in (200, 401), answer.text
        return answer.status_code == 200


class Holders:
    """Makes keys and logins, and opens one request of each kind with them."""

    def __init__(self, served: RunningServer, stack: AsyncExitStack) -> None:
        self._served, self._stack = served, stack
        self.admin = self._client(served.key)

    async def make_key(self, lasts: timedelta | None = None) -> tuple[str, str]:
        """Its id and its secret."""
        ends = None if lasts is None else datetime.now(UTC) + lasts
        return await asyncio.to_thread(self._served.make_key, *SCOPES, expires_at=ends)

    async def revoke(self, id: str) -> None:
        assert (await self.admin.delete(f"/api/v1/keys/{id}")).status_code == 200

    async def by_key(self, secret: str) -> Credential:
        return await self._opened(Credential(self._client(secret)))

    async def by_login(self, secret: str) -> Credential:
        client = self._client()
        answer = await client.post("/", data={"key": secret})
        assert answer.status_code == 303, answer.text
        csrf = csrf_in((await client.get("/")).text)
        return await self._opened(Credential(client, {"X-Towpath-CSRF": csrf}))

    async def log_out(self, login: Credential) -> None:
        form = {"leave": "1", "csrf": login.headers["X-Towpath-CSRF"]}
        assert (await login.client.post("/", data=form)).status_code == 303

    async def _opened(self, credential: Credential) -> Credential:
        credential.held = [
            await self._stream(credential, "/api/v1/queues/{}/events"),
            await self._stream(credential, "/ui/live?queue={}"),
            await self._claim(credential),
            await self._task(credential),
            await self._tool(credential),
            await self._upload(credential),
        ]
        return credential

    async def _stream(self, credential: Credential, path: str) -> Held:
        queue, opened, seen = await self._queue(), asyncio.Event(), list[str]()

        async def follow() -> int:
            async with credential.client.stream("GET", path.format(queue)) as answer:
                opened.set()
                async for line in answer.aiter_lines():
                    seen.append(line)
                return answer.status_code

        over = self._begun(follow())
        await opened.wait()

        async def prove() -> None:
            before = len(seen)
            await self._submit(queue)
            await eventually_async(lambda: _true(any("data: " in line for line in seen[before:])))

        return Held(path, over, prove)

    async def _claim(self, credential: Credential) -> Held:
        queue = await self._queue()
        body = {"worker": "w", "wait": WAIT}
        over = self._post(credential, f"/api/v1/queues/{queue}/claim", json=body)
        await eventually_async(lambda: _true(self._served.asked_for(queue)))

        async def prove() -> None:
            await self._submit(queue)
            assert await over == 200

        return Held("a waiting claim", over, prove)

    async def _task(self, credential: Credential) -> Held:
        over = self._post(credential, "/api/v1/request-task", json=_wish())
        return Held("a waiting agent", over, _nothing)

    async def _tool(self, credential: Credential) -> Held:
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "request_task", "arguments": _wish()},
        }
        headers = {"Accept": "application/json, text/event-stream"}
        over = self._post(credential, "/mcp", json=message, headers=headers)
        return Held("a call of a tool", over, _nothing)

    async def _upload(self, credential: Credential) -> Held:
        """A body that never ends: a byte after each claim of a second that got nothing."""
        claim = f"/api/v1/queues/{await self._queue()}/claim"
        start = {"Tus-Resumable": "1.0.0", "Upload-Length": "1000000", **credential.headers}
        begun = await credential.client.post("/files", headers=start)
        assert begun.status_code == 201, begun.text
        sent = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                sent.set()
                await self.admin.post(claim, json={"worker": "w", "wait": 1})

        headers = {
            "Tus-Resumable": "1.0.0",
            "Upload-Offset": "0",
            "Content-Type": "application/offset+octet-stream",
        }
        path = httpx.URL(begun.headers["location"]).path
        over = self._post(credential, path, method="PATCH", content=body(), headers=headers)
        await sent.wait()
        return Held("an upload", over, _nothing)

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def _client(self, secret: str = "") -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        client = httpx.AsyncClient(
            base_url=self._served.address, headers=headers, timeout=HANGS, verify=_NO_TLS
        )
        self._stack.push_async_callback(client.aclose)
        return client

    def _post(
        self, credential: Credential, path: str, *, method: str = "POST", **more: Any
    ) -> asyncio.Task[int]:
        headers = {**credential.headers, **more.pop("headers", {})}

        async def post() -> int:
            try:
                answer = await credential.client.request(method, path, headers=headers, **more)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                return 0
            return answer.status_code

        return self._begun(post())

    def _begun(self, run: Any) -> asyncio.Task[int]:
        task = asyncio.create_task(run)

        async def end() -> None:
            task.cancel()
            await asyncio.wait((task,))

        self._stack.push_async_callback(end)
        return task

    async def _queue(self) -> str:
        """An existing queue with nothing to claim."""
        queue = f"held-{next(_numbers)}"
        await self._submit(queue, delay=3600)
        return queue

    async def _submit(self, queue: str, **more: Any) -> None:
        answer = await self.admin.post(f"/api/v1/queues/{queue}/jobs", json={"payload": 1, **more})
        assert answer.status_code == 202, answer.text


@pytest.fixture
async def holders(served: RunningServer) -> AsyncIterator[Holders]:
    async with AsyncExitStack() as stack:
        yield Holders(served, stack)


def _wish() -> dict[str, Any]:
    name = f"agent-{next(_numbers)}"
    return {"agent_id": name, "roles": [name], "wait": WAIT}


async def _true(fact: object) -> object:
    return fact


async def _nothing() -> None:
    return None


@dataclass
class Opened:
    """Two keys, each in use by itself and by logins. The requests of the other key are older."""

    key: str
    secret: str
    by_key: Credential
    login: Credential
    login_again: Credential
    by_other: Credential
    other_login: Credential

    @property
    def all(self) -> list[Credential]:
        return [self.by_key, self.login, self.login_again, self.by_other, self.other_login]

    async def only(self, *ended: Credential) -> None:
        """Checks that exactly these, and all that they hold, have ended."""
        for credential in ended:
            for held in credential.held:
                await held.has_ended()
            assert not await credential.counts()
        for credential in self.all:
            if credential not in ended:
                for held in credential.held:
                    await held.goes_on()
                assert await credential.counts()


async def _everything(holders: Holders, lasts: timedelta | None = None) -> Opened:
    _, other_secret = await holders.make_key()
    by_other, other_login = await holders.by_key(other_secret), await holders.by_login(other_secret)
    key, secret = await holders.make_key(lasts)
    return Opened(
        key=key,
        secret=secret,
        by_key=await holders.by_key(secret),
        login=await holders.by_login(secret),
        login_again=await holders.by_login(secret),
        by_other=by_other,
        other_login=other_login,
    )


async def test_a_revoked_key_ends_what_it_and_its_logins_hold(holders: Holders) -> None:
    opened = await _everything(holders)
    await holders.revoke(opened.key)
    await opened.only(opened.by_key, opened.login, opened.login_again)


async def test_a_logout_ends_what_the_login_holds_and_nothing_else(holders: Holders) -> None:
    opened = await _everything(holders)
    await holders.log_out(opened.login_again)
    await opened.only(opened.login_again)


async def test_a_logout_of_the_first_login_leaves_the_later_ones(holders: Holders) -> None:
    opened = await _everything(holders)
    await holders.log_out(opened.other_login)
    await opened.only(opened.other_login)


async def test_another_login_of_the_key_ends_nothing(holders: Holders) -> None:
    opened = await _everything(holders)
    third = await holders.by_login(opened.secret)
    await holders.log_out(third)
    for held in third.held:
        await held.has_ended()
    await opened.only()


async def test_an_expired_key_ends_what_it_and_its_logins_hold(holders: Holders) -> None:
    """On a busy machine a key may expire before all is open: the next one lasts longer."""
    for seconds in (4, 15, 60, 240):
        try:
            opened = await _everything(holders, timedelta(seconds=seconds))
        except (AssertionError, httpx.HTTPError):
            continue
        await opened.only(opened.by_key, opened.login, opened.login_again)
        return
    pytest.fail("no key lasted until everything was open")
