"""Timers that are changed at the moment they fall due, and by many clients at once."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import pytest

from tests.server.in_process import client_of, key_of, started
from tests.server.messaging import app_on
from tests.waiting import eventually_async
from towpath import Context
from towpath.apps.timers.plugin import Timers
from towpath.clock import wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.ledger.ledger import Ledger

ROOT = "/api/v1/timers"
ROUNDS, AT_ONCE = 200, 20
T = TypeVar("T")


@pytest.fixture
async def client(
    server: EmbeddedServer, prepared_file_url: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        started(app_on(server.url, Ledger(prepared_file_url), patience=Limits())) as app,
        client_of(app, await key_of(app, "submit", "read", "work", owner="shop")) as client,
    ):
        yield client


Ran = dict[str, list[int]]


@pytest.fixture
async def ran(server: EmbeddedServer) -> AsyncIterator[Ran]:
    """The times at which each timer of type `t` ran, in ms."""
    timers, times = Timers(server.url), Ran()

    @timers.worker("t")
    async def _(ctx: Context) -> None:
        times.setdefault(ctx.id, []).append(wall_ms())

    async with timers.working():
        yield times


async def in_turn(one: Callable[[str], Awaitable[tuple[str, T]]]) -> dict[str, T]:
    """Returns the results of *count* rounds, several at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def when_there_is_room(id: str) -> tuple[str, T]:
        async with room:
            return await one(id)

    return dict(await asyncio.gather(*(when_there_is_room(f"x{n}") for n in range(ROUNDS))))


async def submit(client: httpx.AsyncClient, id: str, **more: Any) -> Any:
    answer = await client.post(ROOT, json={"task_type": "t", "task_id": id, **more})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def state(client: httpx.AsyncClient, id: str) -> str:
    return (await client.get(f"{ROOT}/t/{id}")).json()["state"]


async def all_in(client: httpx.AsyncClient, *states: str) -> None:
    async def so() -> bool:
        page = (await client.get(ROOT, params={"size": 1000, "task_type": "t"})).json()["timers"]
        return {timer["state"] for timer in page} <= set(states)

    await eventually_async(so)


class TestATimerThatFallsDueNow:
    async def test_is_moved_or_the_move_is_refused(
        self, client: httpx.AsyncClient, ran: Ran, seed: int
    ) -> None:
        """It runs once, and never before the time that the answer named."""
        chance = random.Random(seed)

        async def one(id: str) -> tuple[str, int]:
            due = wall_ms() + chance.randrange(100)
            await submit(client, id, delay_time=due)
            at = due + chance.randrange(-40, 40)

            async def now() -> bool:
                return wall_ms() >= at

            await eventually_async(now)
            moved = {"delay_time": wall_ms() + chance.randrange(-50, 600)}
            answer = await client.patch(f"{ROOT}/t/{id}", json=moved)
            assert answer.status_code in (200, 409), answer.text
            return id, answer.json()["delay_time"] if answer.status_code == 200 else due

        promises = await in_turn(one)
        await all_in(client, "done")
        assert {id: len(times) for id, times in ran.items()} == dict.fromkeys(promises, 1)
        assert [id for id, [at] in ran.items() if at < promises[id]] == []

    async def test_never_runs_after_its_cancellation_was_accepted(
        self, client: httpx.AsyncClient, ran: Ran, seed: int
    ) -> None:
        chance = random.Random(seed)

        async def one(id: str) -> tuple[str, str]:
            due = wall_ms() + chance.randrange(100)
            await submit(client, id, delay_time=due)
            at = due + chance.randrange(-30, 30)

            async def now() -> bool:
                return wall_ms() >= at

            await eventually_async(now)
            answer = await client.post(f"{ROOT}/t/{id}/cancel")
            assert answer.status_code in (200, 409), answer.text
            return id, answer.json().get("state", "ended")

        said = await in_turn(one)
        await all_in(client, "done", "cancelled")
        assert [id for id, word in said.items() if word == "cancelled" and id in ran] == []
        assert [id for id, word in said.items() if word == "ended" and len(ran[id]) != 1] == []

    async def test_runs_as_often_as_the_answers_to_a_set_say(
        self, client: httpx.AsyncClient, ran: Ran, seed: int
    ) -> None:
        """201: it ran, and runs again. 200: it was replaced before it ran. 409: it is running."""
        chance = random.Random(seed)

        async def one(id: str) -> tuple[str, int]:
            due = wall_ms() + chance.randrange(100)
            await submit(client, id, delay_time=due)
            at = due + chance.randrange(-30, 30)

            async def now() -> bool:
                return wall_ms() >= at

            await eventually_async(now)
            answer = await client.put(f"{ROOT}/t/{id}", json={"delay": 0.2})
            assert answer.status_code in (200, 201, 409), answer.text
            return id, answer.status_code

        said = await in_turn(one)
        await all_in(client, "done")
        expected = {200: 1, 201: 2, 409: 1}
        assert {id: len(ran[id]) for id in said} == {
            id: expected[answer] for id, answer in said.items()
        }


