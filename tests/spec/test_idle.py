"""An idle process sends at most one command per 5 s and connection, measured on a real clock."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.spec.jobs_in_states import LEASE, REVIEWS
from tests.waiting import HANGS, eventually_async
from towpath.clock import hours
from towpath.embedded import EmbeddedServer, Listen
from towpath.engine.engine import Engine

# 1700000000.123456 [0 127.0.0.1:40000] "BLPOP" "{reviews}:wake" "5.0"
_LINE = re.compile(r'\+(?P<at>[\d.]+) \[0 (?P<client>[\d.]+:\d+)\] "(?P<command>\w+)"')
_GREETING = "CLIENT"
"""How a new connection introduces itself."""


@pytest.fixture
def tcp_server() -> Iterator[EmbeddedServer]:
    """A server on a port, where it can tell connections apart."""
    with EmbeddedServer(listen=Listen.PORT) as server:
        yield server


@asynccontextmanager
async def commands(server: EmbeddedServer) -> AsyncGenerator[AsyncIterator[re.Match[str]]]:
    """The commands that clients send from now on, as Redis sees them: when, which connection,
    what.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"MONITOR\r\n")
    assert await reader.readline() == b"+OK\r\n"

    async def lines() -> AsyncIterator[re.Match[str]]:
        async for line in reader:
            found = _LINE.match(line.decode())
            if found and found["command"] != _GREETING:
                yield found

    try:
        yield lines()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_an_idle_process_sends_one_command_per_five_seconds_and_connection(
    tcp_server: EmbeddedServer,
) -> None:
    async def sends_few() -> bool:
        async with Engine(tcp_server.url) as engine, engine.events.follow(REVIEWS):
            await engine.claim(REVIEWS, worker="anna", lease=LEASE)
            async with commands(tcp_server) as sent:
                claim = asyncio.create_task(
                    engine.claim(REVIEWS, worker="anna", lease=LEASE, wait=hours(1))
                )
                last: dict[str, float] = {}
                pauses: dict[str, float] = {}
                async for command in sent:
                    client, at = command["client"], float(command["at"])
                    if client in last:
                        pauses[command["command"]] = at - last[client]
                    last[client] = at
                    if {"EVALSHA", "BLPOP"} <= set(pauses):
                        break
                claim.cancel()
                await asyncio.wait([claim])
        # A claim, a blocking read for work, and one for events.
        return len(last) <= 3 and min(pauses.values()) >= 4.9

    # After seconds of silence a busy Redis may be connected to anew, but not every time.
    async with asyncio.timeout(HANGS):
        await eventually_async(sends_few)
