"""An HTTP endpoint as a reviewer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.apps.reviews.reviewing import a_comment, a_review, a_task, an_attempt
from tests.calls.receivers import Reader, Receiver, Writer, http, receiving
from towpath.apps.reviews.adapters import HttpReviewer
from towpath.apps.reviews.model import ReviewTask
from towpath.calls.caller import Caller
from towpath.calls.errors import (
    AnswerRefused,
    AnswerTooLarge,
    CallFailed,
    CallRefused,
    RefusedForGood,
    SecretInvalid,
)
from towpath.calls.signature import new_secret, verify
from towpath.clock import milliseconds, seconds
from towpath.errors import InvalidOption
from towpath.worker.context import Discard, Retry

SECRET = new_secret()
HERE = ["127.0.0.0/8"]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving(Receiver(answer=http(body=b"Fine."))) as listening:
        yield listening


@pytest.fixture
def reviewer(caller: Caller, receiver: Receiver) -> HttpReviewer:
    return HttpReviewer(caller, receiver.url(), secrets=[SECRET])


class TestAnEndpoint:
    async def test_gets_the_task_signed(self, reviewer: HttpReviewer, receiver: Receiver) -> None:
        for _ in range(2):
            await reviewer.review(a_task(), an_attempt())
        ids: set[str] = set()
        for request in receiver.requests:
            ids.add(verify([SECRET], request.headers, request.body).id)
            assert ReviewTask.unpacked(request.body) == a_task()
            assert request.headers["content-type"] == "application/json"
        assert ids == {"here"}  # attempts at one task have this id in common

    async def test_answers_with_a_review(self, reviewer: HttpReviewer, receiver: Receiver) -> None:
        receiver.answer = http(body=a_review(a_comment()).packed())
        assert await reviewer.review(a_task(), an_attempt()) == a_review(a_comment())

    async def test_answers_with_text(self, reviewer: HttpReviewer) -> None:
        assert (await reviewer.review(a_task(), an_attempt())).summary == "Fine."

    @pytest.mark.parametrize("answer", [http(body=b"{}"), http("204 No Content")])
    async def test_is_called_again_after_an_answer_that_is_no_review(
        self, reviewer: HttpReviewer, receiver: Receiver, answer: bytes
    ) -> None:
        receiver.answer = answer
        with pytest.raises(Retry, match="ReviewInvalid"):
            await reviewer.review(a_task(), an_attempt())


class TestAnEndpointThatRefuses:
    @pytest.mark.parametrize("status", ["400 Bad", "410 Gone", "413 Large", "415 Type", "422 No"])
    async def test_the_task_permanently_is_not_called_again(
        self, reviewer: HttpReviewer, receiver: Receiver, status: str
    ) -> None:
        receiver.answer = http(status)
        with pytest.raises(Discard) as raised:
            await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, RefusedForGood)
        assert raised.value.__cause__.status == int(status[:3])

    @pytest.mark.parametrize("status", ["401 Who", "404 Where", "425 Early", "500 Oh"])
    async def test_is_called_again_if_the_refusal_is_temporary(
        self, reviewer: HttpReviewer, receiver: Receiver, status: str
    ) -> None:
        receiver.answer = http(status)
        with pytest.raises(Retry) as raised:
            await reviewer.review(a_task(), an_attempt())
        assert raised.value.after is None

    @pytest.mark.parametrize("status", ["429 Slowly", "503 Later"])
    async def test_is_called_again_after_the_time_it_asks_for(
        self, reviewer: HttpReviewer, receiver: Receiver, status: str
    ) -> None:
        receiver.answer = http(status, headers=(("Retry-After", "90"),))
        with pytest.raises(Retry) as raised:
            await reviewer.review(a_task(), an_attempt())
        assert raised.value.after == seconds(90)

    async def test_with_a_redirect_is_not_followed(
        self, reviewer: HttpReviewer, receiver: Receiver
    ) -> None:
        receiver.answer = http("302 Found", headers=(("Location", "http://169.254.169.254/"),))
        with pytest.raises(Discard) as raised:
            await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, RefusedForGood)
        assert raised.value.__cause__.status == 302
        assert len(receiver.requests) == 1


class TestAnEndpointThatFails:
    async def test_is_called_again_if_it_hangs_up(
        self, reviewer: HttpReviewer, receiver: Receiver
    ) -> None:
        async def hang_up(_: Reader, __: Writer) -> None:
            return

        receiver.behaviour = hang_up
        with pytest.raises(Retry) as raised:
            await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, CallFailed)

    async def test_is_called_again_if_it_takes_too_long(self, receiver: Receiver) -> None:
        async def stay(reader: Reader, _: Writer) -> None:
            await reader.read()

        receiver.behaviour = stay
        async with Caller(allow=HERE, timeout=milliseconds(200)) as impatient:
            reviewer = HttpReviewer(impatient, receiver.url(), secrets=[SECRET])
            with pytest.raises(Retry, match=r"0\.2 s") as raised:
                await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, CallFailed)

    async def test_is_not_called_again_if_its_answer_is_too_large(self, receiver: Receiver) -> None:
        receiver.answer = http(body=b"x" * 5000)
        async with Caller(allow=HERE, largest_answer=4000) as caller:
            reviewer = HttpReviewer(caller, receiver.url(), secrets=[SECRET])
            with pytest.raises(Discard) as raised:
                await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, AnswerTooLarge)
        assert raised.value.__cause__.limit == 4000

    async def test_is_called_again_after_a_long_error_page(self, receiver: Receiver) -> None:
        receiver.answer = http("502 Bad Gateway", body=b"x" * 5000)
        async with Caller(allow=HERE, largest_answer=4000) as caller:
            reviewer = HttpReviewer(caller, receiver.url(), secrets=[SECRET])
            with pytest.raises(Retry) as raised:
                await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, AnswerRefused)
        assert raised.value.__cause__.status == 502

    async def test_is_not_called_where_calls_may_not_go(self, receiver: Receiver) -> None:
        async with Caller() as caller:
            reviewer = HttpReviewer(caller, receiver.url(), secrets=[SECRET])
            with pytest.raises(Discard) as raised:
                await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, CallRefused)
        assert receiver.connections == 0


@pytest.mark.parametrize(
    ("url", "secrets", "error"),
    [
        ("ftp://example.com/", [SECRET], CallRefused),
        ("https://example.com/", [], InvalidOption),
        ("https://example.com/", SECRET, InvalidOption),
        ("https://example.com/", ["guess"], SecretInvalid),
    ],
    ids=["scheme", "no secret", "a text", "a guess"],
)
def test_an_invalid_configuration_is_refused_at_the_start(
    url: str, secrets: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        HttpReviewer(Caller(), url, secrets=secrets)
