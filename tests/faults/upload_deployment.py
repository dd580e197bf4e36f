"""Servers, a Redis and an S3 for uploads, all killed and frozen; and a client that goes on."""

import asyncio
import random
import secrets
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any

import httpx

from tests.faults.timer_deployment import RestartedProcess, free_port
from tests.faults.timer_program import worked_async
from tests.server.serving import begin, first_line
from tests.waiting import HANGS, eventually_async
from towpath.apps.uploads.options import KIB, MIB, UploadsOptions
from towpath.clock import seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.embedded.objects import EmbeddedObjects

KEY = secrets.token_hex(32)
ROOT = "/api/v1/uploads"
LATER = {408, 425, 429, 500, 502, 503, 504}
_AT_ONCE = 3
_SIZES = (100 * KIB, 5 * MIB, 9 * MIB + 1, 17 * MIB)


class UploadDeployment:
    """Two servers with their workers, a Redis that keeps what it has on disk, and an S3."""

    def __init__(self, folder: Path, store: EmbeddedServer, objects: EmbeddedObjects) -> None:
        self.store, self.objects, self._folder = store, objects, folder
        self.database = f"sqlite:///{folder}/ledger.db"
        self.options = UploadsOptions(
            bucket="uploads",
            make_bucket=True,
            endpoint=objects.url,
            access_key=objects.access_key,
            secret_key=objects.secret_key,
            silence=seconds(3),
        )
        self.ports = [free_port() for _ in range(2)]
        self.servers = [
            RestartedProcess(f"server {at}", lambda at=at: self._server(at))
            for at in range(len(self.ports))
        ]

    def _server(self, at: int) -> Any:
        told = {
            "TOWPATH_API_KEY": KEY,
            "TOWPATH_UPLOADS__BUCKET": "uploads",
            "TOWPATH_UPLOADS__MAKE_BUCKET": "true",
            "TOWPATH_UPLOADS__ENDPOINT": self.objects.url,
            "TOWPATH_UPLOADS__ACCESS_KEY": self.objects.access_key,
            "TOWPATH_UPLOADS__SECRET_KEY": self.objects.secret_key,
            "TOWPATH_UPLOADS__BUDGET": str(96 * MIB),
            "TOWPATH_UPLOADS__SILENCE": "3s",
            "TOWPATH_UPLOADS__SWEEP_EVERY": "2s",
        }
        log = self._folder / f"server-{at}.log"
        words = ("serve", "--url", self.store.url, "--database", self.database)
        process = begin(*words, log=log, env=told, port=self.ports[at])
        first_line(process, log)
        return process


class UploadFaults:
    """Faults, one after the other. A frozen server is thawed at the next one, others soon."""

    def __init__(self, deployment: UploadDeployment, chance: random.Random) -> None:
        self._deployment, self._chance = deployment, chance
        self._thaw: list[Callable[[], None]] = []
        self._left: list[str] = []
        self.told: list[str] = []

    async def inject(self) -> None:
        self.thaw()
        lasts = self._chance.uniform(0.5, 4.0)
        kinds = ["server killed", "server frozen", "Redis killed", "Redis frozen", "Redis emptied",
                 "S3 killed", "S3 frozen"]  # fmt: skip
        if not self._left:  # each kind once, before any comes again
            self._left = self._chance.sample(kinds, len(kinds))
        kind = self._left.pop()
        self.told.append(kind)
        await asyncio.to_thread(self._do, kind)
        await worked_async(wall_ms() + round(lasts * 1000))
        if kind != "server frozen":
            self.thaw()

    def thaw(self) -> None:
        for thaw in self._thaw:
            thaw()
        self._thaw.clear()

    def _do(self, kind: str) -> None:
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


def _send(objects: EmbeddedObjects, number: signal.Signals) -> None:
    process = objects._process  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    assert process is not None
    process.send(number)


