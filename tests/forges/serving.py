"""A GitHub and a GitLab on this machine, as far as their clients need them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.calls.receivers import http, read_request
from tests.tcp_server import LOOPBACK, Reader, Writer, accepting

TOKEN = "forge-token-for-tests"  # noqa: S105 -- of no forge


@dataclass(frozen=True)
class ForgeRequest:
    """One request to the API."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    content: Any


@dataclass
class Reply:
    """One answer of the API."""

    status: int = 200
    content: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    waits: asyncio.Event | None = None
    """It comes once this is set."""


Rule = Callable[[ForgeRequest], Reply | None]


@dataclass
class ForgeServer:
    """Keeps what is posted, by its path, and lists it. Rules come first, and may answer instead."""

    port: int = 0
    asked: list[ForgeRequest] = field(default_factory=list[ForgeRequest])
    kept: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    rules: list[Rule] = field(default_factory=list[Rule])
    hangs_up_after_posts: bool = False
    """The post is kept, and its answer never comes."""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def posts(self) -> list[ForgeRequest]:
        return [request for request in self.asked if request.method == "POST"]

    def answer(self, asked: ForgeRequest) -> Reply:
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return Reply(401, {"message": "Bad credentials"})
        for rule in self.rules:
            if (reply := rule(asked)) is not None:
                return reply
        listed = self.kept.setdefault(asked.path, [])
        if asked.method == "GET":
            size, page = (int(asked.query.get(name, ["1"])[0]) for name in ("per_page", "page"))
            shown, is_last = listed[size * (page - 1) : size * page], len(listed) <= size * page
            etag = f'W/"{sha256(json.dumps(shown).encode()).hexdigest()}"'
            if asked.headers.get("if-none-match") == etag:
                return Reply(304)
            more = () if is_last else self.more(asked.path, size, page + 1)
            return Reply(200, shown, (("etag", etag), *more))
        entry = {"html_url": f"https://forge.example/{len(listed)}", **asked.content}
        listed.append(entry)
        return Reply(201, entry)

    def more(self, path: str, size: int, page: int) -> tuple[tuple[str, str], ...]:
        """The address of the next page, as GitHub gives it: under its own public address."""
        there = f"https://forge.example/api/v3{path}?per_page={size}"
        links = [f'<{there}&page={page}>; rel="next"', f'<{there}&page=99>; rel="last"']
        return (("link", ", ".join(links)),)

    async def serve(self, reader: Reader, writer: Writer) -> None:
        try:
            while True:
                request = await read_request(reader)
                method, target, _ = request.line.split(" ")
                parts = urlsplit(target)
                content = json.loads(request.body) if request.body else None
                asked = ForgeRequest(
                    method, parts.path, parse_qs(parts.query), request.headers, content
                )
                self.asked.append(asked)
                reply = self.answer(asked)
                if reply.waits is not None:
                    await reply.waits.wait()
                if method == "POST" and self.hangs_up_after_posts:
                    return
                text = b"" if reply.status == 304 else json.dumps(reply.content).encode()
                writer.write(http(f"{reply.status} Said", text, reply.headers))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return


@asynccontextmanager
async def running_forge() -> AsyncGenerator[ForgeServer]:
    forge = ForgeServer()
    async with accepting(forge.serve) as server:
        forge.port = server.port
        yield forge


def refuses(status: int, message: object, **headers: str) -> Rule:
    """Answers every post with that status."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return lambda asked: (
        Reply(status, {"message": message}, named) if asked.method == "POST" else None
    )
