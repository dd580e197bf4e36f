"""Servers, a Redis and an S3 for uploads, all killed and frozen; and clients that go on.

A wide deployment also has PostgreSQL and Kafka, and a proxy in front of S3.
"""

import asyncio
import json
import random
import secrets
import signal
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from hashlib import sha256
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import psycopg

from tests.apps.uploads.tus_client import BODY, TUS, encoded
from tests.faults.timer_deployment import RestartedProcess, free_port
from tests.faults.timer_program import worked_async
from tests.ledger.kafka import KafkaBroker
from tests.ledger.kafka_program import TOPIC
from tests.postgres import PostgresServer
from tests.server.serving import begin, first_line
from tests.tcp_server import LOOPBACK, accepting
from tests.waiting import HANGS, eventually_async
from towpath.apps.uploads.options import KIB, MIB, UploadsOptions
from towpath.clock import seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.embedded.objects import EmbeddedObjects
from towpath.testing.proxy import Faults, Hole, Proxy

KEY = secrets.token_hex(32)
ROOT = "/api/v1/uploads"
LATER = {408, 425, 429, 500, 502, 503, 504}
CUT, REFUSING = "S3 connections cut", "S3 refuses its key"
_AT_ONCE = 3
_SIZES = (100 * KIB, 5 * MIB, 9 * MIB + 1, 17 * MIB)
_NOTED_BY_SQLITE = """
CREATE TABLE told (id TEXT);
CREATE TRIGGER tell AFTER INSERT ON towpath_outbox BEGIN INSERT INTO told VALUES (new.id); END;
"""
_NOTED_BY_POSTGRES = (
    "CREATE TABLE told (id TEXT)",
    """CREATE FUNCTION tell() RETURNS trigger AS
    $$ BEGIN INSERT INTO told VALUES (NEW.id); RETURN NULL; END $$ LANGUAGE plpgsql""",
    "CREATE TRIGGER tell AFTER INSERT ON towpath_outbox FOR EACH ROW EXECUTE FUNCTION tell()",
)


class WideParts(NamedTuple):
    """The additional parts of a wide deployment."""

    postgres: PostgresServer
    kafka: KafkaBroker
    proxy: Proxy
    """In front of the S3."""


class UploadDeployment:
    """Two servers with their workers, a Redis that writes to disk, and an S3."""

    def __init__(
        self,
        folder: Path,
        store: EmbeddedServer,
        objects: EmbeddedObjects,
        wide: WideParts | None = None,
    ) -> None:
        self.store, self.objects, self._folder, self.wide = store, objects, folder, wide
        self.database = wide.postgres.url() if wide else f"sqlite:///{folder}/ledger.db"
        self.options = UploadsOptions(
            bucket="uploads",
            make_bucket=True,
            endpoint=self._endpoint,
            access_key=objects.access_key,
            secret_key=objects.secret_key,
            silence=seconds(3),
        )
        self.ports = [free_port() for _ in range(2)]
        self.servers = [
            RestartedProcess(f"server {at}", lambda at=at: self._server(at))
            for at in range(len(self.ports))
        ]

    @property
    def _endpoint(self) -> str:
        return self.wide.proxy.url.replace("redis:", "http:") if self.wide else self.objects.url

    def note_events(self) -> None:
        """Makes the database note the id of each event from now on."""
        if self.wide:
            self.wide.postgres.tell("postgres", *_NOTED_BY_POSTGRES)
            return
        with closing(sqlite3.connect(self._folder / "ledger.db")) as connection:
            connection.executescript(_NOTED_BY_SQLITE)

    def events(self) -> list[str]:
        """The ids that the database noted."""
        with closing(
            psycopg.connect(self.database)
            if self.wide
            else sqlite3.connect(self._folder / "ledger.db")
        ) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM told")]

    async def delivered(self) -> set[str]:
        """The ids of the events in Kafka; each may be there more than once."""
        assert self.wide is not None
        messages = await self.wide.kafka.messages()
        return {json.loads(message.value)["id"] for message in messages}

    def _server(self, at: int) -> Any:
        told = {
            "TOWPATH_API_KEY": KEY,
            "TOWPATH_UPLOADS__BUCKET": "uploads",
            "TOWPATH_UPLOADS__MAKE_BUCKET": "true",
            "TOWPATH_UPLOADS__ENDPOINT": self._endpoint,
            "TOWPATH_UPLOADS__ACCESS_KEY": self.objects.access_key,
            "TOWPATH_UPLOADS__SECRET_KEY": self.objects.secret_key,
            "TOWPATH_UPLOADS__BUDGET": str(96 * MIB),
            "TOWPATH_UPLOADS__SILENCE": "3s",
            "TOWPATH_UPLOADS__SWEEP_EVERY": "2s",
        }
        if self.wide:
            told |= {
                "TOWPATH_OUTBOX__SINKS": "kafka",
                "TOWPATH_OUTBOX__KAFKA_SERVERS": self.wide.kafka.address,
                "TOWPATH_OUTBOX__KAFKA_TOPIC": TOPIC,
            }
        log = self._folder / f"server-{at}.log"
        words = ("serve", "--url", self.store.url, "--database", self.database)
        process = begin(*words, log=log, env=told, port=self.ports[at])
        first_line(process, log)
        return process


