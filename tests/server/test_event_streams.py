"""A queue's events as a stream: live, and from where the client left off."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from threading import Event

import pytest
from sse_starlette import ServerSentEvent

from tests.queue_numbers import set_numbers
from tests.server.serving import (
    Api,
    RawConnection,
    RunningServer,
    StreamEvent,
    code,
    problem,
    processor_time,
    stream_events,
)
from tests.waiting import HANGS, eventually
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask
from towpath.engine.engine import Engine
from towpath.engine.events import Wanted
from towpath.engine.keys import keys_of
from towpath.engine.options import EventPolicy, QueueOptions
from towpath.ids import queue_name
from towpath.web.streams import queue_events

WAIT = 50
"""Seconds that a claim waits by itself."""


@contextmanager
def following(api: Api, last_id: str | None = None) -> Generator[Iterator[StreamEvent]]:
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    with api.client.stream("GET", f"{api.root}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield stream_events(answer.iter_lines())


def test_a_stream_sends_events_as_they_happen(api: Api) -> None:
    with following(api) as events:
        api.submit(1, id="a")
        [job] = api.claim()
        api.say("complete", job)
        found = [(event.event, event.job) for event in islice(events, 3)]
    assert found == [("submit", "a"), ("claim", "a"), ("complete", "a")]


def test_a_stream_begins_with_the_answer(api: Api) -> None:
    """Everything after the head of the answer is sent, nothing from before."""
    api.submit(1, id="before")
    with following(api) as events:
        api.submit(1, id="after")
        assert next(events).job == "after"


def test_a_stream_continues_where_the_client_left_off(api: Api) -> None:
    with following(api) as events:
        for id in "abcd":
            api.submit(1, id=id)
        seen = [next(events) for _ in range(2)]
    with following(api, last_id=seen[-1].id) as events:
        api.submit(1, id="e")
        assert [event.job for event in islice(events, 3)] == ["c", "d", "e"]


def test_a_stream_continues_inside_an_entry_with_several_jobs(api: Api) -> None:
    """A list is one step in the store, so its jobs share a place in the stream: none is lost."""
    with following(api) as events:
        api.post("/jobs", [{"payload": 1, "id": id} for id in "abcde"])
        all_of_them = list(islice(events, 5))
    assert [event.job for event in all_of_them] == list("abcde")
    assert len({event.id for event in all_of_them}) == 5
    for n, last in enumerate(all_of_them[:-1], 1):
        with following(api, last_id=last.id) as events:
            assert [event.job for event in islice(events, 5 - n)] == list("abcde")[n:]


def test_a_stream_may_begin_with_the_oldest_kept_event(api: Api) -> None:
    api.submit(1, id="a")
    with following(api, last_id="0-0") as events:
        assert next(events).job == "a"


def test_a_stream_reports_missing_events_once(running: RunningServer, queue: str) -> None:
    """Nobody followed the queue for more than a minute, and something happened."""
    api, keys = running.api(queue), keys_of(queue_name(queue))
    with following(api) as events:
        api.submit(1, id="a")
        last = next(events).id
    set_numbers(
        partial(ask, running.store), keys.meta, **{Wanted.ALL: 1}
    )  # as if that minute were over
    api.submit(1, id="unseen")
    with following(api, last_id=last) as events:
        gap = next(events)
        assert gap.event == "fell_behind"
        api.submit(1, id="b")
        assert next(events).job == "b"
    with following(api, last_id=gap.id) as events:
        assert next(events).job == "b"


def test_a_stream_reports_that_the_position_of_the_client_was_trimmed(
    running: RunningServer, queue: str
) -> None:
    api, keys = running.api(queue), keys_of(queue_name(queue))
    with following(api) as events:
        for id in "abc":
            api.submit(1, id=id)
        first = next(events).id
    ask(running.store, "XTRIM", keys.events, "MAXLEN", 1)
    with following(api, last_id=first) as events:
        assert next(events).event == "fell_behind"
        assert next(events).job == "c"


def test_a_stream_sends_the_rest_of_an_entry_that_a_gap_follows(
    running: RunningServer, queue: str
) -> None:
    """The client had the first of five events of one entry, and missed others after it."""
    api, keys = running.api(queue), keys_of(queue_name(queue))
    with following(api) as events:
        api.post("/jobs", [{"payload": 1, "id": id} for id in "abcde"])
        first = next(events)
    set_numbers(partial(ask, running.store), keys.meta, **{Wanted.ALL: 1})
    api.submit(1, id="unseen")
    with following(api, last_id=first.id) as events:
        assert [event.job for event in islice(events, 4)] == list("bcde")
        gap = next(events)
        assert gap.event == "fell_behind"
        api.submit(1, id="f")
        assert next(events).job == "f"
    with following(api, last_id=gap.id) as events:
        assert next(events).job == "f"


def test_a_stream_ends_when_the_queue_writes_no_events_any_more(
    running: RunningServer, queue: str
) -> None:
    """It ends once, with the reason; later clients are refused with the same text, until there are
    events again.
    """
    api = running.api(queue)
    with following(api) as events:
        api.submit(1, id="seen")
        last = next(events)
        change_policy(running, queue, EventPolicy.NONE)
        api.submit(1, id="unseen")
        told = list(events)
    assert [event.event for event in told] == ["queue_has_no_events"]
    assert "keeps no events" in told[0].data
    refused = api.client.get(f"{api.root}/events", headers={"Last-Event-ID": last.id})
    assert code(refused, 409) == "queue-has-no-events"
    change_policy(running, queue, EventPolicy.FOLLOWED)
    with following(api, last_id=last.id) as events:
        assert next(events).event == "fell_behind"
        api.submit(1, id="again")
        assert next(events).job == "again"


def change_policy(running: RunningServer, queue: str, policy: EventPolicy) -> None:
    async def change() -> None:
        async with Engine(running.said["store"]) as engine:
            await engine.queues.reconfigure(queue, QueueOptions(events=policy))

    asyncio.run(change())


async def test_a_stream_that_reads_a_gap_twice_reports_it_once(
    engine: Engine, server: EmbeddedServer
) -> None:
    """Behind its last event, and again as it happens: the gap came while the stream began."""
    name = queue_name("mails")
    await engine.submit(name, b"", id="a")
    [event] = await engine.events.list(name)
    async with aclosing(queue_events(engine, name, f"{event.cursor}.0")) as events:
        await anext(events)
        set_numbers(server.ask, keys_of(name).meta, **{Wanted.ALL: 1})
        await engine.submit(name, b"", id="unseen")
        await engine.events.newest(name)
        await engine.submit(name, b"", id="b")
        told = [await text_of(events), await text_of(events)]
        await engine.submit(name, b"", id="c")
        told.append(await text_of(events))
    assert ["fell_behind" in told[0], '"b"' in told[1], '"c"' in told[2]] == [True] * 3


async def text_of(events: AsyncGenerator[bytes | ServerSentEvent]) -> str:
    async with asyncio.timeout(HANGS):
        sent = await anext(events)
    return (sent if isinstance(sent, bytes) else sent.encode()).decode()


def test_several_clients_get_the_same_events(api: Api) -> None:
    with following(api) as one, following(api) as two:
        api.submit(1, id="a")
        assert next(one) == next(two)


@pytest.mark.parametrize("last_id", ["x", "1", "1-", "-1", "1-1.x", "9" * 20 + "-1", "²-²"])
def test_an_invalid_event_id_is_refused(api: Api, last_id: str) -> None:
    headers = [(b"Last-Event-ID", last_id.encode("latin-1"))]
    problem(api.client.get(f"{api.root}/events", headers=headers), 422)


def test_the_number_of_open_streams_is_limited(limited: RunningServer) -> None:
    (_, one), (_, other) = limited.make_key("read"), limited.make_key("read")
    api, others = limited.api("mails", one), limited.api("mails", other)
    with following(api), following(api):
        assert code(api.get("/events"), 429) == "too-many-of-key"
        with following(others):
            assert code(others.get("/events"), 503) == "too-many-streams"
    eventually(lambda: stream_opens(limited))


def stream_opens(limited: RunningServer) -> bool:
    """Uses a key of its own: the rate of the others is used up."""
    _, key = limited.make_key("read")
    with limited.client(key).stream("GET", "/api/v1/queues/mails/events") as answer:
        return answer.status_code == 200


class TestAKeyThatEnds:
    """The server's own interval decides how soon; the test sets no limit, because machines may be
    busy.
    """

    def until_its_end(self, api: Api, opened: Event | None = None) -> list[str]:
        """All lines of a stream that ends by itself; none if the key expired before."""
        with api.client.stream("GET", f"{api.root}/events") as answer:
            if answer.status_code == 401:
                return []
            assert answer.status_code == 200
            if opened is not None:
                opened.set()
            lines = list[str]()
            for line in answer.iter_lines():
                lines.append(line)
                pings = [line for line in lines if line.startswith(": ping")]  # every 15 s
                assert len(pings) < 3, "the stream goes on"
            return lines

    def test_by_expiring_ends_its_streams(self, running: RunningServer, queue: str) -> None:
        """On a busy machine a key may be over before its stream opens: the next lasts longer."""
        for seconds in (1.5, 10, 60):
            soon = datetime.now(UTC) + timedelta(seconds=seconds)
            _, secret = running.make_key("read", expires_at=soon)
            if self.until_its_end(running.api(queue, secret)):
                return
        pytest.fail("no stream opened while its key was good")

    def test_by_being_revoked_ends_its_streams(self, running: RunningServer, queue: str) -> None:
        id, secret = running.make_key("read")
        api, other = running.api(queue, secret), running.api(queue)
        with following(other) as events, ThreadPoolExecutor(1) as beside:
            opened = Event()
            ending = beside.submit(self.until_its_end, api, opened)
            assert opened.wait(HANGS)
            running.revoke(id)
            ending.result(HANGS)
            other.submit(1, id="goes-on")
            assert next(events).job == "goes-on"

    def test_by_being_revoked_ends_its_waiting_claims(
        self, running: RunningServer, queue: str
    ) -> None:
        """They get no job that comes after."""

        def ended_before_its_time() -> bool:
            id, secret = running.make_key("work")
            with ThreadPoolExecutor(1) as beside:
                began = time.monotonic()
                waiting = beside.submit(running.api(queue, secret).claim, wait=WAIT)
                eventually(lambda: running.asked_for(queue))
                running.revoke(id)
                assert waiting.result(HANGS) == []
                return time.monotonic() - began < WAIT

        # A busy machine may take longer than the whole wait, but not every time.
        eventually(ended_before_its_time)
        api = running.api(queue)
        api.submit(1, id="a")
        assert api.look("a")["state"] == "ready"


def test_many_followers_of_a_queue_cost_little_more_than_one(
    running: RunningServer, queue: str
) -> None:
    """What happens is put into words once: a hundred clients, and two hundred jobs at once."""
    _, secret = running.make_key("read")
    api = running.api(queue)
    asking = f"GET {api.root}/events HTTP/1.1\r\nHost: x\r\nX-API-Key: {secret}\r\n\r\n"
    with ExitStack() as open_ones:
        lines = [open_ones.enter_context(RawConnection(running)) for _ in range(100)]
        for line in lines:
            line.send(asking)
        for line in lines:
            line.until(b": following")
        before = processor_time(running)
        api.post("/jobs", [{"payload": n, "id": f"j{n}"} for n in range(200)])
        for line in lines:
            line.until(b'"j199"')
        assert processor_time(running) - before < 0.25
