"""The engine for code without an event loop."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from towpath import BlockingEngine, Engine, QueueOptions, State, hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.errors import JobNotFound, ServerRefused, ServerUnreachable, StillOpen

MAILS = "mails"


class TestABlockingEngine:
    def test_submits_and_looks_up(self, server: EmbeddedServer) -> None:
        with BlockingEngine(server.url) as engine:
            submitted = engine.submit(MAILS, b"hello", lane="anna")
            assert engine.state(submitted.job) is State.READY
            assert engine.job(submitted.job).payload == b"hello"
            assert engine.counts(MAILS).ready == 1
            assert [job.id for job in engine.list(MAILS, State.READY).jobs] == [submitted.id]

    def test_submits_of_many_threads_share_round_trips(self, server: EmbeddedServer) -> None:
        with BlockingEngine(server.url) as engine:
            engine.submit(MAILS, b"first")
            before = server.ask("INFO", "commandstats")
            with ThreadPoolExecutor(16) as pool:
                for _ in range(200):
                    pool.submit(engine.submit, MAILS, b"x")
            assert engine.counts(MAILS).ready == 201
            assert scripts_in(server.ask("INFO", "commandstats")) - scripts_in(before) < 200

    async def test_waits_for_a_result_that_a_worker_brings(self, server: EmbeddedServer) -> None:
        async with Engine(server.url) as engine:
            await engine.configure(MAILS, QueueOptions(keep=hours(1)))
            ref = (await engine.submit(MAILS, b"hello")).job
            told: list[bytes | None] = []

            def wait() -> None:
                with BlockingEngine(server.url) as blocking:
                    told.append(blocking.ended(ref, within=seconds(30)).result)

            waiting = threading.Thread(target=wait)
            waiting.start()
            [lease] = await engine.claim(MAILS, worker="anna", lease=seconds(30))
            await engine.complete(lease, b"sent")
            waiting.join()
            assert told == [b"sent"]

    def test_says_so_when_a_job_does_not_end_in_time(self, server: EmbeddedServer) -> None:
        with BlockingEngine(server.url) as engine:
            ref = engine.submit(MAILS, b"hello").job
            with pytest.raises(StillOpen):
                engine.ended(ref, within=seconds(0.05))

    def test_cancels(self, server: EmbeddedServer) -> None:
        with BlockingEngine(server.url) as engine:
            ref = engine.submit(MAILS, b"hello").job
            assert engine.cancel(ref) is State.CANCELLED
            with pytest.raises(JobNotFound):
                engine.job(ref)


class TestABlockingEngineThatIsNotThere:
    def test_says_that_it_was_not_entered(self, server: EmbeddedServer) -> None:
        engine = BlockingEngine(server.url)
        with pytest.raises(RuntimeError, match="with BlockingEngine"):
            engine.submit(MAILS, b"hello")

    def test_leaves_no_thread_behind_when_its_server_is_gone(self) -> None:
        before = threading.active_count()
        limits = Limits(answer=seconds(0.2), give_up=seconds(0.2))
        with BlockingEngine("unix:///nowhere/at.all", limits=limits) as engine:
            for ask in (engine.check, lambda: engine.submit(MAILS, b"hello")):
                with pytest.raises(ServerUnreachable):
                    ask()
        assert threading.active_count() == before

    def test_leaves_no_thread_behind_when_its_server_refuses_it(
        self, server: EmbeddedServer
    ) -> None:
        before = threading.active_count()
        url = server.url.replace("unix://", "unix://nobody:secret@")
        with pytest.raises(ServerRefused), BlockingEngine(url):
            raise AssertionError("entered without a login")
        assert threading.active_count() == before


def scripts_in(info: object) -> int:
    """How many EVALSHA the server has counted."""
    assert isinstance(info, bytes)
    for line in info.decode().splitlines():
        if line.startswith("cmdstat_evalsha:"):
            return int(line.partition("calls=")[2].partition(",")[0])
    return 0