class UploadFaults:
    """Injects faults one after the other. A frozen server is thawed at the next fault, other
    processes soon.
    """

    def __init__(self, deployment: UploadDeployment, chance: random.Random) -> None:
        self._deployment, self._chance = deployment, chance
        self._thaw: list[Callable[[], None]] = []
        self._left: list[str] = []
        self._kinds = ["server killed", "server frozen", "Redis killed", "Redis frozen",
                       "Redis emptied", "S3 killed", "S3 frozen"]  # fmt: skip
        if deployment.wide:
            self._kinds += ["PostgreSQL killed", "PostgreSQL frozen", "Kafka away",
                            "S3 replies lost", "S3 requests lost", CUT, REFUSING]  # fmt: skip
        self.told: list[str] = []

    async def inject(self) -> None:
        self.thaw()
        lasts = self._chance.uniform(0.5, 4.0)
        if not self._left:  # each kind once, before any is repeated
            self._left = self._chance.sample(self._kinds, len(self._kinds))
        kind = self._left.pop()
        self.told.append(kind)
        until = wall_ms() + round(lasts * 1000)
        if kind == CUT:
            await self._cut_connections(until)
        elif kind == REFUSING:
            await self._refuse(until)
        else:
            await asyncio.to_thread(self._do, kind)
            await worked_async(wall_ms() + round(lasts * 1000))
        if kind != "server frozen":
            self.thaw()

    def thaw(self) -> None:
        for thaw in self._thaw:
            thaw()
        self._thaw.clear()

    async def _cut_connections(self, until: int) -> None:
        """Ends all connections to S3 in the middle of their requests, again and again."""
        assert self._deployment.wide is not None
        proxy = self._deployment.wide.proxy
        while wall_ms() < until:
            proxy.faults.reset = self._chance.random() < 0.5
            await proxy.drop_all()
            await worked_async(wall_ms() + self._chance.randrange(20, 400))

    async def _refuse(self, until: int) -> None:
        """Answers every call to S3 with 403: uploads fail, and have to be resumed."""
        assert self._deployment.wide is not None
        proxy = self._deployment.wide.proxy
        async with accepting(_forbid) as refusing:
            before, proxy.upstream = proxy.upstream, (LOOPBACK, refusing.port)
            await proxy.drop_all()
            await worked_async(until)
            proxy.upstream = before
            await proxy.drop_all()

    def _do(self, kind: str) -> None:
        wide = self._deployment.wide
        if wide is None or not self._do_wide(kind, wide):
            self._do_any(kind)

    def _do_wide(self, kind: str, parts: WideParts) -> bool:
        match kind:
            case "PostgreSQL killed":
                parts.postgres.stop(signal.SIGQUIT)
                parts.postgres.start()
            case "PostgreSQL frozen":
                parts.postgres.freeze()
                self._thaw.append(parts.postgres.thaw)
            case "Kafka away":
                parts.kafka.down()
                self._thaw.append(parts.kafka.up)
            case "S3 replies lost" | "S3 requests lost":
                replies = kind == "S3 replies lost"
                parts.proxy.faults.hole = Hole.REPLIES if replies else Hole.REQUESTS
                self._thaw.append(self._fill_hole)
            case _:
                return False
        return True

    def _fill_hole(self) -> None:
        assert self._deployment.wide is not None
        self._deployment.wide.proxy.faults.hole = Hole.NOTHING

    def _do_any(self, kind: str) -> None:
        deployment = self._deployment
        server = self._chance.choice(deployment.servers)
        match kind:
            case "server killed":
                server.kill()
            case "server frozen":
                server.freeze()
                self._thaw.append(server.thaw)
            case "Redis killed":
                deployment.store.kill()
                deployment.store.start()
            case "Redis frozen":
                deployment.store.pause()
                self._thaw.append(deployment.store.unpause)
            case "Redis emptied":
                deployment.store.ask("FLUSHALL")
            case "S3 killed":
                deployment.objects.stop()
                deployment.objects.start()
            case _:
                _send(deployment.objects, signal.SIGSTOP)
                self._thaw.append(lambda: _send(deployment.objects, signal.SIGCONT))


