"""Threads without an event loop that wait for the end of jobs."""

import gc
import signal
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.blocking.engine_without_loop import engine_here
from tests.blocking.test_tls_here import PATIENT as SLOW
from tests.faults.moving_slot import MovingSlot, wait_until_agreed
from tests.queue_numbers import number, set_numbers
from tests.spec.test_tls import TlsFiles, at, files, needs_tls, port
from tests.waiting import HANGS, eventually
from towpath import Engine, QueueOptions, State, hours, minutes, seconds
from towpath.clock import Duration
from towpath.embedded import EmbeddedCluster, EmbeddedSentinel, EmbeddedServer
from towpath.embedded.process import items
from towpath.engine import blocking_ends
from towpath.engine.blocking import run_to_end
from towpath.engine.blocking_ends import BlockingEnds
from towpath.engine.channel import Limits
from towpath.engine.keys import keys_of
from towpath.engine.model import JobInfo, JobRef, job_ref
from towpath.engine.options import EventPolicy
from towpath.errors import EngineClosed, JobNotFound, ServerUnreachable, StillOpen
from towpath.ids import QueueName

__all__ = ["files", "port"]
MAILS = QueueName("mails")
KEYS = keys_of(MAILS)
LONG = seconds(HANGS)
CHANNELS = 3
HASTY = Limits(answer=seconds(0.3), give_up=seconds(HANGS), channels=CHANNELS)
"""Sends a call again soon, and never gives up."""
SHORT = Limits(answer=seconds(0.2), give_up=seconds(0.3))


@pytest.fixture
def only_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads look at their jobs only after an event."""
    monkeypatch.setattr(blocking_ends, "LOOK_EVERY", hours(1))


@contextmanager
def opened(url: str, limits: Limits = HASTY) -> Generator[Engine]:
    """An engine for threads, with a queue that keeps ended jobs."""
    with engine_here(url, limits=limits) as engine:
        run_to_end(engine.queues.configure(MAILS, QueueOptions(keep=hours(1))))
        yield engine


def submit(engine: Engine, id: str, queue: str = MAILS) -> JobRef:
    return run_to_end(engine.submit(queue, b"x", id=id)).job


def complete(engine: Engine, result: bytes) -> None:
    """Claims the next job, and completes it."""
    [lease] = run_to_end(engine.claim(MAILS, worker="w", lease=seconds(60)))
    run_to_end(engine.complete(lease, result))


def wait_for(engine: Engine, job: JobRef, within: Duration = LONG) -> JobInfo:
    return run_to_end(engine.events.ended(job, within=within))


class Threads:
    """Starts threads that wait for jobs."""

    def __init__(self, engine: Engine, server: EmbeddedServer) -> None:
        self._engine, self._server = engine, server
        self._waiting = 0

    def begin(self, job: JobRef, within: Duration = LONG) -> Future[JobInfo]:
        """Waits for the job in a new thread; returns when the thread waits for events."""
        found: Future[JobInfo] = Future()

        def work() -> None:
            try:
                found.set_result(wait_for(self._engine, job, within))
            except BaseException as error:  # noqa: BLE001 -- for whoever looks at the future
                found.set_exception(error)

        thread = threading.Thread(target=work)
        thread.start()
        eventually(lambda: found.done() or _waits(thread))
        eventually(lambda: found.done() or reads(self._server))
        return found


def _waits(thread: threading.Thread) -> bool:
    """Whether a thread waits for events, or for another thread that does."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- where the thread is
    names: set[str] = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return "_wait_for_news" in names


def reads(server: EmbeddedServer) -> int:
    """How many connections have a blocking read of events."""
    return sum("cmd=xread" in client and "flags=b" in client for client in clients(server))


def clients(server: EmbeddedServer) -> list[str]:
    answer = server.ask("CLIENT", "LIST", "TYPE", "normal")
    assert isinstance(answer, bytes)
    return answer.decode().splitlines()


def ends_of(engine: Engine) -> BlockingEnds:
    ends = engine._blocking_ends  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- there is no other way to it
    assert ends is not None
    return ends


