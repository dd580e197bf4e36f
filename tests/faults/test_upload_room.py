"""The room of bodies whose server is killed or stands still: two servers on one Redis."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.apps.uploads.requests import ROOT, finished, put, start
from tests.faults.timer_deployment import free_port
from tests.programs import Program
from tests.server.serving import begin, first_line
from tests.waiting import HANGS, eventually_async
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.records import SCRIPTS, Budget
from towpath.apps.uploads.tables import TABLES
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger

P = 8 * MIB
BUDGET = 32 * MIB
"""Three parts of different owners; the fourth is for begun ones."""


LEASE = "5s"
"""Long enough for a server that has to wait for the processor: it is heard of every 0.8 s."""


class TwoServers(NamedTuple):
    """Two servers, clients of several owners, and the budget that they share."""

    processes: list[Program[str]]
    addresses: list[str]
    clients: list[httpx.AsyncClient]
    budget: Budget

    async def send(self, server: int, owner: int, upload: str, number: int) -> httpx.Response:
        path = f"{self.addresses[server]}{ROOT}/{upload}/chunks/{number}"
        return await self.clients[owner].put(path, content=bytes(P))


@pytest.fixture
async def servers(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[TwoServers]:
    database = f"sqlite:///{tmp_path}/ledger.db"
    told = {
        "TOWPATH_API_KEY": secrets.token_hex(32),
        "TOWPATH_UPLOADS__DIRECTORY": str(tmp_path / "objects"),
        "TOWPATH_UPLOADS__BUDGET": str(BUDGET),
        "TOWPATH_UPLOADS__BODY_LEASE": LEASE,
    }
    words = ("serve", "--url", server.url, "--database", database)
    processes: list[Program[str]] = []
    ports = [free_port() for _ in range(2)]
    for at, port in enumerate(ports):
        log = tmp_path / f"server-{at}.log"
        processes.append(begin(*words, log=log, env=told, port=port))
        first_line(processes[-1], log)
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    async with Ledger(database, tables=[TABLES]) as ledger, Engine(server.url) as engine:
        keys = [await ledger.keys.create("k", scopes=("submit", "read")) for _ in range(4)]
        clients = [
            httpx.AsyncClient(
                headers={"X-API-Key": key.secret.get_secret_value()},
                timeout=HANGS,
                base_url=addresses[1],
            )
            for key in keys
        ]
        options = UploadsOptions(budget=BUDGET)
        budget = Budget(engine.space("uploads", SCRIPTS).at("budget"), options)
        try:
            yield TwoServers(processes, addresses, clients, budget)
        finally:
            for client in clients:
                await client.aclose()
            for process in processes:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()


def kill(process: Program[str]) -> None:
    process.kill()


def freeze(process: Program[str]) -> None:
    process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("fault", [kill, freeze])
async def test_the_room_of_a_server_that_is_gone_comes_back(
    servers: TwoServers, fault: Callable[[Program[str]], None]
) -> None:
    """Three owners send to one server, which holds all their room when it goes."""
    go_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield bytes(P // 2)
        await go_on.wait()
        yield bytes(P // 2)

    uploads = [
        (await start(client, size=P, chunk_size=P))["upload_id"] for client in servers.clients
    ]
    held: list[Awaitable[object]] = []
    for client, upload in zip(servers.clients[:3], uploads[:3], strict=True):
        path = f"{servers.addresses[0]}{ROOT}/{upload}/chunks/0"
        length = {"Content-Length": str(P)}
        held.append(asyncio.create_task(client.put(path, content=body(), headers=length)))

    async def all_have_room() -> bool:
        return await servers.budget.used() == 3 * P

    await eventually_async(all_have_room)
    refused = await servers.send(1, 3, uploads[3], 0)
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["Retry-After"]) <= 5
    fault(servers.processes[0])

    async def has_room() -> bool:
        assert await servers.budget.used() <= BUDGET
        return (await servers.send(1, 3, uploads[3], 0)).status_code == 200

    await eventually_async(has_room)
    servers.processes[0].send_signal(signal.SIGCONT)
    go_on.set()
    await asyncio.gather(*held, return_exceptions=True)
    for client, upload in zip(servers.clients, uploads, strict=True):

        async def is_sent(client: httpx.AsyncClient = client, upload: str = upload) -> bool:
            return (await put(client, {"upload_id": upload}, 0, bytes(P))).status_code == 200

        await eventually_async(is_sent)
        assert (await finished(client, {"upload_id": upload}))["status"] == "COMPLETED"
        content = await client.get(f"{ROOT}/{upload}/content")
        assert content.content == bytes(P)

    async def room_is_back() -> bool:
        await servers.budget.tidy()
        return await servers.budget.used() == 0

    await eventually_async(room_is_back)