class UploadClient:
    """A client: what is not answered, or refused for now, is sent again."""

    def __init__(
        self, deployment: UploadDeployment, number: int, chance: random.Random, *, hangs: float
    ) -> None:
        self._deployment, self.number, self._chance, self._hangs = deployment, number, chance, hangs
        self.size = chance.choice(_SIZES)
        self.chunk_size = chance.choice((256 * KIB, MIB, 4 * MIB))
        self.data = random.Random(number).randbytes(self.size)
        self.aborts = number % 10 == 9
        self.upload: dict[str, Any] = {}
        self.failures = 0

    async def run(self) -> None:
        async with httpx.AsyncClient(
            headers={"X-API-Key": KEY}, transport=httpx.AsyncHTTPTransport()
        ) as self._client:
            self.upload = await self._ask("POST", "", json=self._new(), headers=self._name())
            await self._send(range(self.upload["total_chunks"]))
            if self.aborts:
                await self._ask("DELETE", self._path(), fine={409})
                return
            await eventually_async(self._completed, within=self._hangs)

    async def content(self) -> str:
        """The SHA-256 of what comes back."""
        url = f"http://127.0.0.1:{self._deployment.ports[0]}{ROOT}{self._path('/content')}"
        async with httpx.AsyncClient(headers={"X-API-Key": KEY}, timeout=HANGS) as client:
            answer = await client.get(url)
        assert answer.status_code == 200, answer.text
        return sha256(answer.content).hexdigest()

    def _new(self) -> dict[str, Any]:
        checksum = {"algorithm": "sha256", "value": sha256(self.data).hexdigest()}
        more = {"checksum": checksum} if self.number % 3 == 0 else {}
        return {"name": f"{self.number}", "size": self.size, "chunk_size": self.chunk_size, **more}

    def _name(self) -> dict[str, str]:
        return {"Idempotency-Key": f"upload-{self.number}"}

    def _path(self, more: str = "") -> str:
        return f"/{self.upload['upload_id']}{more}"

    async def _completed(self) -> bool:
        """Look how far it is, and do what is asked for: send what is missing, or resume."""
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
                # Completed, aborted or failed meanwhile: `_completed` sees to it.
                path = self._path(f"/chunks/{chunks[0]}?count={len(chunks)}")
                await self._ask("PUT", path, content=body, fine={409, 410})

        await asyncio.gather(*map(one, order))

    def _requests(self, numbers: range) -> list[range]:
        """Chunks by themselves, or several of one part in a request."""
        per_part = self.upload["part_size"] // self.chunk_size
        most = self._chance.choice((1, per_part)) if self.chunk_size <= MIB else 1
        starts = [n for n in numbers if n == numbers[0] or n % per_part % most == 0]
        return [range(a, b) for a, b in pairwise([*starts, numbers.stop])]

    async def _ask(
        self, method: str, path: str, *, fine: frozenset[int] | set[int] = frozenset(), **more: Any
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        # A frozen server is soon left for the other one; on a busy machine each try gets more time.
        limits = chain((2.0, 4.0, 8.0, 15.0, 30.0), repeat(60.0))

        async def answered() -> bool:
            more["timeout"] = next(limits)
            port = self._chance.choice(self._deployment.ports)
            url = f"http://127.0.0.1:{port}{ROOT}{path}"
            with suppress(httpx.TransportError):
                answer = await self._client.request(method, url, **more)
                if answer.status_code not in LATER:
                    assert answer.status_code < 300 or answer.status_code in fine, answer.text
                    found.update(answer.json())
                    return True
            return False

        await eventually_async(answered, within=self._hangs)
        return found


@contextmanager
def upload_deployment(folder: Path) -> Generator[UploadDeployment]:
    with (
        EmbeddedServer(data=folder / "redis") as store,
        EmbeddedObjects(folder / "objects") as objects,
    ):
        deployment = UploadDeployment(folder, store, objects)
        try:
            yield deployment
        finally:
            for server in deployment.servers:
                server.end()
