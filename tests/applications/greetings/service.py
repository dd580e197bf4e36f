"""What greetings do: each is a job, and its result the greeting."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from tests.applications.greetings import GREETED, GREETING_ASKED, GreetingsOptions
from towpath import QueueOptions, Towpath, TowpathError
from towpath.apps.application import ErrorCodes, Host

QUEUE = "greetings"
QUEUES = {QUEUE: QueueOptions(max_attempts=3)}


class NobodyThere(TowpathError):
    """Nobody is called that."""

    code = "nobody_there"
    remedy = "Greet somebody else."


ERRORS = {NobodyThere: ErrorCodes(status=404, exit=5)}


class Greetings:
    """Greets people."""

    def __init__(self, host: Host) -> None:
        self.host, self.looks = host, 0

    async def greet(self, name: str) -> str:
        """Ask for a greeting; the id of its job. Raises NobodyThere."""
        if name == "nobody":
            raise NobodyThere("nobody is there")
        if name == "defect":
            raise RuntimeError("words that nobody may read")
        self.host.metrics.own(GREETED).inc()
        job = (await self.host.engine.submit(QUEUE, name.encode(), id=name)).id
        self.host.log.emit(GREETING_ASKED, person=name, job=job)
        return job

    async def look(self) -> None:
        self.looks += 1
        await asyncio.Event().wait()


def serving(host: Host) -> AbstractAsyncContextManager[Greetings]:
    return nullcontext(Greetings(host))


def tasks(greetings: Greetings) -> dict[str, Callable[[], Awaitable[None]]]:
    return {"look": greetings.look}


async def probe(greetings: Greetings) -> None:
    if greetings.host.options.word == "no":
        raise NobodyThere("nobody likes that word")
    await greetings.host.engine.inspect.counts(QUEUE)


class Consumers:
    """Greets beside the server."""

    def __init__(self, options: GreetingsOptions) -> None:
        self._options = options

    @asynccontextmanager
    async def added(self, app: Towpath) -> AsyncGenerator[None]:
        async def greet(name: bytes) -> str:
            return f"{self._options.word * self._options.times} {name.decode()}"

        app.handler(QUEUE)(greet)
        yield
