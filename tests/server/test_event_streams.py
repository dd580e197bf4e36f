"""A queue's events as a stream: live, and from where the client left off."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from tests.server.serving import Api, Serving, Told, code, problem, told
from tests.waiting import eventually


@contextmanager
def following(api: Api, last_id: str | None = None) -> Generator[Iterator[Told]]:
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    with api.client.stream("GET", f"{api.root}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield told(answer.iter_lines())


def test_tells_what_happens_as_it_happens(api: Api) -> None:
    with following(api) as events:
        api.submit(1, id="a")
        [job] = api.claim()
        api.say("complete", job)
        found = [(it.event, it.job) for it in islice(events, 3)]
    assert found == [("submit", "a"), ("claim", "a"), ("complete", "a")]


def test_begins_with_the_answer(api: Api) -> None:
    """Whatever happens after the client has the answer's head is told, nothing before."""
    api.submit(1, id="before")
    with following(api) as events:
        api.submit(1, id="after")
        assert next(events).job == "after"


def test_goes_on_where_the_client_left_off(api: Api) -> None:
    with following(api) as events:
        for id in "abcd":
            api.submit(1, id=id)
        seen = [next(events) for _ in range(2)]
    with following(api, last_id=seen[-1].id) as events:
        api.submit(1, id="e")
        assert [it.job for it in islice(events, 3)] == ["c", "d", "e"]


def test_goes_on_inside_of_an_entry_that_tells_of_several_jobs(api: Api) -> None:
    """A list is one step in the store, so its jobs share a place in the stream: none is lost."""
    with following(api) as events:
        api.post("/jobs", [{"payload": 1, "id": id} for id in "abcde"])
        all_of_them = list(islice(events, 5))
    assert [it.job for it in all_of_them] == list("abcde")
    assert len({it.id for it in all_of_them}) == 5
    for n, last in enumerate(all_of_them[:-1], 1):
        with following(api, last_id=last.id) as events:
            assert [it.job for it in islice(events, 5 - n)] == list("abcde")[n:]


def test_from_the_beginning_of_what_is_kept(api: Api) -> None:
    api.submit(1, id="a")
    with following(api, last_id="0-0") as events:
        assert next(events).job == "a"


def test_several_clients_hear_the_same(api: Api) -> None:
    with following(api) as one, following(api) as two:
        api.submit(1, id="a")
        assert next(one) == next(two)


@pytest.mark.parametrize("last_id", ["x", "1", "1-", "-1", "1-1.x", "9" * 20 + "-1", "²-²"])
def test_what_is_no_event_s_id_is_refused(api: Api, last_id: str) -> None:
    headers = [(b"Last-Event-ID", last_id.encode("latin-1"))]
    problem(api.client.get(f"{api.root}/events", headers=headers), 422)


def test_the_number_of_open_streams_has_its_limit(narrow: Serving) -> None:
    _, key = narrow.make_key("submit", "read")
    api = narrow.api("mails", key)
    with following(api), following(api):
        assert code(api.get("/events"), 503) == "too-many-streams"
    eventually(lambda: stream_opens(narrow))


def stream_opens(narrow: Serving) -> bool:
    """With a key of its own: the rate of the others is used up."""
    _, key = narrow.make_key("read")
    with narrow.client(key).stream("GET", "/api/v1/queues/mails/events") as answer:
        return answer.status_code == 200
