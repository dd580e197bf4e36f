"""The engine for code without an event loop."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import HANGS, eventually
from towpath import Engine, QueueOptions, State, hours, seconds
from towpath.app.blocking import Blocking
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.durability import ServerFacts
from towpath.errors import JobNotFound, ServerRefused, ServerUnreachable, StillOpen

MAILS = "mails"


class TestBlocking:
    def test_submits_and_looks_jobs_up(self, server: EmbeddedServer) -> None:
        with Blocking(Engine(server.url)) as blocking:
            submitted = blocking.run(lambda engine: engine.submit(MAILS, b"hello", lane="anna"))
            assert blocking.run(lambda engine: engine.inspect.state(submitted.job)) is State.READY
            assert (
                blocking.run(lambda engine: engine.inspect.job(submitted.job)).payload == b"hello"
            )
            assert blocking.run(lambda engine: engine.inspect.counts(MAILS)).ready == 1
            assert [
                job.id
                for job in blocking.run(lambda engine: engine.inspect.list(MAILS, State.READY)).jobs
            ] == [submitted.id]

    def test_submits_of_many_threads_share_round_trips(self, server: EmbeddedServer) -> None:
        with Blocking(Engine(server.url)) as blocking:
            blocking.run(lambda engine: engine.submit(MAILS, b"first"))
            before = server.ask("INFO", "commandstats")
            with ThreadPoolExecutor(16) as pool:
                for _ in range(200):
                    pool.submit(blocking.run, lambda engine: engine.submit(MAILS, b"x"))
            assert blocking.run(lambda engine: engine.inspect.counts(MAILS)).ready == 201
            assert scripts_in(server.ask("INFO", "commandstats")) - scripts_in(before) < 200

    async def test_waits_for_a_result_that_a_worker_brings(self, server: EmbeddedServer) -> None:
        async with Engine(server.url) as engine:
            await engine.queues.configure(MAILS, QueueOptions(keep=hours(1)))
            ref = (await engine.submit(MAILS, b"hello")).job
            told: list[bytes | None] = []

            def wait() -> None:
                with Blocking(Engine(server.url)) as blocking:
                    job = blocking.run(
                        lambda engine: engine.events.ended(ref, within=seconds(HANGS))
                    )
                    told.append(job.result)

            waiting = threading.Thread(target=wait)
            waiting.start()
            [lease] = await engine.claim(MAILS, worker="anna", lease=seconds(30))
            await engine.complete(lease, b"sent")
            waiting.join()
            assert told == [b"sent"]

    def test_raises_an_error_if_a_job_does_not_end_in_time(self, server: EmbeddedServer) -> None:
        with Blocking(Engine(server.url)) as blocking:
            ref = blocking.run(lambda engine: engine.submit(MAILS, b"hello")).job
            with pytest.raises(StillOpen):
                blocking.run(lambda engine: engine.events.ended(ref, within=seconds(0.05)))

    def test_cancels_a_job(self, server: EmbeddedServer) -> None:
        with Blocking(Engine(server.url)) as blocking:
            ref = blocking.run(lambda engine: engine.submit(MAILS, b"hello")).job
            assert blocking.run(lambda engine: engine.cancel(ref)) is State.CANCELLED
            with pytest.raises(JobNotFound):
                blocking.run(lambda engine: engine.inspect.job(ref))


class TestABlockingEngineThatIsNotOpen:
    def test_refuses_a_call(self, server: EmbeddedServer) -> None:
        blocking = Blocking(Engine(server.url))
        with pytest.raises(RuntimeError, match="with Blocking"):
            blocking.run(lambda engine: engine.submit(MAILS, b"hello"))

    def test_leaves_no_thread_behind_when_redis_is_gone(self) -> None:
        before = threading.active_count()
        limits = Limits(answer=seconds(0.2), give_up=seconds(0.2))
        with Blocking(Engine("unix:///nowhere/at.all", limits=limits)) as blocking:
            with pytest.raises(ServerUnreachable):
                blocking.run(lambda engine: engine.check())
            with pytest.raises(ServerUnreachable):
                blocking.run(lambda engine: engine.submit(MAILS, b"hello"))
        assert threading.active_count() == before

    def test_leaves_no_thread_behind_when_redis_refuses_it(self, server: EmbeddedServer) -> None:
        before = threading.active_count()
        url = server.url.replace("unix://", "unix://nobody:secret@")

        def refused() -> bool:
            """An engine is entered without its login only if Redis was too busy to answer."""
            try:
                with Blocking(Engine(url)) as blocking, pytest.raises(ServerUnreachable):
                    blocking.run(_facts)
            except ServerRefused:
                return True
            return False

        eventually(refused)
        assert threading.active_count() == before


async def _facts(engine: Engine) -> ServerFacts:
    return engine.facts


def scripts_in(info: object) -> int:
    """How many EVALSHA Redis has counted."""
    assert isinstance(info, bytes)
    for line in info.decode().splitlines():
        if line.startswith("cmdstat_evalsha:"):
            return int(line.partition("calls=")[2].partition(",")[0])
    return 0
