"""When calls are sent that shall arrive as a job falls due."""

import random
from functools import partial

import pytest

from tests.spec.jobs_in_states import REVIEWS
from towpath.clock import ZERO, milliseconds, minutes, steady
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.server_time import ServerTimes
from towpath.ids import QueueName

QUEUE = QueueName(REVIEWS)


class DistantServer:
    """A Redis whose clock is ahead by *ahead* seconds; *times* learns of it from answers."""

    def __init__(self, chance: random.Random, ahead: float) -> None:
        self.chance, self.ahead, self.now = chance, ahead, chance.uniform(0, 1e6)
        self.times = ServerTimes(goes_by_clock=True)

    def way(self) -> float:
        """How many seconds a message takes in one direction."""
        return self.chance.choice([0.0002, 0.0003, 0.0005, 0.004])

    def clock_ms(self) -> int:
        return int((self.now + self.ahead) * 1000)

    def call(self) -> int:
        """Makes a call; returns the clock of the server."""
        sent_at = self.now
        self.now += self.way()
        said = self.clock_ms()
        self.now += self.way()
        self.times.learn(QUEUE, said, sent_at=sent_at, read_at=self.now)
        return said

    def call_when_due(self, due_ms: int, said: int) -> float:
        """The seconds by which the call for a job due at *due_ms* arrives late; below 0 = early."""
        wait = self.times.until(QUEUE, due_ms, said, at=self.now)
        self.now += wait.total_seconds() + self.way()
        return self.now + self.ahead - due_ms / 1000


class TestACallForAJobThatFallsDue:
    @pytest.mark.parametrize("seed", range(20))
    def test_arrives_at_its_time_and_not_before(self, seed: int) -> None:
        chance = random.Random(seed)
        server = DistantServer(chance, ahead=chance.uniform(1e6, 2e9))
        for _ in range(50):
            server.call()
            server.now += chance.uniform(0, 0.02)
        for _ in range(100):
            said = server.call()
            late = server.call_when_due(said + chance.randint(20, 300), said)
            assert 0 <= late < 0.004 + 0.001, f"seed {seed}"

    @pytest.mark.parametrize("step", [-3600.0, -0.05, 0.05, 3600.0])
    def test_arrives_in_time_after_the_clock_of_redis_was_set(self, step: float) -> None:
        server = DistantServer(random.Random(1), ahead=1e9)
        for _ in range(50):
            server.call()
        server.ahead += step
        server.call()
        said = server.call()
        assert 0 <= server.call_when_due(said + 50, said) < 0.01

    def test_follows_a_clock_that_runs_slower(self) -> None:
        server = DistantServer(random.Random(1), ahead=1e9)
        for _ in range(200):
            server.call()
            server.now += 5
            server.ahead -= 5 * 2e-5
        said = server.call()
        assert 0 <= server.call_when_due(said + 50, said) < 0.01

    def test_is_sent_at_once_for_a_due_job_and_never_without_one(self) -> None:
        server = DistantServer(random.Random(1), ahead=1e9)
        said = server.call()
        assert server.times.until(QUEUE, said, said, at=server.now) == ZERO
        assert server.times.until(QUEUE, said + 1, said, at=server.now + 1) > ZERO

    def test_waits_for_the_difference_on_a_manual_clock(self) -> None:
        times = ServerTimes(goes_by_clock=False)
        times.learn(QUEUE, 1000, sent_at=1, read_at=2)
        assert times.until(QUEUE, 1007, 1000, at=2) == milliseconds(7)


class TestAWait:
    async def test_never_ends_before_its_time(self, server: EmbeddedServer) -> None:
        """Event loops round to milliseconds; a claim that is early by less than that gets
        nothing.
        """
        async with Engine(server.url) as engine:
            for micros in range(1050, 3000, 100):
                began = steady()
                within = milliseconds(micros / 1000)
                assert not await engine.wait_for_work(REVIEWS, within=within)
                assert steady() - began >= within.total_seconds()

    async def test_that_is_watched_calls_back_once(self, server: EmbeddedServer) -> None:
        called: list[bool] = []
        async with Engine(server.url) as engine:
            watch = partial(engine.watch_for_work, REVIEWS, called.append, since=steady())
            watch(within=milliseconds(1)).cancel()
            watch(within=milliseconds(2))
            await engine.wait_for_work(REVIEWS, within=milliseconds(9))
            assert called == [False]
            watch(within=minutes(1))
            engine.hand_on(REVIEWS)
            assert called == [False, True]