class TestManySubmitsAtOnce:
    async def test_of_the_same_timer_make_one_timer(
        self, client: httpx.AsyncClient, ran: Ran
    ) -> None:
        body = {"task_type": "t", "task_id": "x", "delay": 0.3, "params": [1]}
        answers = await asyncio.gather(*(client.post(ROOT, json=body) for _ in range(20)))
        assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
        assert len({answer.json()["delay_time"] for answer in answers}) == 1
        await all_in(client, "done")
        assert len(ran["x"]) == 1

    async def test_different_timers_under_one_id_store_one_of_them(
        self, client: httpx.AsyncClient
    ) -> None:
        bodies = [{"task_type": "u", "task_id": "x", "delay": 60, "params": n} for n in range(20)]
        answers = await asyncio.gather(*(client.post(ROOT, json=body) for body in bodies))
        assert sorted(answer.status_code for answer in answers) == [201] + [409] * 19
        [made] = [answer.json() for answer in answers if answer.status_code == 201]
        assert (await client.get(f"{ROOT}/u/x")).json()["params"] == made["params"]


ODD = [
    "a/b",
    "a%2Fb",
    "%2F",
    "%",
    "%00",
    "\u202eabc",
    "e\u0301",
    "é",
    " ",
    ".",
    "..",
    "a\\b",
    "?#&=;",
    "{x}:y",
    "取" * 42 + "ab",
    "x" * 128,
    "timers.t",
    "T",
    "t ",
    "ﬃ",
]


def quoted(name: str) -> str:
    part = quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")
    return f"{ROOT}/{part}/{part}"


async def test_types_with_any_name_are_kept_apart(client: httpx.AsyncClient) -> None:
    for n, name in enumerate(ODD):
        body = {"task_type": name, "task_id": name, "delay": 60, "params": n}
        answer = await client.post(ROOT, json=body)
        assert answer.status_code == 201, (name, answer.text)
        where = answer.headers["location"]
        moved = await client.patch(where, json={"delay": 120})
        assert moved.status_code == 200, (name, moved.text)
    for n, name in enumerate(ODD):
        path = quoted(name)
        found = await client.get(path)
        assert found.status_code == 200, (name, found.text)
        assert (found.json()["task_type"], found.json()["params"]) == (name, n)
        assert (await client.get(path + "/explain")).status_code == 200
        listed = (await client.get(ROOT, params={"task_type": name})).json()["timers"]
        assert [timer["task_id"] for timer in listed] == [name]
    types = (await client.get(f"{ROOT}/types")).json()["types"]
    assert sorted(view["task_type"] for view in types) == sorted(ODD)
    assert len({view["queue"] for view in types}) == len(ODD)
