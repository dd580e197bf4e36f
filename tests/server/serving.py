"""The server as a process: started from the command line, called over real sockets."""

import asyncio
import json
import os
import selectors
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Coroutine, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from tests.programs import COMMAND, Program
from tests.queue_numbers import number
from tests.server.description import Description
from tests.waiting import HANGS
from towpath.embedded.process import ask
from towpath.engine.keys import keys_of
from towpath.ids import QueueName
from towpath.ledger.ledger import Ledger

T = TypeVar("T")
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""One for all clients: each would make its own otherwise, which takes longer than most tests."""


@dataclass
class RunningServer:
    """A running `towpath up` or `towpath serve`."""

    process: Program[str]
    said: dict[str, Any]
    database: str
    log: Path
    own_key: str = ""
    clients: list[httpx.Client] = field(default_factory=list)
    description: Description | None = None
    """With it, every answer that a client gets is held against it."""

    @property
    def address(self) -> str:
        return self.said["address"]

    @property
    def key(self) -> str:
        return self.own_key or Path(self.said["api_key_file"]).read_text().strip()

    @property
    def host_and_port(self) -> tuple[str, int]:
        url = httpx.URL(self.address)
        assert url.port is not None
        return url.host, url.port

    def client(self, key: str | None = None) -> httpx.Client:
        """A client with *key*; the first key by default, none for an empty one."""
        secret = self.key if key is None else key
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        client = httpx.Client(
            base_url=self.address,
            headers=headers,
            timeout=HANGS,
            verify=_NO_TLS,
            event_hooks={"response": [self.description.check] if self.description else []},
        )
        self.clients.append(client)
        return client

    def api(self, queue: str, key: str | None = None) -> "Api":
        return Api(self.client(key), queue)

    def make_key(
        self,
        *scopes: str,
        queues: tuple[str, ...] = ("*",),
        owner: str | None = None,
        expires_at: datetime | None = None,
    ) -> tuple[str, str]:
        """The id and the secret of a new key."""

        async def make() -> tuple[str, str]:
            async with Ledger(self.database) as ledger:
                made = await ledger.keys.create(
                    "test", scopes=scopes, queues=queues, owner=owner, expires_at=expires_at
                )
                return made.info.id, made.secret.get_secret_value()

        return _run(make())

    def revoke(self, id: str) -> None:
        async def revoke() -> None:
            async with Ledger(self.database) as ledger:
                await ledger.keys.revoke(id)

        _run(revoke())

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def store(self) -> Path:
        """The socket of its private Valkey."""
        return Path(self.said["store"].removeprefix("unix://"))

    def asked_for(self, queue: str, selector: str = "") -> bool:
        """Whether a worker has claimed from *queue*, or with one selector there."""
        keys = keys_of(QueueName(queue))
        if selector:
            return ask(self.store, "ZSCORE", keys.asked, selector) is not None
        return number(partial(ask, self.store), keys.meta, "asked_at") > 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(HANGS)

    def stop(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(HANGS)

    def end(self) -> None:
        """Leaves nothing behind, whatever happened."""
        for client in self.clients:
            client.close()
        assert self.process.stdout is not None
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


class Api:
    """One queue's paths."""

    def __init__(self, client: httpx.Client, queue: str) -> None:
        self.client, self.queue = client, queue
        self.root = f"/api/v1/queues/{queue}"

    def get(self, path: str = "", **params: Any) -> httpx.Response:
        return self.client.get(self.root + path, params=params)

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is None:
            return self.client.post(self.root + path, headers=named)
        return self.client.post(self.root + path, json=body, headers=named)

    def delete(self, path: str, **params: Any) -> httpx.Response:
        return self.client.delete(self.root + path, params=params)

    def patch(self, path: str, body: Any) -> httpx.Response:
        return self.client.patch(self.root + path, json=body)

    def put(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.put(self.root + path, json=body, headers=named)

    def submit(self, payload: Any = None, **more: Any) -> Any:
        answer = self.post("/jobs", {"payload": payload, **more})
        assert answer.status_code == 202, answer.text
        return answer.json()

    def claim(self, **wish: Any) -> list[Any]:
        answer = self.post("/claim", {"worker": "w1", **wish})
        assert answer.status_code in (200, 204), answer.text
        return answer.json()["jobs"] if answer.status_code == 200 else []

    def say(self, verb: str, job: Any, **more: Any) -> httpx.Response:
        """Renews, completes, fails or releases *job* with its token."""
        path = f"/jobs/{quote(job['id'], safe='')}/{verb}"
        return self.post(path, {"token": job["token"], **more})

    def look(self, id: str) -> Any:
        answer = self.get(f"/jobs/{quote(id, safe='')}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def bury(self, id: str, reason: str = "hopeless") -> None:
        self.submit(id=id)
        [job] = self.claim()
        assert self.say("fail", job, reason=reason, dead=True).json()["state"] == "dead"


def problem(answer: httpx.Response, status: int) -> Any:
    """The problem in a refusal; the last part of its type is the code."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status
    assert told["detail"]
    assert told["title"]
    if status in (429, 503):
        assert int(answer.headers["retry-after"]) >= 1
    return told


def code(answer: httpx.Response, status: int) -> str:
    return problem(answer, status)["type"].rpartition("/")[2]


# ── starting ─────────────────────────────────────────────────────────────────────────────


PATIENT = (sys.executable, str(Path(__file__).with_name("patient_server.py")))
"""The command with a server that waits for Redis, however busy the machine is."""


def begin(
    *words: str,
    log: Path,
    env: dict[str, str] | None = None,
    port: int = 0,
    command: Sequence[str] = (str(COMMAND),),
) -> Program[str]:
    """Starts a server without waiting for it."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TOWPATH_", "REDIS_"))}
    with log.open("a") as lines:
        return Program(
            [*command, *words, "--port", str(port), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
            env={**inherited, "PYTHONWARNINGS": "default", **(env or {})},
            cwd=log.parent,
        )


def first_line(process: Program[str], log: Path) -> dict[str, Any]:
    """The first output of a server that serves."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if waiting.select(HANGS) else ""
    assert line, f"it did not start:\n{log.read_text()}"
    return json.loads(line)


@contextmanager
def serving(
    *words: str,
    database: str,
    log: Path,
    env: dict[str, str] | None = None,
    port: int = 0,
    command: Sequence[str] = (str(COMMAND),),
) -> Generator[RunningServer]:
    process = begin(*words, log=log, env=env, port=port, command=command)
    own_key = (env or {}).get("TOWPATH_API_KEY", "")
    running = RunningServer(process, {}, database, log, own_key)
    try:
        running.said = first_line(process, log)
        yield running
    finally:
        running.end()


@contextmanager
def up(home: Path, **env: str) -> Generator[RunningServer]:
    """`towpath up` with its data in *home*. Its Redis is never stopped by the test, so it waits
    long for it.
    """
    data = home / "data"
    database = f"sqlite:///{data}/towpath.db"
    words = ("up", "--data", str(data))
    with serving(*words, database=database, log=home / "log", env=env, command=PATIENT) as served:
        yield served


@contextmanager
def serve(
    home: Path, url: str, *, command: Sequence[str] = (str(COMMAND),), **env: str
) -> Generator[RunningServer]:
    """`towpath serve` on the Redis at *url*, with a database in *home*."""
    database = f"sqlite:///{home}/ledger.db"
    words = ("serve", "--url", url, "--database", database)
    log = home / "log"
    with serving(*words, database=database, log=log, env=env, command=command) as served:
        if not served.own_key:
            _, served.own_key = served.make_key("admin")
        yield served


# ── event streams ────────────────────────────────────────────────────────────────────────


@dataclass
class StreamEvent:
    """One server-sent event."""

    id: str = ""
    event: str = ""
    data: str = ""

    @property
    def job(self) -> str:
        return json.loads(self.data)["job"]


def stream_events(lines: Iterator[str]) -> Iterator[StreamEvent]:
    """The events of a stream, as they come."""
    event = StreamEvent()
    for line in lines:
        name, _, value = line.partition(": ")
        if name in ("id", "event", "data"):
            setattr(event, name, value)
        elif not line and event != StreamEvent():
            yield event
            event = StreamEvent()


# ── below HTTP ───────────────────────────────────────────────────────────────────────────


class RawConnection:
    """A connection that sends any bytes."""

    def __init__(self, served: RunningServer) -> None:
        self._socket = socket.create_connection(served.host_and_port, timeout=HANGS)

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, text: str | bytes) -> None:
        self._socket.sendall(text.encode() if isinstance(text, str) else text)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        with self._socket.makefile("rb") as lines:
            status = int(lines.readline().split()[1])
            headers: dict[str, str] = {}
            while line := lines.readline().strip():
                name, _, value = line.decode().partition(": ")
                headers[name.lower()] = value
            return status, headers, lines.read(int(headers.get("content-length", 0)))

    def status(self) -> int:
        """The status of the next answer, which may go on."""
        with self._socket.makefile("rb") as lines:
            return int(lines.readline().split()[1])

    def statuses(self, count: int) -> list[int]:
        """Those of the next answers, as many as *count*."""
        found = list[int]()
        with self._socket.makefile("rb") as lines:
            while len(found) < count:
                line = lines.readline()
                assert line, found
                if line.startswith(b"HTTP/1.1 "):
                    found.append(int(line.split()[1]))
        return found

    def until(self, mark: bytes) -> None:
        """Reads up to *mark*."""
        read = b""
        while mark not in read:
            part = self._socket.recv(2**16)
            assert part, read
            read = read[-100:] + part

    def closed(self) -> bool:
        """Waits for the other side to close the connection; returns whether it did."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True


def memory(served: RunningServer) -> int:
    """Bytes of memory of the server's process."""
    text = Path(f"/proc/{served.process.pid}/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def processor_time(served: RunningServer) -> float:
    """CPU seconds of the server's process, which other programs do not affect."""
    fields = Path(f"/proc/{served.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs it in a thread: tests with a browser have a running event loop."""
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()