async def _forbid(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = b"<Error><Code>AccessDenied</Code><Message>for a test</Message></Error>"
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + body)
        await writer.drain()
        while await reader.read(65_536):  # an unread body would reset the connection
            pass


def _send(objects: EmbeddedObjects, number: signal.Signals) -> None:
    process = objects._process  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    assert process is not None
    process.send(number)


class UploadClient:
    """A client that repeats whatever is not answered, or refused temporarily."""

    def __init__(
        self, deployment: UploadDeployment, number: int, chance: random.Random, *, hangs: float
    ) -> None:
        self._deployment, self.number, self._chance, self._hangs = deployment, number, chance, hangs
        self.size = chance.choice(_SIZES)
        self.chunk_size = chance.choice((256 * KIB, MIB, 4 * MIB))
        self.data = random.Random(number).randbytes(self.size)
        self.digest = sha256(self.data).hexdigest()
        self.aborts = number % 10 == 9
        self.upload: dict[str, Any] = {}
        self.failures = 0

    async def run(self) -> None:
        async with httpx.AsyncClient(
            headers={"X-API-Key": KEY}, transport=httpx.AsyncHTTPTransport()
        ) as self._client:
            await self._begin()
            if self.aborts:
                await self._ask("DELETE", self._path(), fine={409})
            else:
                await eventually_async(self._completed, within=self._hangs)
        self.data = b""

    async def _begin(self) -> None:
        """Begins an upload, and sends it once."""
        self.upload = await self._ask("POST", ROOT, json=self._new(), headers=self._name())
        await self._send(range(self.upload["total_chunks"]))

    async def content(self) -> str:
        """The SHA-256 of the downloaded content."""
        url = f"http://127.0.0.1:{self._deployment.ports[0]}{self._path('/content')}"
        async with httpx.AsyncClient(headers={"X-API-Key": KEY}, timeout=HANGS) as client:
            answer = await client.get(url)
        assert answer.status_code == 200, answer.text
        return sha256(answer.content).hexdigest()

    def _new(self) -> dict[str, Any]:
        checksum = {"algorithm": "sha256", "value": self.digest}
        more = {"checksum": checksum} if self.number % 3 == 0 else {}
        return {"name": f"{self.number}", "size": self.size, "chunk_size": self.chunk_size, **more}

    def _name(self) -> dict[str, str]:
        return {"Idempotency-Key": f"upload-{self.number}"}

    def _path(self, more: str = "") -> str:
        return f"{ROOT}/{self.upload['upload_id']}{more}"

    async def _completed(self) -> bool:
        """Reads the state of the upload and does what it asks for: sends missing chunks, or
        resumes.
        """
        status = (await self._ask("GET", self._path()))["status"]
        if status == "COMPLETED":
            return True
        if status == "FAILED":
            self.failures += 1
            await self._ask("POST", self._path("/resume"), fine={409})
        missing = await self._ask("GET", self._path("/missing"), fine={409, 410})
        for first, last in missing.get("missing", ()):
            await self._send(range(first, last + 1))
        await worked_async(wall_ms() + 300)
        return False

    async def _send(self, numbers: range) -> None:
        turn, order = asyncio.Semaphore(_AT_ONCE), self._requests(numbers)
        self._chance.shuffle(order)

        async def one(chunks: range) -> None:
            async with turn:
                body = self.data[chunks.start * self.chunk_size : chunks.stop * self.chunk_size]
                # Completed, aborted or failed meanwhile: `_completed` handles it.
                path = self._path(f"/chunks/{chunks[0]}?count={len(chunks)}")
                await self._ask("PUT", path, content=body, fine={409, 410})

        await asyncio.gather(*map(one, order))

    def _requests(self, numbers: range) -> list[range]:
        """The requests: single chunks, or several chunks of one part."""
        per_part = self.upload["part_size"] // self.chunk_size
        most = self._chance.choice((1, per_part)) if self.chunk_size <= MIB else 1
        starts = [n for n in numbers if n == numbers[0] or n % per_part % most == 0]
        return [range(a, b) for a, b in pairwise([*starts, numbers.stop])]

    async def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return (await self._answered(method, path, **more)).json()

    async def _answered(
        self, method: str, path: str, *, fine: frozenset[int] | set[int] = frozenset(), **more: Any
    ) -> httpx.Response:
        found: list[httpx.Response] = []
        # The client soon leaves a frozen server for the other one; on a busy machine each try gets
        # more time.
        limits = chain((2.0, 4.0, 8.0, 15.0, 30.0), repeat(60.0))

        async def answered() -> bool:
            more["timeout"] = next(limits)
            port = self._chance.choice(self._deployment.ports)
            url = f"http://127.0.0.1:{port}{path}"
            with suppress(httpx.TransportError):
                answer = await self._client.request(method, url, **more)
                if answer.status_code not in LATER:
                    told = method, path, answer.status_code, answer.text
                    assert answer.status_code < 300 or answer.status_code in fine, told
                    found.append(answer)
                    return True
            return False

        await eventually_async(answered, within=self._hangs)
        return found[0]