@pytest.mark.usefixtures("only_events")
class TestAThreadThatWaitsForAJob:
    def test_returns_a_job_that_has_ended(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            job = submit(engine, "a")
            complete(engine, b"sent")
            found = wait_for(engine, job)
            assert (found.state, found.result, reads(server)) == (State.DONE, b"sent", 0)

    def test_returns_the_job_when_it_ends(self, server: EmbeddedServer) -> None:
        before = threading.active_count()
        with opened(server.url) as engine:
            waiting = Threads(engine, server).begin(submit(engine, "a"))
            assert threading.active_count() == before + 1
            complete(engine, b"sent")
            assert waiting.result(HANGS).result == b"sent"

    def test_returns_a_job_that_ends_while_the_thread_looks_at_it(
        self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The job ends right after the thread saw that it is open, and before the thread reads
        events.
        """
        with opened(server.url) as engine:
            job, looks = submit(engine, "a"), ends_of(engine)._look  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the moment has no other handle

            async def look(*args: Any) -> JobInfo | None:
                found = await looks(*args)
                if found is None:
                    complete(engine, b"sent")
                return found

            monkeypatch.setattr(ends_of(engine), "_look", look)
            assert wait_for(engine, job).result == b"sent"

    def test_returns_jobs_that_die_and_that_are_cancelled(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            threads = Threads(engine, server)
            dead, cancelled = submit(engine, "dead"), submit(engine, "cancelled")
            futures = [threads.begin(job) for job in (dead, cancelled)]
            [lease] = run_to_end(engine.claim(MAILS, worker="w", lease=seconds(60)))
            run_to_end(engine.bury(lease, "no such address"))
            run_to_end(engine.cancel(cancelled))
            states = [future.result(HANGS).state for future in futures]
            assert states == [State.DEAD, State.CANCELLED]

    def test_learns_that_the_job_is_deleted(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            run_to_end(engine.queues.reconfigure(MAILS, QueueOptions(keep=seconds(0))))
            waiting = Threads(engine, server).begin(submit(engine, "a"))
            complete(engine, b"sent")
            assert isinstance(waiting.exception(HANGS), JobNotFound)

    def test_is_refused_if_the_job_does_not_exist(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine, pytest.raises(JobNotFound):
            wait_for(engine, job_ref(MAILS, "unknown"))

    @pytest.mark.parametrize("limit", [0, 0.05])
    def test_learns_at_its_time_limit_that_the_job_is_open(
        self, server: EmbeddedServer, limit: float
    ) -> None:
        with opened(server.url) as engine:
            job = submit(engine, "a")
            with pytest.raises(StillOpen):
                wait_for(engine, job, seconds(limit))

    def test_uses_one_connection_for_job_after_job(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            connections: set[str] = set()
            for number in range(5):
                waiting = Threads(engine, server).begin(submit(engine, f"{number}"))
                connections |= {
                    client.split()[0] for client in clients(server) if "=xread" in client
                }
                complete(engine, b"")
                assert waiting.result(HANGS).state is State.DONE
            assert len(connections) == 1

    def test_registers_its_interest_in_ends_again(
        self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Any thread that looks at its jobs does so, once it is time."""
        monkeypatch.setattr(blocking_ends, "LOOK_EVERY", seconds(0.05))
        monkeypatch.setattr(blocking_ends, "_WANTED_AGAIN", 0.0)
        with opened(server.url) as engine:
            waiting = Threads(engine, server).begin(submit(engine, "a"))
            set_numbers(server.ask, KEYS.meta, awaited=1)
            eventually(lambda: number(server.ask, KEYS.meta, "awaited") > 1)
            complete(engine, b"")
            assert waiting.result(HANGS).state is State.DONE

    def test_returns_the_job_though_the_queue_writes_no_events_any_more(
        self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each thread also looks without events now and then."""
        monkeypatch.setattr(blocking_ends, "LOOK_EVERY", seconds(0.05))
        with opened(server.url) as engine:
            waiting = Threads(engine, server).begin(submit(engine, "a"))
            change = engine.queues.change_options
            run_to_end(change(MAILS, lambda known: replace(known, events=EventPolicy.NONE)))
            complete(engine, b"sent")
            assert waiting.result(HANGS).result == b"sent"


@pytest.mark.usefixtures("only_events")
class TestThreadsThatWaitForJobsOfAQueue:
    def test_share_one_blocking_read(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            threads = Threads(engine, server)
            jobs = [submit(engine, f"{number}") for number in range(30)]
            futures = [threads.begin(job) for job in jobs]
            assert reads(server) == 1
            for job in reversed(jobs):
                run_to_end(engine.cancel(job))
            assert {future.result(HANGS).state for future in futures} == {State.CANCELLED}
            assert sum("xread" in client for client in clients(server)) <= 1

    def test_all_return_the_same_job(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            threads, job = Threads(engine, server), submit(engine, "a")
            futures = [threads.begin(job) for _ in range(10)]
            complete(engine, b"sent")
            assert {future.result(HANGS).result for future in futures} == {b"sent"}

    def test_take_over_the_read_of_a_thread_whose_job_has_ended(
        self, server: EmbeddedServer
    ) -> None:
        with opened(server.url) as engine:
            threads = Threads(engine, server)
            jobs = [submit(engine, f"{number}") for number in range(5)]
            for job, future in [(job, threads.begin(job)) for job in jobs]:
                run_to_end(engine.cancel(job))
                assert future.result(HANGS).state is State.CANCELLED

    def test_take_over_the_read_of_a_thread_whose_time_is_over(
        self, server: EmbeddedServer
    ) -> None:
        with opened(server.url) as engine:
            threads = Threads(engine, server)
            first, second = submit(engine, "first"), submit(engine, "second")
            early = threads.begin(first, seconds(0.5))
            late = threads.begin(second)
            assert isinstance(early.exception(HANGS), StillOpen)
            run_to_end(engine.cancel(second))
            assert late.result(HANGS).state is State.CANCELLED

    def test_take_over_the_read_of_a_thread_that_ctrl_c_ended(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            first, second = submit(engine, "first"), submit(engine, "second")
            main, others = threading.get_ident(), list[Future[JobInfo]]()

            def interrupt() -> None:
                eventually(lambda: reads(server))
                others.append(Threads(engine, server).begin(second))
                signal.pthread_kill(main, signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                wait_for(engine, first)
            thread.join()
            run_to_end(engine.cancel(second))
            assert others[0].result(HANGS).state is State.CANCELLED
            complete(engine, b"sent")
            assert wait_for(engine, first).result == b"sent"

    def test_take_over_the_read_of_a_thread_that_could_not_hand_it_over(
        self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C may come before the thread's first step out of the queue. The others notice when
        they look at their jobs.
        """
        with opened(server.url) as engine:
            first, second = submit(engine, "first"), submit(engine, "second")

            async def vanish(*_: object) -> None:
                """Leaves without handing anything over."""

            with monkeypatch.context() as patched:
                patched.setattr(ends_of(engine), "_leave", vanish)
                with pytest.raises(StillOpen):
                    wait_for(engine, first, seconds(0.05))
            gc.collect()
            waiting = Threads(engine, server).begin(second)
            run_to_end(engine.cancel(second))
            assert waiting.result(HANGS).state is State.CANCELLED


@pytest.mark.usefixtures("only_events")
class TestTheConnectionsOfWaitingThreads:
    def test_are_the_channels_and_one_for_fifty_threads(self, server: EmbeddedServer) -> None:
        before = len(clients(server))
        with opened(server.url) as engine:
            seen: list[int] = []
            stopped = threading.Event()

            def count() -> None:
                while not stopped.is_set():
                    seen.append(len(clients(server)))

            def live(thread: int) -> None:
                for number in range(5):
                    job = submit(engine, f"{thread}-{number}")
                    assert run_to_end(engine.inspect.state(job)) is State.READY
                    run_to_end(engine.cancel(job))
                    assert wait_for(engine, job).state is State.CANCELLED
                last = submit(engine, f"{thread}-last")
                with pytest.raises(StillOpen):
                    wait_for(engine, last, seconds(0.3))

            counting = threading.Thread(target=count)
            counting.start()
            with ThreadPoolExecutor(50) as pool:
                list(pool.map(live, range(50)))
            stopped.set()
            counting.join()
            # The test's own connection is among them.
            assert max(seen) - before <= CHANNELS + 1
            assert max(seen) - before > CHANNELS - 1

    def test_are_limited_however_many_queues_are_waited_for(
        self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Further queues are read on the channels, and on a connection of their own when one is
        free.
        """
        monkeypatch.setattr(blocking_ends, "READS_MOST", 2)
        with opened(server.url) as engine:
            threads = Threads(engine, server)
            jobs = [submit(engine, "a", f"mails-{number}") for number in range(5)]
            futures = [threads.begin(job) for job in jobs]
            eventually(lambda: reads(server) == 2)
            for job, future in reversed(list(zip(jobs, futures, strict=True))):
                run_to_end(engine.cancel(job))
                # A queue without `keep` forgets the job at once.
                assert isinstance(future.exception(HANGS), JobNotFound)
            assert sum("xread" in client for client in clients(server)) <= CHANNELS + 2

    def test_are_closed_but_one_when_no_thread_waits(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            threads = Threads(engine, server)
            jobs = [submit(engine, "a", f"mails-{number}") for number in range(4)]
            futures = [threads.begin(job) for job in jobs]
            eventually(lambda: reads(server) == 4)
            for job, future in zip(jobs, futures, strict=True):
                run_to_end(engine.cancel(job))
                future.exception(HANGS)
            eventually(lambda: sum("cmd=xread" in client for client in clients(server)) == 1)

    def test_are_given_to_queues_that_wait_for_one(
        self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blocking_ends, "READS_MOST", 1)
        with opened(server.url) as engine:
            threads = Threads(engine, server)
            first, second = submit(engine, "a", "mails-1"), submit(engine, "a", "mails-2")
            early, late = threads.begin(first), threads.begin(second)
            run_to_end(engine.cancel(first))
            early.exception(HANGS)
            eventually(lambda: reads(server) == 1)
            run_to_end(engine.cancel(second))
            assert isinstance(late.exception(HANGS), JobNotFound)


@pytest.mark.usefixtures("only_events")
class TestEventsThatAreMissing:
    """A thread learns that events may be missing, and looks at its jobs."""

    def test_because_nobody_wanted_them_are_made_up_for(self, server: EmbeddedServer) -> None:
        """Redis wrote a mark in place of the first missing event."""
        with opened(server.url) as engine:
            waiting = Threads(engine, server).begin(submit(engine, "a"))
            set_numbers(server.ask, KEYS.meta, watched=0, awaited=1)
            complete(engine, b"sent")
            assert waiting.result(HANGS).result == b"sent"
        [gap, *_] = items(server.ask("XRANGE", KEYS.events, "-", "+"))[-1:]
        assert b"gap" in items(items(gap)[1])

    def test_because_they_were_cut_before_they_were_read_are_made_up_for(
        self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blocking_ends, "_TRUSTED", 0.0)
        with opened(server.url) as engine:
            job = submit(engine, "a")
            run_to_end(engine.cancel(submit(engine, "other")))
            read = ends_of(engine)._read  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the moment has no other handle
            moments = [True]

            async def read_late(*args: Any) -> None:
                if moments:
                    moments.clear()
                    run_to_end(engine.cancel(job))
                    server.ask("XTRIM", KEYS.events, "MAXLEN", 0)
                await read(*args)

            run_to_end(engine.events._feeds.want(MAILS, blocking_ends.Wanted.ENDS))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- so that there is a place
            run_to_end(engine.cancel(submit(engine, "another")))
            monkeypatch.setattr(ends_of(engine), "_read", read_late)
            assert wait_for(engine, job).state is State.CANCELLED

    def test_because_redis_forgot_who_wants_them_are_made_up_for(
        self, server: EmbeddedServer
    ) -> None:
        """The reader registers again after it lost its connection, and tells the other threads."""
        with opened(server.url) as engine:
            threads = Threads(engine, server)
            first, second = submit(engine, "first"), submit(engine, "second")
            reader, other = threads.begin(first), threads.begin(second)
            set_numbers(server.ask, KEYS.meta, watched=0, awaited=0)
            server.ask("HDEL", KEYS.meta, "awaited_as")
            run_to_end(engine.cancel(second))
            server.ask("CLIENT", "KILL", "TYPE", "normal")
            assert other.result(HANGS).state is State.CANCELLED
            run_to_end(engine.cancel(first))
            assert reader.result(HANGS).state is State.CANCELLED


class TestARedisThatIsAwayDuringAWait:
    @pytest.mark.usefixtures("only_events")
    def test_and_resets_connections_is_waited_for(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            jobs = [submit(engine, f"{number}") for number in range(5)]
            futures = [Threads(engine, server).begin(job) for job in jobs]
            for job, future in zip(jobs, futures, strict=True):
                server.ask("CLIENT", "KILL", "TYPE", "normal")
                run_to_end(engine.cancel(job))
                assert future.result(HANGS).state is State.CANCELLED

    @pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
    def test_and_comes_back_is_waited_for(self, tmp_path: Any, *, frozen: bool) -> None:
        with (
            EmbeddedServer(data=tmp_path) as server,
            opened(server.url) as engine,
        ):
            server.ask("CONFIG", "SET", "appendonly", "yes")
            waiting = Threads(engine, server).begin(submit(engine, "a"))
            if frozen:
                server.pause()
                server.unpause()
            else:
                server.stop()
                server.start()
            complete(engine, b"sent")
            assert waiting.result(HANGS).result == b"sent"

    def test_is_waited_for_by_an_engine_that_never_used_the_queue(self) -> None:
        """The engine asks for the queue's options first: that is part of its wait."""
        with EmbeddedServer() as server, opened(server.url) as producer:
            job = submit(producer, "a")
            complete(producer, b"sent")
            with engine_here(server.url, limits=SHORT) as engine:
                server.pause()
                with pytest.raises(ServerUnreachable):
                    run_to_end(engine.submit("others", b"x"))
                back = threading.Timer(0.5, server.unpause)
                back.start()
                assert wait_for(engine, job).result == b"sent"
                back.join()

    @pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
    def test_is_named_in_the_error_when_the_time_is_over(self, *, frozen: bool) -> None:
        with EmbeddedServer() as server, opened(server.url, SHORT) as engine:
            job = submit(engine, "a")
            waiting = Threads(engine, server).begin(job, seconds(1.5))
            server.pause() if frozen else server.kill()
            try:
                assert isinstance(waiting.exception(HANGS), ServerUnreachable)
                with pytest.raises(ServerUnreachable):
                    wait_for(engine, job, seconds(0.1))
            finally:
                if frozen:
                    server.unpause()


@pytest.mark.usefixtures("only_events")
class TestAnEngineThatIsClosed:
    def test_ends_the_waits_of_its_threads(self, server: EmbeddedServer) -> None:
        with opened(server.url) as engine:
            job = submit(engine, "a")
            futures = [Threads(engine, server).begin(job) for _ in range(3)]
            engine.close_here()
            for future in futures:
                assert isinstance(future.exception(HANGS), EngineClosed)


@pytest.mark.usefixtures("only_events")
class TestSeveralRedisNodesDuringAWait:
    def test_of_a_cluster_are_each_read_for_their_queues(self, cluster: EmbeddedCluster) -> None:
        with engine_here(cluster.url, limits=SLOW) as engine, ThreadPoolExecutor(12) as pool:
            jobs = [submit(engine, "a", f"mails-{number}") for number in range(12)]
            futures = [pool.submit(wait_for, engine, job) for job in jobs]
            for job in jobs:
                run_to_end(engine.cancel(job))
            for future in futures:
                assert isinstance(future.exception(HANGS), JobNotFound)

    def test_of_a_cluster_are_read_by_the_new_slots_after_a_move(
        self, own_cluster: EmbeddedCluster
    ) -> None:
        with opened(own_cluster.url, SLOW) as engine, ThreadPoolExecutor(1) as pool:
            job = submit(engine, "a")
            waiting = pool.submit(wait_for, engine, job)
            eventually(lambda: any(reads(master) for master in own_cluster.masters))
            moving = MovingSlot(own_cluster, KEYS.first)
            moving.begin()
            moving.move(moving.left())
            moving.finish()
            wait_until_agreed(own_cluster)
            complete(engine, b"sent")
            assert waiting.result(HANGS).result == b"sent"

    @pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
    def test_behind_sentinels_are_failed_over(
        self, group: EmbeddedSentinel, *, frozen: bool
    ) -> None:
        old = group.primary
        with opened(group.url, Limits(answer=minutes(10), give_up=minutes(20))) as engine:
            job = submit(engine, "a")
            assert old.ask("WAIT", 1, 0) == 1
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(wait_for, engine, job)
                eventually(lambda: reads(old))
                old.pause() if frozen else old.kill()
                try:
                    complete(engine, b"sent")
                    assert waiting.result(HANGS).result == b"sent"
                finally:
                    if frozen:
                        old.unpause()


@needs_tls
@pytest.mark.usefixtures("only_events")
def test_a_thread_waits_over_tls(files: TlsFiles, port: int) -> None:
    with opened(at(port, ssl_ca_certs=files.ca), SLOW) as engine, ThreadPoolExecutor(2) as pool:
        job = submit(engine, "tls")
        waiting = [pool.submit(wait_for, engine, job) for _ in range(2)]
        complete(engine, bytes(300_000))
        assert {len(future.result(HANGS).result or b"") for future in waiting} == {300_000}
