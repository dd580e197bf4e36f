"""Engines for threads without an event loop: what they do, and what happens in trouble."""

import asyncio
import errno
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.blocking.engine_without_loop import engine_here
from tests.faults.moving_slot import MovingSlot, wait_until_agreed
from tests.waiting import HANGS, eventually
from towpath import Engine, QueueOptions, State, Towpath, hours, minutes, seconds
from towpath.clock import steady
from towpath.embedded import EmbeddedCluster, EmbeddedSentinel, EmbeddedServer
from towpath.engine import blocking
from towpath.engine.blocking import BlockingConnection, BlockingPort, run_to_end
from towpath.engine.channel import Limits
from towpath.engine.connection import Endpoint
from towpath.engine.durability import Durability
from towpath.engine.lookup import connect_within
from towpath.engine.model import new_job
from towpath.engine.resp import ConnectionLost
from towpath.engine.time_limit import Deadline
from towpath.errors import EventLoopRunning, JobNotFound, ServerRefused, ServerUnreachable
from towpath.testing import faults
from towpath.testing.proxy import Faults, Hole, Proxy

MAILS = "mails"
PATIENT = Limits(answer=seconds(30), give_up=seconds(HANGS))
HASTY = Limits(answer=seconds(0.3), give_up=seconds(HANGS))
"""Sends a call again soon, and never gives up."""


def submit_all(engine: Engine, count: int) -> None:
    """Submits jobs one by one, and checks that each answer belongs to its own call."""
    for number in range(count):
        id = f"job-{number}"
        answer = run_to_end(engine.submit(MAILS, b"hello", id=id))
        assert (answer.id, answer.existed) == (id, False)
    assert run_to_end(engine.inspect.counts(MAILS)).ready == count


class TestAnEngineWithoutALoop:
    def test_has_every_verb_of_a_job(self, server: EmbeddedServer) -> None:
        before = threading.active_count()
        with engine_here(server.url) as engine:
            run_to_end(engine.queues.configure(MAILS, QueueOptions(keep=hours(1))))
            job = run_to_end(engine.submit(MAILS, b"hello", id="a", delay=minutes(1))).job
            assert run_to_end(engine.inspect.state(job)) is State.DELAYED
            assert run_to_end(engine.inspect.job(job)).payload == b"hello"
            assert run_to_end(engine.inspect.explain(job)).why == "not_due"
            assert run_to_end(engine.move(job, delay=seconds(0))) is State.READY
            assert run_to_end(engine.set(MAILS, b"other", id="a")).replaced
            assert run_to_end(engine.cancel(job)) is State.CANCELLED
            run_to_end(engine.delete(job))
            with pytest.raises(JobNotFound):
                run_to_end(engine.inspect.job(job))
            memory = Durability.parse("memory")
            assert not run_to_end(engine.submit(MAILS, b"x", durability=memory)).existed
        assert threading.active_count() == before

    def test_submits_a_long_list_in_several_calls(self, server: EmbeddedServer) -> None:
        with engine_here(server.url) as engine:
            jobs = [new_job(b"x", id=f"job-{number}") for number in range(1200)]
            answers = run_to_end(engine.submit_many(MAILS, jobs))
            assert [answer.id for answer in answers if not isinstance(answer, Exception)] == [
                job.id for job in jobs
            ]
            page = run_to_end(engine.inspect.list(MAILS, State.READY, size=1000))
            assert [job.id for job in page.jobs] == [job.id for job in jobs[:1000]]

    def test_lists_the_queue_that_it_uses_first(self, server: EmbeddedServer) -> None:
        with engine_here(server.url) as engine:
            run_to_end(engine.submit(MAILS, b"x"))
            assert list(run_to_end(engine.queues.list())) == [MAILS]

    def test_refuses_a_function_that_waits_in_a_loop_by_its_name(self) -> None:
        async def wait_for_another() -> None:
            await asyncio.sleep(0)

        with pytest.raises(RuntimeError, match="wait_for_another"):
            run_to_end(wait_for_another())

    def test_is_refused_by_a_redis_that_rejects_its_login(self, server: EmbeddedServer) -> None:
        url = server.url.replace("unix://", "unix://nobody:secret@")
        with pytest.raises(ServerRefused), engine_here(url):
            pass


