"""A run with faults causes no warning of asyncio, neither by the proxy nor by connections of the
engine that the proxy cuts.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.amounts import amount
from towpath.clock import minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.testing.proxy import Faults, Proxy

LIMITS = Limits(answer=seconds(2), give_up=seconds(60))
ROUNDS = amount(4, thoroughly=50)
DROPS = 20
"""How often a round loses its connections. A slow machine gets no job through while they drop."""


class Warnings:
    """Runs a test's body in one kind of event loop, and keeps the warnings of that loop."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._new_loop = new_loop
        self.found: list[dict[str, Any]] = []

    def run(self, body: Coroutine[Any, Any, None]) -> None:
        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: self.found.append(context))
            await body
            gc.collect()  # asyncio reports an unread exception when its future is deleted

        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(watched())
        gc.collect()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def warnings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Warnings:
    # A stream reads the error of its lost connection when it is deleted. The collector may delete
    # the future with the error first: here it always does.
    def do_nothing(_: object) -> None: ...

    monkeypatch.setattr(asyncio.StreamReaderProtocol, "__del__", do_nothing)
    return Warnings(request.param)


async def use(engine: Engine) -> None:
    for _ in range(5):
        await engine.submit("faults", b"x" * 10_000)
        for lease in await engine.claim("faults", worker="w", lease=minutes(1)):
            await engine.complete(lease)


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "unix"])
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_connections_that_drop_leave_no_warning(
    server: EmbeddedServer, warnings: Warnings, *, tcp: bool, reset: bool
) -> None:
    async def body() -> None:
        faults = Faults(reset=reset, cut_replies=0.05, cut_requests=0.05, delay=0.0005)
        async with (
            Proxy(server.address, faults, tcp=tcp) as proxy,
            Engine(proxy.url, limits=LIMITS) as engine,
        ):
            for number in range(ROUNDS):
                faults.piece = 100 if number % 2 else 65_536
                users = [asyncio.create_task(use(engine)) for _ in range(5)]
                for _ in range(DROPS):
                    await asyncio.wait(users, timeout=0.002)
                    await proxy.drop_all()
                    await asyncio.wait(users, timeout=0.02)
                await asyncio.gather(*users)

    warnings.run(body())
    assert warnings.found == []


def test_a_server_that_dies_leaves_no_warning(warnings: Warnings) -> None:
    async def body() -> None:
        with EmbeddedServer() as server:
            async with (
                Proxy(server.address, Faults(reset=True), tcp=True) as proxy,
                Engine(proxy.url, limits=LIMITS) as engine,
            ):
                for _ in range(3):
                    users = [asyncio.create_task(use(engine)) for _ in range(5)]
                    server.kill()
                    await asyncio.wait(users, timeout=0.05)
                    server.start()
                    await asyncio.gather(*users)

    warnings.run(body())
    assert warnings.found == []
