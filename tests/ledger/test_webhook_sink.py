"""Events to an HTTP endpoint: signed, and those of one key one after the other."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.calls.receivers import Reader, Receiver, Request, Writer, http, read_request, receiving
from tests.ledger.numbered_events import (
    QUICK,
    an_event,
    expected,
    first_arrivals,
    put,
    some_events,
)
from tests.ledger.outbox_facts import all_gone
from tests.waiting import HANGS, eventually_async
from towpath.calls.caller import Caller
from towpath.calls.errors import CallRefused, SecretInvalid
from towpath.calls.signature import new_secret, verify
from towpath.clock import milliseconds, seconds
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.backoff import CourierOptions
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import (
    CONTENT_TYPE,
    Behind,
    OutboxEvent,
    Outcome,
    Postponed,
    Refusal,
)
from towpath.ledger.outbox.sinks.webhook import WebhookSink

SECRET = new_secret()
Say = Callable[[Request], str | None]
"""The status of an answer; None = the receiver hangs up."""


class WebhookEndpoint(Receiver):
    """A receiver that answers each request as scripted, and keeps the events that it accepted."""

    def __init__(self, say: Say = lambda _: "200 OK") -> None:
        super().__init__()
        self.say, self.taken = say, list[bytes]()
        self.behaviour = self._answer

    async def _answer(self, reader: Reader, writer: Writer) -> None:
        while True:
            request = self.requests[-1]
            status = self.say(request)
            if status is None:
                return
            if status.startswith("2"):
                self.taken.append(request.body)
            writer.write(http(status))
            await writer.drain()
            self.requests.append(await read_request(reader))


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with Caller(allow=["127.0.0.0/8"], timeout=seconds(HANGS)) as calling:
        yield calling


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    return {"sinks": ["webhook"]}


def event(key: str, number: int, seq: int) -> OutboxEvent:
    new = an_event(key, number)
    return OutboxEvent(
        seq=seq, id=new.id, type=new.type, source=new.source, key=key, data=new.data, at=new.at
    )


async def sent(endpoint: WebhookEndpoint, caller: Caller, *events: OutboxEvent) -> list[Outcome]:
    async with receiving(endpoint):
        sink = WebhookSink(caller, endpoint.url(), secrets=[SECRET])
        return list(await sink.send(events))


class TestAWebhookCall:
    async def test_is_signed_under_the_events_own_id(self, caller: Caller) -> None:
        endpoint = WebhookEndpoint()
        assert await sent(endpoint, caller, event("a", 1, 1)) == [None]
        [request] = endpoint.requests
        told = verify([SECRET], request.headers, request.body)
        assert told.id == "a/1".replace("/", "%2F")
        assert request.headers["content-type"] == CONTENT_TYPE
        assert json.loads(request.body)["id"] == "a/1"

    async def test_has_an_id_of_limited_length_however_long_the_events_own_is(
        self, caller: Caller
    ) -> None:
        endpoint = WebhookEndpoint()
        long = event("a" * 1000, 1, 1), event("ä" * 500, 1, 2), event("ä" * 500, 2, 3)
        assert await sent(endpoint, caller, *long) == [None] * 3
        ids = [verify([SECRET], request.headers, request.body).id for request in endpoint.requests]
        assert len(set(ids)) == 3

    async def test_has_the_same_id_and_body_in_every_attempt(
        self, ledger: Ledger, caller: Caller
    ) -> None:
        answers = iter(["500 Oops", "425 Early", "429 Slow", "408 Late", "200 OK"])
        endpoint = WebhookEndpoint(lambda _: next(answers))
        await put(ledger, an_event("a", 1))
        await carried(ledger, caller, endpoint)
        assert len(endpoint.requests) == 5
        assert len({request.headers["webhook-id"] for request in endpoint.requests}) == 1
        assert len({request.body for request in endpoint.requests}) == 1

    def test_goes_only_where_calls_may_go(self, caller: Caller) -> None:
        with pytest.raises(CallRefused):
            WebhookSink(caller, "http://10.0.0.1/hook", secrets=[SECRET])

    async def test_needs_a_valid_secret(self, caller: Caller) -> None:
        with pytest.raises(SecretInvalid):
            WebhookSink(caller, "http://127.0.0.1/hook", secrets=["letmein"])


class TestAnAnswerToAWebhook:
    @pytest.mark.parametrize("status", ["200 OK", "202 Accepted", "204 Done"])
    async def test_of_2xx_accepts_the_event(self, caller: Caller, status: str) -> None:
        assert await sent(WebhookEndpoint(lambda _: status), caller, event("a", 1, 1)) == [None]

    @pytest.mark.parametrize("status", ["400 No", "404 No", "410 Gone", "413 Large", "302 Moved"])
    async def test_of_4xx_refuses_it_and_its_key_goes_on(self, caller: Caller, status: str) -> None:
        answers = iter([status, "200 OK"])
        endpoint = WebhookEndpoint(lambda _: next(answers))
        refused, sent_next = await sent(endpoint, caller, event("a", 1, 1), event("a", 2, 2))
        assert isinstance(refused, Refusal)
        assert status[:3] in refused.reason
        assert sent_next is None

    @pytest.mark.parametrize("status", ["500 Oops", "503 Later", "429 Slow", "408 Late"])
    async def test_of_5xx_stops_its_key_and_no_other(self, caller: Caller, status: str) -> None:
        endpoint = WebhookEndpoint(
            lambda request: status if b'"subject":"a"' in request.body else "200 OK"
        )
        postponed, *others = await sent(
            endpoint, caller, event("a", 1, 1), event("a", 2, 2), event("b", 1, 3)
        )
        assert isinstance(postponed, Postponed)
        assert status[:3] in postponed.reason
        assert others == [Behind(), None]
        assert len(endpoint.requests) == 2

    async def test_with_retry_after_postpones_the_event_for_that_time(self, caller: Caller) -> None:
        async def busy(_: Reader, writer: Writer) -> None:
            writer.write(http("503 Later", headers=(("Retry-After", "7"),)))
            await writer.drain()

        receiver = Receiver(behaviour=busy)
        async with receiving(receiver):
            sink = WebhookSink(caller, receiver.url(), secrets=[SECRET])
            [outcome] = await sink.send([event("a", 1, 1)])
        assert isinstance(outcome, Postponed)
        assert "503" in outcome.reason
        assert outcome == Postponed(outcome.reason, seconds(7))

    async def test_that_never_ends_is_judged_by_its_status(self) -> None:
        async def floods(_: Reader, writer: Writer) -> None:
            writer.write(http("200 OK", body=b"x" * 10_000))
            await writer.drain()

        receiver = Receiver(behaviour=floods)
        async with receiving(receiver), Caller(allow=["127.0.0.1"], largest_answer=10) as caller:
            sink = WebhookSink(caller, receiver.url(), secrets=[SECRET])
            assert await sink.send([event("a", 1, 1)]) == [None]

    async def test_that_does_not_come_postpones_the_event(self, caller: Caller) -> None:
        endpoint = WebhookEndpoint(lambda _: None)
        [outcome] = await sent(endpoint, caller, event("a", 1, 1))
        assert isinstance(outcome, Postponed)

    async def test_that_does_not_come_for_a_few_calls_stops_the_others(
        self, caller: Caller
    ) -> None:
        """A hundred keys are not each tried at a receiver that is down."""
        endpoint = WebhookEndpoint(lambda _: None)
        events = [event(f"k{key}", 1, key) for key in range(100)]
        outcomes = await sent(endpoint, caller, *events)
        assert len(endpoint.requests) < 20
        assert [outcome for outcome in outcomes if outcome is None] == []


class TestKeysOfEvents:
    async def test_are_called_at_the_same_time_and_each_in_order(self, caller: Caller) -> None:
        open_, most = set[str](), 0

        async def slowly(reader: Reader, writer: Writer) -> None:
            nonlocal most
            while True:
                key = json.loads(receiver.requests[-1].body)["subject"]
                assert key not in open_, "two events of one key at once"
                open_.add(key)
                most = max(most, len(open_))
                for _ in range(10):
                    await asyncio.sleep(0)
                open_.remove(key)
                writer.write(http())
                await writer.drain()
                receiver.requests.append(await read_request(reader))

        receiver = Receiver(behaviour=slowly)
        async with receiving(receiver):
            sink = WebhookSink(caller, receiver.url(), secrets=[SECRET], at_once=4)
            events = [event(source.key, 0, seq) for seq, source in enumerate(some_events(12, 5))]
            assert await sink.send(events) == [None] * 60
        assert 1 < most <= 4


class TestAReceiverInTrouble:
    async def test_gets_everything_in_order_however_it_behaves(
        self, ledger: Ledger, caller: Caller
    ) -> None:
        """It answers 500, hangs up, or accepts an event and answers with an error."""
        chance = random.Random(7)

        def sometimes_fails(request: Request) -> str | None:
            if chance.random() < 0.05:
                endpoint.taken.append(request.body)
                return None
            return chance.choice(["200 OK", "200 OK", "200 OK", "500 Oops", "503 Later", None])

        endpoint = WebhookEndpoint(sometimes_fails)
        await put(ledger, *some_events(10, 20))
        await carried(ledger, caller, endpoint)
        assert first_arrivals(endpoint.taken) == expected(10, 20)
        assert await ledger.outbox.refused("webhook") == []

    async def test_that_hangs_delays_the_others_only_briefly(self, ledger: Ledger) -> None:
        """It accepts a request and never answers; then it is replaced."""

        async def hangs(reader: Reader, writer: Writer) -> None:
            await reader.read()

        silent = Receiver(behaviour=hangs)
        await put(ledger, *some_events(3, 4))
        async with Caller(allow=["127.0.0.1"], timeout=milliseconds(100)) as caller:
            async with receiving(silent):
                sink = WebhookSink(caller, silent.url(), secrets=[SECRET])
                async with Courier(ledger, [sink], options=QUICK):
                    await eventually_async(lambda: _called(silent, 9))
                    await silent.hang_up()
            endpoint = WebhookEndpoint()
            async with (
                receiving(endpoint, port=silent.port),
                Courier(ledger, [sink], options=QUICK),
            ):
                await all_gone(ledger, "webhook")
        assert first_arrivals(endpoint.taken) == expected(3, 4)

    async def test_that_was_away_is_found_again(self, ledger: Ledger, caller: Caller) -> None:
        endpoint = WebhookEndpoint()
        async with receiving(endpoint):
            pass
        sink = WebhookSink(caller, endpoint.url(), secrets=[SECRET])
        await put(ledger, *some_events(5, 5))
        async with (
            Courier(ledger, [sink], options=QUICK),
            receiving(endpoint, port=endpoint.port),
        ):
            await all_gone(ledger, "webhook")
        assert first_arrivals(endpoint.taken) == expected(5, 5)

    async def test_that_fails_on_one_event_gets_the_others(
        self, ledger: Ledger, caller: Caller
    ) -> None:
        endpoint = WebhookEndpoint(
            lambda request: "500 Oops" if b'"k0/1"' in request.body else "200 OK"
        )
        options = CourierOptions(
            attempts=2, look_every=milliseconds(5), first_pause=milliseconds(1)
        )
        await put(ledger, *some_events(3, 2))
        async with receiving(endpoint):
            sink = WebhookSink(caller, endpoint.url(), secrets=[SECRET])
            async with Courier(ledger, [sink], options=options):
                for number in range(1, 500):
                    await put(ledger, an_event("more", number))
                    if await ledger.outbox.refused("webhook"):
                        break
                await all_gone(ledger, "webhook")
        arrived = first_arrivals(endpoint.taken)
        assert (arrived["k0"], arrived["k1"], arrived["k2"]) == ([2], [1, 2], [1, 2])
        [refused] = await ledger.outbox.refused("webhook")
        assert refused.event.id == "k0/1"
        assert re.findall(r"\d+", refused.reason) == ["2", "500"]


async def carried(ledger: Ledger, caller: Caller, endpoint: WebhookEndpoint) -> None:
    """Whether everything in the outbox has reached *endpoint*."""
    quickly = CourierOptions(
        look_every=milliseconds(5), first_pause=milliseconds(1), longest_pause=milliseconds(4)
    )
    async with receiving(endpoint):
        sink = WebhookSink(caller, endpoint.url(), secrets=[SECRET])
        async with Courier(ledger, [sink], options=quickly):
            await all_gone(ledger, "webhook")


async def _called(receiver: Receiver, times: int) -> bool:
    return len(receiver.requests) >= times
