"""A GET goes only where a call may go, under the same limits."""

from __future__ import annotations

import pytest

from tests.calls.receivers import Receiver, http
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerTooLarge, CallerClosed, CallRefused
from towpath.errors import InvalidOption


async def test_a_get_returns_the_answer(caller: Caller, receiver: Receiver) -> None:
    receiver.answer = http("404 Not Found", b"nothing", (("X-Seen", "a"),))
    answer = await caller.get(receiver.url(path="/a%2Fb?c=d"), headers={"X-A": "b"})
    assert (answer.status, answer.body, answer.headers["x-seen"]) == (404, b"nothing", "a")
    [request] = receiver.requests
    assert request.line == "GET /a%2Fb?c=d HTTP/1.1"
    assert (request.headers["x-a"], request.body) == ("b", b"")
    assert "content-length" not in request.headers


async def test_a_get_shares_its_connection_with_posts(caller: Caller, receiver: Receiver) -> None:
    await caller.get(receiver.url())
    await caller.post(receiver.url(), b"work")
    assert receiver.connections == 1


async def test_a_get_is_refused_where_calls_may_not_go(receiver: Receiver) -> None:
    async with Caller() as guarded:
        with pytest.raises(CallRefused):
            await guarded.get(receiver.url())
    assert receiver.connections == 0


async def test_a_get_follows_no_redirect(caller: Caller, receiver: Receiver) -> None:
    receiver.answer = http("302 Found", headers=(("Location", "http://169.254.169.254/"),))
    assert (await caller.get(receiver.url())).status == 302
    assert len(receiver.requests) == 1


async def test_a_get_limits_the_size_of_the_answer(receiver: Receiver) -> None:
    receiver.answer = http(body=b"x" * 11)
    async with Caller(allow=["127.0.0.1"], largest_answer=10) as narrow:
        with pytest.raises(AnswerTooLarge):
            await narrow.get(receiver.url())


async def test_a_get_needs_an_open_caller_and_valid_headers(
    caller: Caller, receiver: Receiver
) -> None:
    with pytest.raises(CallerClosed):
        await Caller(allow=["127.0.0.1"]).get(receiver.url())
    with pytest.raises(InvalidOption):
        await caller.get(receiver.url(), headers={"Host": "other"})
