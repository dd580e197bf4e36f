"""S9: the secrets of a call are in no error, no log line and no repr."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Awaitable, Callable

import httpcore
import pytest

from tests.calls.receivers import Reader, Receiver, Writer, answering, http, receiving
from towpath.calls.answer import CallAnswer
from towpath.calls.caller import Caller
from towpath.calls.signature import sign
from towpath.clock import milliseconds
from towpath.errors import TowpathError

CANARY = "cAnArY7x3"
KEY = base64.b64encode(f"{CANARY * 3}---".encode()).decode()
SECRET = f"whsec_{KEY}"

PATH = f"/{CANARY}?token={CANARY}"
SENT = {
    "headers": {"Authorization": f"Bearer {CANARY}", "X-Key": CANARY},
    "message": "m1",
    "secrets": [SECRET],
}


def assert_hidden(text: str) -> None:
    for hidden in (CANARY, KEY, KEY[:20], "v1,"):
        assert hidden not in text


async def failing(call: Callable[[], Awaitable[object]]) -> str:
    """Everything that could be printed of the error of a call, including its causes."""
    try:
        await call()
    except TowpathError as error:
        shown = "".join(traceback.format_exception(error))
        # The traceback shows a line of this file; its other text may not have the secret.
        lines = [line for line in shown.splitlines() if not line.startswith("    ")]
        return "\n".join([*lines, str(error), repr(error), repr(vars(error)), error.remedy])
    raise AssertionError("the call did not fail")


async def echo(reader: Reader, writer: Writer) -> None:
    """Answers without HTTP: returns all that was received, after the header that followed the
    request line.
    """
    writer.write(f"POST {PATH} Authorization: Bearer {CANARY} v1,{KEY}\r\n\r\n".encode())


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{CANARY}@hook.example.com/",
        f"http://{CANARY}@127.0.0.1/",
        f"http://hook.example.com:{CANARY}/",
        f"http://[{CANARY}]/",
        f"http://{CANARY}.0x1/",
        f"http://\u2460{CANARY}/",
        f"http://127.0.0.1{PATH}",
        f"http://127.1{PATH}",
        f"ftp://hook.example.com{PATH}",
        f"http://private.example.com{PATH}",
        f"http://localhost{PATH}",
        f"{CANARY}",
        f"http://hook.example.com/\t{CANARY}",
        f"http://hook.example.com/{CANARY * 300}",
    ],
)
async def test_no_refusal_repeats_a_secret(url: str) -> None:
    async with Caller(resolve=answering("10.0.0.1")) as caller:
        assert_hidden(await failing(lambda: caller.post(url, CANARY.encode(), **SENT)))  # pyright: ignore[reportArgumentType] -- of several types


@pytest.mark.parametrize(
    ("behaviour", "answer"),
    [
        (echo, b""),
        (None, http(f"200 {CANARY}", CANARY.encode() * 1000)),
        (None, f"HTTP/1.1 {CANARY} v1,{KEY}\r\n\r\n".encode()),
        (None, f"HTTP/1.1 200 OK\r\nContent-Length: {CANARY}\r\n\r\n".encode()),
        (None, f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {CANARY}\r\n\r\n".encode()),
        (None, f"HTTP/1.1 200 OK\r\nX: {CANARY}\r\nContent-Length: 9\r\n\r\n".encode()),
    ],
    ids=["echo", "too large", "status", "length", "encoding", "too short"],
)
async def test_no_failure_repeats_a_secret(
    behaviour: Callable[[Reader, Writer], Awaitable[None]] | None,
    answer: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The receiver may answer with what we sent: that is not repeated either."""
    caplog.set_level(logging.DEBUG)
    limits = Caller(allow=["127.0.0.1"], timeout=milliseconds(300), largest_answer=100)
    async with receiving(Receiver(behaviour, answer)) as receiver, limits as caller:
        url = receiver.url(path=PATH)
        assert_hidden(await failing(lambda: caller.post(url, CANARY.encode(), **SENT)))  # pyright: ignore[reportArgumentType] -- of several types
    assert_hidden(caplog.text)


async def test_no_log_line_has_a_secret_even_when_everything_is_logged(
    caller: Caller, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """What the receiver answers is not logged either: it may be a cookie, or what was sent."""
    caplog.set_level(logging.DEBUG)
    receiver.answer = http(headers=(("Set-Cookie", CANARY),))
    await caller.post(receiver.url(path=PATH), CANARY.encode(), **SENT)  # pyright: ignore[reportArgumentType] -- of several types
    assert_hidden(caplog.text)


async def test_the_log_lines_of_other_calls_are_kept(
    caller: Caller, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """The host program may use the same library, and want to see its log."""
    caplog.set_level(logging.DEBUG)
    await caller.post(receiver.url(), b"")
    async with httpcore.AsyncConnectionPool() as pool:
        await pool.request("POST", receiver.url())
    assert caplog.text.count("connect_tcp.complete") == 1


def test_no_repr_shows_a_secret() -> None:
    shown = repr(CallAnswer(200, {"set-cookie": CANARY}, CANARY.encode()))
    assert shown == f"CallAnswer(status=200, {len(CANARY)} bytes)"
    assert_hidden(repr(Caller()))


def test_the_planted_secret_is_one_that_signs() -> None:
    assert sign(SECRET, "m1", 1, b"").startswith("v1,")
