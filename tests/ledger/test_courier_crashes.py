"""Couriers that are killed and frozen at random moments: nothing is lost, every key is in order."""

import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

from sqlalchemy import func, select

from tests.calls.receivers import receiving
from tests.ledger.kafka import KafkaBroker
from tests.ledger.numbered_events import an_event, expected, first_arrivals, put
from tests.ledger.outbox_facts import all_gone, at_most
from tests.ledger.test_redis_sink import stream
from tests.ledger.test_webhook_sink import SECRET, WebhookEndpoint
from tests.programs import ROOT, Program
from tests.waiting import HANGS, eventually_async
from towpath.embedded import EmbeddedServer
from towpath.ledger.database.schema import couriers as leases
from towpath.ledger.database.schema import now_ms
from towpath.ledger.ledger import Ledger

KEYS, ROUNDS, EACH = 6, 6, 6
Arrived = Callable[[], Awaitable[list[bytes]]]
"""All that reached the sink, in order."""


class CourierProcesses:
    """Two courier processes; a killed one is replaced."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._at_work = [self._started(), self._started()]

    def _started(self) -> Program[bytes]:
        command = [
            sys.executable,
            "-W",
            "error",
            "-m",
            "tests.ledger.courier_program",
            *self._words,
        ]
        return Program(command, cwd=ROOT, stdin=subprocess.PIPE)

    def kill(self, chance: random.Random) -> None:
        at = chance.randrange(len(self._at_work))
        self._at_work[at].kill()
        self._at_work[at].communicate()
        self._at_work[at] = self._started()

    async def freeze(self, chance: random.Random, until: Callable[[], Awaitable[object]]) -> None:
        """Freezes one: it keeps its lease and does not notice how time passes."""
        frozen = chance.choice(self._at_work)
        frozen.send_signal(signal.SIGSTOP)
        try:
            await eventually_async(until)
        finally:
            frozen.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends them orderly: each gives back its lease."""
        for process in self._at_work:
            process.communicate(timeout=HANGS)
            assert process.returncode == 0


async def carried_through_crashes(url: str, words: list[str], arrived: Arrived, seed: int) -> None:
    chance = random.Random(seed)
    async with Ledger(url, sinks=["events"]) as ledger:
        await ledger.migrate()
        couriers = CourierProcesses(url, *words)
        try:
            for round_ in range(ROUNDS):
                for number in range(round_ * EACH + 1, (round_ + 1) * EACH + 1):
                    await put(ledger, *(an_event(f"k{key}", number) for key in range(KEYS)))
                left = chance.randrange(1, KEYS * EACH)
                await at_most(ledger, left)
                if chance.random() < 0.7:
                    couriers.kill(chance)
                else:
                    await couriers.freeze(chance, lambda: _lease_is_over(ledger))
            await all_gone(ledger)
        finally:
            couriers.end()
        assert await ledger.outbox.refused("events") == []
    assert first_arrivals(await arrived()) == expected(KEYS, ROUNDS * EACH)


class TestEveryEventArrivesInTheOrderOfItsKey:
    async def test_in_a_stream_of_redis(self, url: str, server: EmbeddedServer, seed: int) -> None:
        async def arrived() -> list[bytes]:
            return [entry["event"] for entry in stream(server)]

        await carried_through_crashes(url, ["redis", server.url], arrived, seed)

    async def test_at_a_receiver_that_fails_at_times(self, url: str, seed: int) -> None:
        """One call in ten is answered with 500, one in ten is accepted and not answered."""
        chance = random.Random(seed)

        def say(request: object) -> str | None:
            failure = chance.random()
            if failure < 0.1:
                endpoint.taken.append(endpoint.requests[-1].body)
                return None
            return "500 Oops" if failure < 0.2 else "200 OK"

        async def arrived() -> list[bytes]:
            return endpoint.taken

        endpoint = WebhookEndpoint(say)
        async with receiving(endpoint):
            words = ["webhook", endpoint.url(), SECRET]
            await carried_through_crashes(url, words, arrived, seed)

    async def test_in_kafka(self, url: str, seed: int) -> None:
        with KafkaBroker() as broker:

            async def arrived() -> list[bytes]:
                return [message.value for message in await broker.messages()]

            await carried_through_crashes(url, ["kafka", broker.address], arrived, seed)


async def _lease_is_over(ledger: Ledger) -> bool:
    """Whether no courier holds the lease, or its holder was silent for too long."""
    open_ = select(func.count()).where(leases.c.expires_at > now_ms())
    return await ledger.read(lambda connection: connection.scalar(open_)) == 0