class TusUploadClient(UploadClient):
    """A client of tus: it asks for the offset of the upload, and sends what comes after."""

    async def _begin(self) -> None:
        headers = TUS | self._name() | {"Upload-Length": str(self.size)}
        headers["Upload-Metadata"] = encoded(filename=f"{self.number}")
        answer = await self._answered("POST", "/files", headers=headers)
        path = urlsplit(answer.headers["Location"]).path
        self.upload = {"upload_id": path.rpartition("/")[2]}
        await self._send_next()

    async def _completed(self) -> bool:
        await self._send_next()
        status = (await self._ask("GET", self._path()))["status"]
        self.failures += status == "FAILED"  # the next HEAD resumes it
        return status == "COMPLETED"

    async def _send_next(self) -> None:
        path = f"/files/{self.upload['upload_id']}"
        # Refused only if the upload was aborted by a request that had no answer in time.
        fine = {410} if self.aborts else set[int]()
        answer = await self._answered("HEAD", path, headers=TUS, fine=fine)
        offset = int(answer.headers.get("Upload-Offset", self.size))
        if offset == self.size:
            await worked_async(wall_ms() + 300)
            return
        most = self._chance.choice((100_000, 3 * MIB, self.size))
        headers = TUS | BODY | {"Upload-Offset": str(offset)}
        url = f"http://127.0.0.1:{self._chance.choice(self._deployment.ports)}{path}"
        body = self.data[offset : offset + most]
        with suppress(httpx.TransportError):
            answer = await self._client.patch(url, content=body, headers=headers, timeout=15)
            told = answer.status_code, answer.text
            assert answer.status_code in {204, 409, 423, *fine, *(LATER - {408, 429})}, told


@asynccontextmanager
async def upload_deployment(folder: Path, *, wide: bool) -> AsyncGenerator[UploadDeployment]:
    async with AsyncExitStack() as stack:
        store = stack.enter_context(EmbeddedServer(data=folder / "redis"))
        objects = stack.enter_context(EmbeddedObjects(folder / "objects"))
        parts: WideParts | None = None
        if wide:
            place = urlsplit(objects.url)
            assert place.hostname is not None
            assert place.port is not None
            proxy = Proxy((place.hostname, place.port), Faults(), tcp=True)
            parts = WideParts(
                stack.enter_context(PostgresServer()),
                stack.enter_context(KafkaBroker()),
                await stack.enter_async_context(proxy),
            )
        deployment = await asyncio.to_thread(UploadDeployment, folder, store, objects, parts)
        try:
            yield deployment
        finally:
            for server in deployment.servers:
                server.end()
