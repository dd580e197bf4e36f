"""The body budget of a server that is killed or stands still: two servers on one Redis."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.apps.uploads.requests import ROOT, finished, put, start
from tests.apps.uploads.tus_client import BODY, TUS, create, offset_of, patch
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

    async def send(self, upload: str, way: "Way") -> httpx.Response:
        """Sends the whole file of the fourth owner to the second server."""
        path = way.path % upload
        return await self.clients[3].request(
            way.method, path, content=bytes(P), headers=way.headers
        )


@pytest.fixture
async def servers(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[TwoServers]:
    database = f"sqlite:///{tmp_path}/ledger.db"
    told = {
        "TOWPATH_API_KEY": secrets.token_hex(32),
        "TOWPATH_UPLOADS__DIRECTORY": str(tmp_path / "objects"),
        "TOWPATH_UPLOADS__BUDGET": str(BUDGET),
        "TOWPATH_UPLOADS__BODY_LEASE": LEASE,
        "TOWPATH_UPLOADS__SWEEP_EVERY": "1h",
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


class Way(NamedTuple):
    """How a file of one part is sent: the method of the request, and its path."""

    start: Callable[[httpx.AsyncClient], Awaitable[str]]
    method: str
    path: str
    headers: dict[str, str]
    send: Callable[[httpx.AsyncClient, str], Awaitable[bool]]
    """Send what is missing, to a server that is there; whether all of it is sent."""


async def start_chunks(client: httpx.AsyncClient) -> str:
    return (await start(client, size=P, chunk_size=P))["upload_id"]


async def send_chunk(client: httpx.AsyncClient, upload: str) -> bool:
    return (await put(client, {"upload_id": upload}, 0, bytes(P))).status_code == 200


async def start_tus(client: httpx.AsyncClient) -> str:
    client.headers.update(TUS)
    return (await create(client, P)).rpartition("/")[2]


async def send_rest(client: httpx.AsyncClient, upload: str) -> bool:
    path = f"/files/{upload}"
    offset = await offset_of(client, path)
    return offset == P or (await patch(client, path, offset, bytes(P - offset))).is_success


WAYS = {
    "chunks": Way(start_chunks, "PUT", f"{ROOT}/%s/chunks/0", {}, send_chunk),
    "tus": Way(start_tus, "PATCH", "/files/%s", BODY | {"Upload-Offset": "0"}, send_rest),
}
"""What came of a chunk goes with its server; what came by tus stays."""


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("fault", [kill, freeze])
async def test_the_room_of_a_server_that_is_gone_comes_back(
    servers: TwoServers, fault: Callable[[Program[str]], None], way: Way
) -> None:
    """Three owners send to one server, which holds all their room when it goes. No sweep runs."""
    go_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield bytes(P // 2)
        await go_on.wait()
        yield bytes(P // 2)

    uploads = [await way.start(client) for client in servers.clients]
    held: list[Awaitable[object]] = []
    for client, upload in zip(servers.clients[:3], uploads[:3], strict=True):
        url = servers.addresses[0] + way.path % upload
        headers = way.headers | {"Content-Length": str(P)}
        request = client.request(way.method, url, content=body(), headers=headers)
        held.append(asyncio.create_task(request))

    async def all_have_room() -> bool:
        return await servers.budget.used() == 3 * P

    await eventually_async(all_have_room)
    refused = await servers.send(uploads[3], way)
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["Retry-After"]) <= 5
    fault(servers.processes[0])

    async def has_room() -> bool:
        assert await servers.budget.used() <= BUDGET
        return (await servers.send(uploads[3], way)).is_success

    await eventually_async(has_room)
    servers.processes[0].send_signal(signal.SIGCONT)
    go_on.set()
    await asyncio.gather(*held, return_exceptions=True)
    for client, upload in zip(servers.clients, uploads, strict=True):

        async def is_sent(client: httpx.AsyncClient = client, upload: str = upload) -> bool:
            return await way.send(client, upload)

        await eventually_async(is_sent)
        assert (await finished(client, {"upload_id": upload}))["status"] == "COMPLETED"
        content = await client.get(f"{ROOT}/{upload}/content")
        assert content.content == bytes(P)

    async def room_is_back() -> bool:
        await servers.budget.tidy()
        return await servers.budget.used() == 0

    await eventually_async(room_is_back)
