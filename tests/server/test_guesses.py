"""Wrong keys, logins and links: limited per address, and nothing is written for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest

from tests.dashboard.sessions import COOKIE, log_in
from tests.server.serving import RunningServer, code, up
from tests.waiting import eventually
from towpath.ledger.ledger import Ledger

MOST = 3


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    limits = {"TOWPATH_HTTP__GUESSES": "1", "TOWPATH_HTTP__LOGINS_PER_KEY": str(MOST)}
    with up(tmp_path_factory.mktemp("guesses"), **limits) as running:
        yield running


Guess = Callable[[httpx.Client, int], httpx.Response]


def wrong_key(client: httpx.Client, n: int) -> httpx.Response:
    return client.get("/api/v1/queues", headers={"X-API-Key": f"tp_wrong_{n}"})


def wrong_cookie(client: httpx.Client, n: int) -> httpx.Response:
    return client.get("/api/v1/queues", headers={"Cookie": f"{COOKIE}=wrong-{n}"})


def wrong_cookie_at_the_first_page(client: httpx.Client, n: int) -> httpx.Response:
    return client.get("/", headers={"Cookie": f"{COOKIE}=wrong-{n}"})


def wrong_cookie_at_the_logout(client: httpx.Client, n: int) -> httpx.Response:
    return client.post("/", data={"leave": "1"}, headers={"Cookie": f"{COOKIE}=wrong-{n}"})


def wrong_form(client: httpx.Client, n: int) -> httpx.Response:
    return client.post("/", data={"key": f"tp_wrong_{n}"})


def wrong_link(client: httpx.Client, n: int) -> httpx.Response:
    return client.post("/", data={"link": f"wrong-{n}"})


GUESSES = (
    wrong_key,
    wrong_cookie,
    wrong_cookie_at_the_first_page,
    wrong_cookie_at_the_logout,
    wrong_form,
    wrong_link,
)


@pytest.mark.parametrize("guess", GUESSES)
def test_too_many_wrong_keys_are_refused_and_known_keys_are_not(
    served: RunningServer, guess: Guess
) -> None:
    """The address is named by a proxy that the server trusts: each test has one of its own."""
    address = {"X-Forwarded-For": f"10.0.0.{GUESSES.index(guess)}"}
    known = served.client()
    assert known.get("/api/v1/queues", headers=address).status_code == 200
    client = served.client(key="")
    client.headers.update(address)
    numbers = iter(range(100_000))

    def refused() -> httpx.Response | None:
        answer = guess(client, next(numbers))
        assert answer.status_code in (200, 303, 401, 429), answer.text
        return answer if answer.status_code == 429 else None

    eventually(refused)
    assert next(numbers) >= 10
    answer = next(answer for _ in range(100) if (answer := refused()))
    assert code(answer, 429) == "too-many-guesses"
    assert known.get("/api/v1/queues", headers=address).status_code == 200
    other = {"X-Forwarded-For": "10.0.1.1"}
    assert wrong_key(served.client(key=""), 0).status_code == 401
    assert served.client(key="").get("/api/v1/queues", headers=other).status_code == 401


async def test_a_wrong_guess_writes_nothing(ledger: Ledger, prepared_file_url: str) -> None:
    """It is answered while another process holds the lock that every change needs."""
    async with ledger:
        key = (await ledger.keys.create("k", scopes=["read"])).info
        link = await ledger.logins.link(key)
        with closing(sqlite3.connect(httpx.URL(prepared_file_url).path)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await ledger.keys.check("tp_wrong_key") is None
            assert await ledger.logins.find("wrong") is None
            assert await ledger.logins.redeem("wrong") is None
        assert await ledger.logins.redeem(link) is not None
        assert await ledger.logins.redeem(link) is None


def test_a_login_beyond_the_limit_of_a_key_ends_its_oldest_login(served: RunningServer) -> None:
    _, secret = served.make_key("read")
    _, other = served.make_key("read")
    others = log_in(served, other)
    logins = [log_in(served, secret) for _ in range(MOST)]
    assert {login.get("/api/v1/queues").status_code for login in logins} == {200}
    newest = log_in(served, secret)
    found = [login.get("/api/v1/queues").status_code for login in (*logins, newest, others)]
    assert found == [401, *[200] * MOST, 200]
