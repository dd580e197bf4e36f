"""A receiver can neither keep a call for ever nor fill the memory."""

from __future__ import annotations

import asyncio
import itertools
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.calls.receivers import Reader, Receiver, Writer, http, receiving
from tests.tcp_server import Handle
from tests.waiting import HANGS, eventually_async
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerTooLarge, CallFailed
from towpath.clock import milliseconds, seconds
from towpath.errors import RetryAdvice

HEAD = b"HTTP/1.1 200 OK\r\n"


def repeating(first: bytes, then: Callable[[int], bytes]) -> Handle:
    """Sends *first*, and then more without end, as fast as it is read."""

    async def behave(reader: Reader, writer: Writer) -> None:
        writer.write(first)
        for n in itertools.count():
            writer.write(then(n))
            await writer.drain()
            await asyncio.sleep(0)  # the caller runs in this loop too

    return behave


def saying(*parts: bytes, then_end: bool) -> Handle:
    """Sends these bytes, and closes the connection or waits until the caller does."""

    async def behave(reader: Reader, writer: Writer) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if not then_end:
            await reader.read()
            raise ConnectionResetError

    return behave


class TestTheTimeOfACall:
    @pytest.mark.parametrize(
        "said",
        [
            (),
            (b"HTTP/1.1",),
            (HEAD, b"Content-Le"),
            (HEAD, b"Content-Length: 5\r\n\r\n"),
            (HEAD, b"Content-Length: 5\r\n\r\n", b"abcd"),
            (HEAD, b"Transfer-Encoding: chunked\r\n\r\n", b"4\r\nabcd\r\n"),
        ],
        ids=["nothing", "line", "header", "head", "body", "chunks"],
    )
    async def test_is_limited_as_a_whole(self, said: tuple[bytes, ...]) -> None:
        """The limit holds wherever the receiver falls silent, and the connection is closed."""
        slow = Receiver(saying(*said, then_end=False))
        async with receiving(slow), Caller(allow=["127.0.0.1"], timeout=milliseconds(80)) as caller:
            failures = list[CallFailed]()

            async def is_sent() -> bool:
                """On a busy machine the time may be over before the call is sent."""
                with pytest.raises(CallFailed, match=r"0\.08 s") as failure:
                    await caller.post(slow.url(), b"")
                failures.append(failure.value)
                return failure.value.sent

            await eventually_async(is_sent)
            await asyncio.wait_for(slow.left.wait(), HANGS)
        assert isinstance(failures[-1].__cause__, TimeoutError)
        assert failures[-1].retry is RetryAdvice.LATER

    async def test_is_not_extended_by_an_answer_in_drops(self) -> None:
        """Each byte comes in time; all of them together do not."""
        drops = Receiver(repeating(HEAD + b"Content-Length: 1000000000\r\n\r\n", lambda _: b"a"))
        async with (
            receiving(drops),
            Caller(
                allow=["127.0.0.1"], timeout=milliseconds(100), largest_answer=1 << 30
            ) as caller,
        ):
            with pytest.raises(CallFailed, match=r"\b0\.1 s") as failure:
                await caller.post(drops.url(), b"")
        assert isinstance(failure.value.__cause__, TimeoutError)

    async def test_is_not_extended_by_informational_answers(self) -> None:
        early = Receiver(repeating(b"", lambda _: b"HTTP/1.1 102 Processing\r\n\r\n"))
        limit = milliseconds(100)
        async with receiving(early), Caller(allow=["127.0.0.1"], timeout=limit) as caller:
            with pytest.raises(CallFailed, match=r"\b0\.1 s") as failure:
                await caller.post(early.url(), b"")
        assert isinstance(failure.value.__cause__, TimeoutError)

    async def test_is_limited_during_the_tls_handshake(self) -> None:
        """The receiver accepts the connection and never answers the handshake."""
        with socket.create_server(("127.0.0.1", 0)) as mute:
            url = f"https://127.0.0.1:{mute.getsockname()[1]}/"
            async with Caller(allow=["127.0.0.1"], connect_timeout=milliseconds(80)) as caller:
                with pytest.raises(CallFailed, match=r"0\.08 s") as failure:
                    await caller.post(url, b"")
        assert not failure.value.sent

    async def test_leaves_room_for_others_when_it_is_over(self) -> None:
        """Calls that ran out of time give back their connections and their places in the line."""
        slow = Receiver(saying(then_end=False))
        few = Caller(allow=["127.0.0.1"], connections=2, timeout=seconds(1))
        async with receiving(slow), receiving(Receiver()) as quick, few as caller:
            calls = [caller.post(slow.url(), b"") for _ in range(6)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {CallFailed}

            async def is_answered() -> bool:
                with suppress(CallFailed):
                    return (await caller.post(quick.url(), b"")).status == 200
                return False

            await eventually_async(is_answered)


class TestTheSizeOfAnAnswer:
    @pytest.mark.parametrize("size", [0, 1, 999, 1000])
    async def test_up_to_the_limit_is_accepted(self, receiver: Receiver, size: int) -> None:
        receiver.answer = http(body=bytes(size))
        async with Caller(allow=["127.0.0.1"], largest_answer=1000) as caller:
            assert len((await caller.post(receiver.url(), b"")).body) == size

    async def test_over_the_limit_has_its_own_error(self, receiver: Receiver) -> None:
        """The error has the status: the request may have been accepted all the same."""
        receiver.answer = http("202 Accepted", bytes(1001))
        async with Caller(allow=["127.0.0.1"], largest_answer=1000) as caller:
            with pytest.raises(AnswerTooLarge) as failure:
                await caller.post(receiver.url(), b"")
        assert (failure.value.status, failure.value.limit) == (202, 1000)
        assert failure.value.retry is RetryAdvice.NEVER

    @pytest.mark.parametrize(
        ("head", "more"),
        [
            (b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(1 << 16) + b"\r\n"),
            (b"Content-Length: 999999999999999\r\n\r\n", bytes(1 << 16)),
            (b"\r\n", bytes(1 << 16)),
        ],
        ids=["chunks", "length", "until the end"],
    )
    async def test_without_end_is_cut_and_the_memory_stays_flat(
        self, head: bytes, more: bytes
    ) -> None:
        endless = Receiver(repeating(HEAD + head, lambda _: more))
        async with receiving(endless), Caller(allow=["127.0.0.1"]) as caller:
            tracemalloc.start()
            with pytest.raises(AnswerTooLarge):
                await caller.post(endless.url(), b"")
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            await asyncio.wait_for(endless.left.wait(), HANGS)
        assert peak < 8 << 20

    @pytest.mark.parametrize("end", [b"", b"\r\nx: "], ids=["one header", "many headers"])
    async def test_of_headers_is_limited_too(self, end: bytes) -> None:
        endless = Receiver(repeating(HEAD + b"x: ", lambda _: b"a" * 4096 + end))
        async with (
            receiving(endless),
            Caller(allow=["127.0.0.1"], timeout=seconds(HANGS)) as caller,
        ):
            with pytest.raises(CallFailed) as failure:
                await caller.post(endless.url(), b"")
        assert failure.value.sent
        assert failure.value.__cause__ is None  # a timeout would be the cause


class TestAnAnswerThatBreaksOff:
    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"HTTP/1.1 20",
            HEAD + b"Content-Length: 5\r\n\r\nabc",
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"HTTP/1.1 999999 No\r\n\r\n",
            HEAD + b"Content-Length: -1\r\n\r\n",
            HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            HEAD + b"Bad Header: a\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
        ],
    )
    async def test_is_no_answer(self, caller: Caller, said: bytes) -> None:
        """Half an answer is never returned as a whole one."""
        async with receiving(Receiver(saying(said, then_end=True))) as broken:
            with pytest.raises(CallFailed) as failure:
                await caller.post(broken.url(), b"work")
        assert failure.value.sent
        assert failure.value.__cause__ is None  # a timeout would be the cause
        assert failure.value.retry is RetryAdvice.LATER

    async def test_does_not_affect_the_next_call(self, caller: Caller) -> None:
        broken = Receiver(saying(HEAD + b"Content-Length: 5\r\n\r\nabc", then_end=True))
        async with receiving(broken):
            with pytest.raises(CallFailed):
                await caller.post(broken.url(), b"")
            broken.behaviour = None
            assert (await caller.post(broken.url(), b"")).status == 200