class TestThreadsThatShareAnEngine:
    def test_share_no_more_connections_than_there_are_channels(
        self, server: EmbeddedServer
    ) -> None:
        limits = Limits(answer=seconds(30), give_up=seconds(HANGS), channels=3)
        with faults.cut_replies(server) as proxy, engine_here(proxy.url, limits=limits) as engine:
            asked_at_first = proxy.connections

            def submit(thread: int) -> None:
                for number in range(40):
                    id = f"{thread}-{number}"
                    assert run_to_end(engine.submit(MAILS, b"x", id=id)).id == id

            with ThreadPoolExecutor(16) as pool:
                list(pool.map(submit, range(16)))
            assert run_to_end(engine.inspect.counts(MAILS)).ready == 16 * 40
            assert proxy.connections - asked_at_first <= 3

    def test_wait_for_a_channel_as_long_as_a_call_may_take(self, server: EmbeddedServer) -> None:
        limits = Limits(answer=seconds(0.2), give_up=seconds(0.2), channels=1)
        with engine_here(server.url, limits=limits) as engine:
            run_to_end(engine.submit(MAILS, b"x"))
            node = one_node(engine)
            taken = run_to_end(node.take(Deadline(engine._store.calls._watch, 1.0)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- a call that never ends
            with pytest.raises(ServerUnreachable):
                run_to_end(engine.submit(MAILS, b"y"))
            node.give_back(taken)
            assert not run_to_end(engine.submit(MAILS, b"z")).existed

    def test_go_on_after_one_of_them_lost_its_channel(self, server: EmbeddedServer) -> None:
        """Ctrl-C may come between two steps, where no code can give the channel back."""
        limits = Limits(answer=seconds(30), give_up=seconds(HANGS), channels=1)
        with engine_here(server.url, limits=limits) as engine:
            run_to_end(engine.submit(MAILS, b"x"))
            lost = run_to_end(one_node(engine).take(engine._store.calls.new_deadline()))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- as above
            del lost
            gc.collect()
            assert not run_to_end(engine.submit(MAILS, b"y")).existed

    def test_leave_nothing_behind_of_lost_channels(self, server: EmbeddedServer) -> None:
        limits = Limits(answer=seconds(30), give_up=seconds(HANGS), channels=1)
        with engine_here(server.url, limits=limits) as engine:
            run_to_end(engine.submit(MAILS, b"x"))
            listed = engine._cluster._connections  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- as above
            before = len(listed)
            for _ in range(10):
                lost = run_to_end(one_node(engine).take(engine._store.calls.new_deadline()))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- as above
                [connection] = lost.connections.values()
                del lost
                gc.collect()
                with pytest.raises(ConnectionLost):
                    run_to_end(connection.ask(("PING",)))
                run_to_end(engine.submit(MAILS, b"y"))
            assert len(listed) == before


class TestANameServerThatDoesNotAnswer:
    def test_ends_a_call_at_the_time_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        released = threading.Event()
        look_up = socket.getaddrinfo

        def silent(host: str, *args: Any, **options: Any) -> Any:
            if options.get("flags"):
                return look_up(host, *args, **options)
            asked.append(host)
            assert released.wait(HANGS)
            raise socket.gaierror(socket.EAI_AGAIN, "try again")

        monkeypatch.setattr(socket, "getaddrinfo", silent)
        limits = Limits(answer=seconds(0.2), give_up=seconds(0.5))
        try:
            with engine_here("redis://silent.invalid:6379", limits=limits) as engine:
                for _ in range(3):
                    with pytest.raises(ServerUnreachable, match="was not found in"):
                        run_to_end(engine.submit(MAILS, b"x"))
                assert asked == ["silent.invalid"]
                released.set()
                with pytest.raises(ServerUnreachable):
                    run_to_end(engine.submit(MAILS, b"x"))
        finally:
            released.set()

    def test_is_not_asked_about_an_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        look_up = socket.getaddrinfo

        def numeric_only(host: str, *args: Any, **options: Any) -> Any:
            assert options["flags"] == socket.AI_NUMERICHOST
            return look_up(host, *args, **options)

        monkeypatch.setattr(socket, "getaddrinfo", numeric_only)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            place: tuple[str, int] = listening.getsockname()
            with connect_within(place, HANGS) as connected:
                assert connected.getpeername() == place

    def test_is_asked_about_a_name(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            place: tuple[str, int] = listening.getsockname()
            with connect_within(("localhost", place[1]), HANGS) as connected:
                assert connected.getpeername() == place


def test_an_address_of_a_disabled_family_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`localhost` often has an IPv6 address as well."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place: tuple[str, int] = listening.getsockname()
        make, look_up = socket.socket, socket.getaddrinfo

        def make_without_ipv6(family: int = -1, *args: Any) -> socket.socket:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            return make(family, *args)

        def both(*args: Any, **options: Any) -> Any:
            return [
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", place[1], 0, 0)),
                *look_up(*place, type=socket.SOCK_STREAM),
            ]

        monkeypatch.setattr(socket, "socket", make_without_ipv6)
        monkeypatch.setattr(socket, "getaddrinfo", both)
        with connect_within(("localhost", place[1]), HANGS) as connected:
            assert connected.getpeername() == place


def one_node(engine: Engine) -> Any:
    [node] = engine._store.calls._nodes.values()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- there is no other way to it
    return node


class TestABadConnection:
    """Between the engine and Redis is a proxy that fails as networks do."""

    @pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
    @pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
    async def test_that_loses_replies_loses_and_doubles_no_job(
        self, server: EmbeddedServer, *, tcp: bool, reset: bool
    ) -> None:
        async with Proxy(server.address, Faults(reset=reset), tcp=tcp) as proxy:

            def work() -> None:
                with engine_here(proxy.url, limits=PATIENT) as engine:
                    run_to_end(engine.queues.configure(MAILS, QueueOptions()))
                    proxy.cut_every(2)
                    submit_all(engine, 30)

            await asyncio.to_thread(work)
            assert proxy.cuts >= 10

    async def test_that_cuts_requests_and_replies_anywhere_loses_and_doubles_no_job(
        self, server: EmbeddedServer
    ) -> None:
        async with Proxy(server.address, Faults(cut_replies=0.2, cut_requests=0.2)) as proxy:

            def work() -> None:
                with engine_here(proxy.url, limits=PATIENT) as engine:
                    submit_all(engine, 60)

            await asyncio.to_thread(work)
            assert proxy.cuts > 0

    async def test_that_delivers_single_bytes_delivers_all_of_them(
        self, server: EmbeddedServer
    ) -> None:
        async with Proxy(server.address, Faults(piece=1)) as proxy:

            def work() -> None:
                with engine_here(proxy.url, limits=PATIENT) as engine:
                    submit_all(engine, 5)

            await asyncio.to_thread(work)

    @pytest.mark.parametrize("hole", [Hole.REQUESTS, Hole.REPLIES])
    async def test_that_falls_silent_is_replaced_by_a_new_one(
        self, server: EmbeddedServer, hole: Hole
    ) -> None:
        """This happens with a frozen Redis, or with a connection that is open on this side
        alone.
        """
        async with Proxy(server.address, Faults()) as proxy:

            def work() -> None:
                with engine_here(proxy.url, limits=HASTY) as engine:
                    run_to_end(engine.submit(MAILS, b"x", id="first"))
                    proxy.faults.hole = hole
                    with ThreadPoolExecutor(1) as pool:
                        second = pool.submit(
                            lambda: run_to_end(engine.submit(MAILS, b"x", id="second"))
                        )
                        eventually(lambda: proxy.swallowed)
                        proxy.faults.hole = Hole.NOTHING
                        assert (second.result().id, second.result().existed) == ("second", False)
                    assert run_to_end(engine.inspect.counts(MAILS)).ready == 2

            await asyncio.to_thread(work)

    async def test_is_given_up_after_the_time_for_a_call(self, server: EmbeddedServer) -> None:
        limits = Limits(answer=seconds(0.2), give_up=seconds(0.5))
        async with Proxy(server.address, Faults()) as proxy:

            def work() -> None:
                with engine_here(proxy.url, limits=limits) as engine:
                    run_to_end(engine.submit(MAILS, b"x"))
                    proxy.faults.hole = Hole.REPLIES
                    with pytest.raises(ServerUnreachable):
                        run_to_end(engine.submit(MAILS, b"x"))
                    proxy.faults.hole = Hole.NOTHING
                    eventually(lambda: _answers(engine))

            await asyncio.to_thread(work)


def _answers(engine: Engine) -> bool:
    with suppress(ServerUnreachable):
        return not run_to_end(engine.submit(MAILS, b"again")).existed
    return False


class TestCtrlC:
    def test_in_the_middle_of_a_reply_leaves_that_reply_to_no_other_call(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reply arrives later, when Redis goes on."""
        # no call checks the connection before it is used
        monkeypatch.setattr(blocking, "_IDLE_TRUSTED", HANGS)
        limits = Limits(answer=seconds(HANGS), give_up=seconds(HANGS), channels=1)
        with EmbeddedServer() as server, engine_here(server.url, limits=limits) as engine:
            first = run_to_end(engine.submit(MAILS, b"x", id="first")).job
            main = threading.get_ident()

            def interrupt() -> None:
                eventually(lambda: sys._current_frames()[main].f_code.co_name == "_receive")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- where the thread is
                signal.pthread_kill(main, signal.SIGINT)

            for number in range(3):
                server.pause()
                thread = threading.Thread(target=interrupt)
                thread.start()
                with pytest.raises(KeyboardInterrupt):
                    run_to_end(engine.submit(MAILS, b"x", id=f"cut-{number}"))
                thread.join()
                server.unpause()
                for _ in range(3):
                    server.ask("PING")  # by then Redis has replied
                assert run_to_end(engine.inspect.job(first)).id == "first"
                assert not run_to_end(engine.submit(MAILS, b"x", id=f"next-{number}")).existed


class TestARedisThatIsAway:
    @pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
    def test_is_reported_to_callers_and_used_again_when_it_is_back(self, *, frozen: bool) -> None:
        limits = Limits(answer=seconds(0.2), give_up=seconds(0.5))
        with EmbeddedServer() as server, engine_here(server.url, limits=limits) as engine:
            run_to_end(engine.submit(MAILS, b"x"))
            server.pause() if frozen else server.kill()
            for _ in range(3):
                with pytest.raises(ServerUnreachable):
                    run_to_end(engine.submit(MAILS, b"x"))
            node = one_node(engine)
            assert node.refusal is not None
            server.unpause() if frozen else server.start()
            eventually(lambda: _answers(engine))
            assert node.refusal is None
            assert node.last_outage is not None

    def test_is_probed_by_one_thread_while_the_others_are_refused_at_once(self) -> None:
        limits = Limits(answer=seconds(0.2), give_up=seconds(0.5))
        with EmbeddedServer() as server, engine_here(server.url, limits=limits) as engine:
            run_to_end(engine.submit(MAILS, b"x"))
            server.pause()
            try:
                for _ in range(2):  # given up, then probed
                    with pytest.raises(ServerUnreachable):
                        run_to_end(engine.submit(MAILS, b"x"))
                node = one_node(engine)
                node._probe_at = steady() + HANGS  # noqa: SLF001 -- nobody probes from now on
                free = len(node._free)  # noqa: SLF001 -- no channel is taken
                for _ in range(1000):
                    with pytest.raises(ServerUnreachable):
                        run_to_end(engine.submit(MAILS, b"x"))
                assert len(node._free) == free  # noqa: SLF001 -- as above
            finally:
                server.unpause()

    def test_does_not_keep_an_engine_from_being_opened(self) -> None:
        limits = Limits(answer=seconds(0.2), give_up=seconds(0.2))
        with engine_here("unix:///nowhere/at.all", limits=limits) as engine:
            for _ in range(3):
                with pytest.raises(ServerUnreachable):
                    run_to_end(engine.submit(MAILS, b"hello"))


class TestSeveralRedisNodes:
    def test_of_a_cluster_are_called_by_their_slots(self, cluster: EmbeddedCluster) -> None:
        with engine_here(cluster.url) as engine:
            for number in range(12):
                queue = f"mails-{number}"
                job = run_to_end(engine.submit(queue, b"x")).job
                assert run_to_end(engine.inspect.state(job)) is State.READY
            assert len(run_to_end(engine.queues.list())) == 12

    def test_of_a_cluster_are_called_by_the_new_slots_after_a_move(
        self, own_cluster: EmbeddedCluster
    ) -> None:
        with engine_here(own_cluster.url, limits=PATIENT) as engine:
            run_to_end(engine.submit(MAILS, b"x", id="before"))
            moving = MovingSlot(own_cluster, f"{{{MAILS}}}:queue")
            moving.begin()
            moving.move(moving.left())
            with ThreadPoolExecutor(1) as pool:
                meanwhile = pool.submit(
                    lambda: run_to_end(engine.submit(MAILS, b"x", id="meanwhile"))
                )
                moving.finish()
                assert meanwhile.result().id == "meanwhile"
            wait_until_agreed(own_cluster)
            assert run_to_end(engine.submit(MAILS, b"x", id="after")).id == "after"
            assert run_to_end(engine.inspect.counts(MAILS)).ready == 3

    @pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
    def test_behind_sentinels_are_failed_over(
        self, group: EmbeddedSentinel, *, frozen: bool
    ) -> None:
        """The call does not wait for the reply of the frozen node for its whole time: that would be
        ten minutes.
        """
        limits = Limits(answer=minutes(10), give_up=minutes(20))
        old = group.primary
        with engine_here(group.url, limits=limits) as engine:
            run_to_end(engine.submit(MAILS, b"x", id="before"))
            old.pause() if frozen else old.kill()
            try:
                answer = run_to_end(engine.submit(MAILS, b"x", id="after"))
                assert (answer.id, answer.existed) == ("after", False)
            finally:
                if frozen:
                    old.unpause()


class TestATimeLimit:
    def test_does_not_count_the_time_for_which_the_process_was_stopped(self) -> None:
        port = BlockingPort()
        limit = port.time_limit(seconds(5), lambda: None)
        deadline = Deadline(limit, 15.0)
        with limit.until(deadline):
            # As if the process had been stopped for a minute in the middle of a wait.
            port.clock.looked_at -= 60
            port.clock.until -= 60
            deadline.made_at -= 60
            port.keep_waiting()
            assert 4 < port.clock.until - steady() <= 5
        assert 14 < deadline.left(steady()) <= 15

    @pytest.mark.parametrize("expected", [False, True])
    def test_probes_a_silent_redis_unless_silence_is_expected(self, *, expected: bool) -> None:
        asked: list[None] = []
        port = BlockingPort()
        port.time_limit(seconds(5), lambda: asked.append(None))
        with port.long_read(30) if expected else port.narrow(30):
            port.clock.silent_since -= 10
            port.keep_waiting()
        assert len(asked) == (not expected)

    def test_ends_a_wait(self) -> None:
        port = BlockingPort()
        with port.narrow(10), port.narrow(0), pytest.raises(TimeoutError):
            port.keep_waiting()

    def test_is_that_of_the_outer_block_where_that_ends_first(self) -> None:
        port = BlockingPort()
        with port.narrow(0), port.narrow(10), pytest.raises(TimeoutError):
            port.keep_waiting()


class TestABlockingConnection:
    def test_whose_reply_was_given_up_is_never_used_again(self) -> None:
        def serve(client: socket.socket, number: int) -> None:
            client.recv(1000)
            if number == 1:
                client.recv(1000)  # until it is closed
            with suppress(OSError):
                client.sendall(b"+reply %d\r\n" % number)

        with serving(serve) as place:
            port = BlockingPort()
            connection = BlockingConnection(Endpoint(place), port)
            with port.narrow(0.1), pytest.raises(TimeoutError):
                run_to_end(connection.ask(("GET",)))
            assert run_to_end(connection.ask(("GET",))) == b"reply 2"
            run_to_end(connection.close())

    def test_that_got_an_unexpected_reply_is_dropped(self) -> None:
        def serve(client: socket.socket, number: int) -> None:
            client.recv(1000)
            client.sendall(b"+mine\r\n+whose\r\n" if number == 1 else b"+mine\r\n")

        with serving(serve) as place:
            connection = BlockingConnection(Endpoint(place), BlockingPort())
            with pytest.raises(ConnectionLost):
                run_to_end(connection.ask(("GET",)))
            assert run_to_end(connection.ask(("GET",))) == b"mine"
            run_to_end(connection.close())

    def test_that_redis_closed_while_it_was_idle_is_made_anew(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blocking, "_IDLE_TRUSTED", 0.0)
        closed = threading.Semaphore(0)

        def serve(client: socket.socket, number: int) -> None:
            client.recv(1000)
            client.sendall(b":%d\r\n" % number)
            client.close()
            closed.release()

        with serving(serve) as place:
            connection = BlockingConnection(Endpoint(place), BlockingPort())
            for number in (1, 2, 3):
                assert run_to_end(connection.ask(("GET",))) == number
                closed.acquire()
            run_to_end(connection.close())


@contextmanager
def serving(serve: Callable[[socket.socket, int], None]) -> Generator[tuple[str, int]]:
    """A server that runs *serve* with each connection, one after the other."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        connection = 0
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                connection += 1
                with client:
                    serve(client, connection)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


class TestARunningLoop:
    @pytest.mark.parametrize("record", [False, True])
    async def test_is_not_stopped_by_a_blocking_call(
        self, server: EmbeddedServer, prepared_file_url: str, *, record: bool
    ) -> None:
        app = Towpath(server.url, ledger=prepared_file_url)

        @app.handler(MAILS, record=record)
        async def send(address: str) -> None: ...

        calls: list[Callable[[], Any]] = [
            lambda: send.blocking.submit("anna"),
            lambda: send.blocking.submit_many(["anna"]),
            send.blocking.job("a").state,
            lambda: send.blocking.job("a").result(within=seconds(1)),
        ]
        for call in calls:
            with pytest.raises(EventLoopRunning) as refusal:
                call()
            assert refusal.value.code == "event_loop_running"
            assert "await handler.submit" in refusal.value.remedy
        assert not (await asyncio.to_thread(send.blocking.submit, "anna")).existed
