"""One connection to Redis, with replies that come in pieces, late, out of order, or never."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from tests.waiting import HANGS
from towpath.embedded import EmbeddedServer
from towpath.engine.connection import Connection, Endpoint
from towpath.engine.resp import (
    ConnectionLost,
    ErrorReply,
    LoginRefused,
    Redirected,
    ScriptUnknown,
    encode_command,
    error_reply,
    slot_of,
)

Run = Callable[[Coroutine[Any, Any, None]], None]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's body in one kind of event loop."""

    def run(body: Coroutine[Any, Any, None]) -> None:
        async def within() -> None:
            async with asyncio.timeout(HANGS):
                await body

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(within())

    return run


@asynccontextmanager
async def connection_to(serve: Serve) -> AsyncGenerator[Connection]:
    """A connection to a server that runs *serve*."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    serving: list[asyncio.Task[None] | None] = []
    server = await asyncio.start_server(served, "127.0.0.1", 0)
    connection = Connection(Endpoint(server.sockets[0].getsockname()[:2]))
    try:
        yield connection
    finally:
        await connection.close()
        server.close()
        await asyncio.gather(*[task for task in serving if task is not None])


async def one_command(reader: asyncio.StreamReader) -> None:
    """Reads a command that is sent as an array of one word."""
    await reader.readuntil(b"\r\n")
    await reader.readuntil(b"\r\n")
    await reader.readuntil(b"\r\n")


class TestReplies:
    def test_that_come_byte_by_byte_are_put_together(self, run: Run) -> None:
        reply = b"*3\r\n$5\r\nhello\r\n:42\r\n$-1\r\n"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await one_command(reader)
                for byte in reply:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0)

        async def body() -> None:
            async with connection_to(serve) as connection:
                for _ in range(3):
                    assert await connection.ask(("PING",)) == [b"hello", 42, None]

        run(body())

    def test_to_several_commands_are_in_order_and_errors_keep_their_places(self, run: Run) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(3):
                await one_command(reader)
            writer.write(b"+one\r\n-WRONGTYPE two\r\n+th")
            await writer.drain()
            writer.write(b"ree\r\n")

        async def body() -> None:
            async with connection_to(serve) as connection:
                one, two, three = await connection.ask_all((("A",), ("B",), ("C",)))
                assert (one, three) == (b"one", b"three")
                assert isinstance(two, ErrorReply)
                assert two.code == "WRONGTYPE"

        run(body())

    def test_that_nobody_waits_for_are_not_given_to_later_commands(self, run: Run) -> None:
        asked = asyncio.Event()
        replies = iter([b"first", b"second"])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await one_command(reader)
                reply = next(replies)
                if reply == b"first":
                    asked.set()
                    await reader.read()  # until the connection ends
                writer.write(b"+" + reply + b"\r\n")

        async def body() -> None:
            async with connection_to(serve) as connection:
                first = asyncio.create_task(connection.ask(("GET",)))
                await asked.wait()
                first.cancel()
                await asyncio.wait((first,))
                assert await connection.ask(("GET",)) == b"second"

        run(body())

    def test_without_a_command_end_the_connection(self, run: Run) -> None:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await one_command(reader)
            writer.write(b"+mine\r\n+whose\r\n" if connections == 1 else b"+mine\r\n")
            await reader.read()

        async def body() -> None:
            async with connection_to(serve) as connection:
                with pytest.raises(ConnectionLost):
                    await connection.ask(("PING",))
                assert await connection.ask(("PING",)) == b"mine"
                assert connections == 2

        run(body())


class TestALostConnection:
    @pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
    def test_raises_an_error_in_waiting_calls_and_is_made_again(
        self, run: Run, *, reset: bool
    ) -> None:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await one_command(reader)
            if connections == 1:
                if reset:
                    sock: socket.socket = writer.get_extra_info("socket")
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
                return
            writer.write(b"+there\r\n")
            await reader.read()

        async def body() -> None:
            async with connection_to(serve) as connection:
                with pytest.raises(ConnectionLost):
                    await connection.ask(("PING",))
                assert await connection.ask(("PING",)) == b"there"

        run(body())

    def test_is_reported_at_once_when_redis_has_closed_it(self, run: Run) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await one_command(reader)
            writer.write(b"$5\r\nhe")
            writer.write_eof()
            await reader.read()

        async def body() -> None:
            async with connection_to(serve) as connection:
                with pytest.raises(ConnectionLost):
                    await connection.ask(("PING",))

        run(body())

    def test_follows_a_reply_of_another_protocol(self, run: Run) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await one_command(reader)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()

        async def body() -> None:
            async with connection_to(serve) as connection:
                with pytest.raises(ConnectionLost):
                    await connection.ask(("PING",))

        run(body())

    def test_that_was_cut_during_a_call_raises_an_error_in_it(self, run: Run) -> None:
        asked = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await one_command(reader)
            asked.set()
            await reader.read()

        async def body() -> None:
            async with connection_to(serve) as connection:
                waiting = asyncio.create_task(connection.ask(("PING",)))
                await asked.wait()
                connection.cut()
                with pytest.raises(ConnectionLost):
                    await waiting

        run(body())

    def test_follows_a_refused_connection(self, run: Run) -> None:
        async def body() -> None:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                place = closed.getsockname()
            with pytest.raises(ConnectionLost):
                await Connection(Endpoint(place)).ask(("PING",))

        run(body())


class TestAClosedConnection:
    def test_does_not_connect_again(self, run: Run, server: EmbeddedServer) -> None:
        async def body() -> None:
            connection = Connection(Endpoint((str(server.address), 0)))
            assert await connection.ask(("PING",)) == b"PONG"
            await connection.close()
            with pytest.raises(ConnectionLost):
                await connection.ask(("PING",))

        run(body())

    def test_ends_an_attempt_to_connect(self, run: Run) -> None:
        accepted = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set()
            await reader.read()

        async def body() -> None:
            async with connection_to(serve) as connection:
                silent = Connection(Endpoint(connection._endpoint.place, password="x"))  # noqa: SLF001, S106 # pyright: ignore[reportPrivateUsage] -- where it is
                connecting = asyncio.create_task(silent.ask(("PING",)))
                await accepted.wait()
                await silent.close()
                with pytest.raises(ConnectionLost):
                    await connecting

        run(body())


class TestErrorReplies:
    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("NOSCRIPT No matching script.", ScriptUnknown),
            ("MOVED 3999 127.0.0.1:6381", Redirected),
            ("ASK 3999 127.0.0.1:6381", Redirected),
            ("WRONGPASS invalid username-password pair", LoginRefused),
            ("NOAUTH Authentication required.", LoginRefused),
            ("ERR invalid password", LoginRefused),
            ("ERR Client sent AUTH, but no password is set", LoginRefused),
            ("OOM command not allowed", ErrorReply),
            ("LOADING the dataset", ConnectionLost),
            ("ERR max number of clients reached", ConnectionLost),
        ],
    )
    def test_have_an_exception_class_each(self, text: str, kind: type[Exception]) -> None:
        assert type(error_reply(text)) is kind

    def test_name_the_new_place_of_a_slot(self) -> None:
        moved = error_reply("MOVED 3999 ::1:6381")
        assert isinstance(moved, Redirected)
        assert moved.is_moved
        assert moved.target == (3999, "::1", 6381)
        asked = error_reply("ASK 7 :6381")
        assert isinstance(asked, Redirected)
        assert not asked.is_moved
        assert asked.target == (7, "", 6381)


class TestCommands:
    @pytest.mark.parametrize("size", [0, 1, 64 * 1024 - 1, 64 * 1024, 300_000])
    def test_are_encoded_the_same_whether_large_or_small(self, size: int) -> None:
        value = b"v" * size
        head = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n"
        expected = head + b"$%d\r\n" % size + value + b"\r\n"
        assert b"".join(encode_command(("SET", "k", value))) == expected

    @pytest.mark.parametrize(
        ("key", "slot"),
        [("123456789", 12739), ("{user1000}.following", 3443), ("foo{}{bar}", 8363), ("", 0)],
    )
    def test_go_to_the_slot_of_their_key(self, key: str, slot: int) -> None:
        assert slot_of(key) == slot
