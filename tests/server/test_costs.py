"""The cost of requests: expensive ones count as several, and shared answers are made once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import httpx
import pytest
from fastapi import FastAPI

from tests.server.in_process import client_of
from tests.server.serving import RunningServer, code
from towpath.ledger.ledger import Ledger
from towpath.web.limits import Account, Guesses, Metered, Rates
from towpath.web.problems import Refused

# ── expensive requests ───────────────────────────────────────────────────────────────────

K = Account("k")


def taken(rates: Rates, account: Account, seconds: float) -> int:
    """The number of requests of that cost that are answered before one is refused."""
    for answered in range(10_000):
        try:
            amount = rates.take(account)
        except Refused:
            return answered
        rates.settle(account, amount, seconds)
    return 10_000


def refused_after(take: Callable[[], object], most: int) -> Refused:
    """The refusal, which comes after at most that many calls."""
    for _ in range(most + 1):
        try:
            take()
        except Refused as refusal:
            return refusal
    pytest.fail(f"{most + 1} were not refused")


def test_a_cheap_request_counts_as_one() -> None:
    """The bucket is refilled meanwhile, so more requests may pass than it holds."""
    assert taken(Rates(100), K, 0.001) >= 200


def test_an_expensive_request_counts_as_many_requests() -> None:
    """A key has four seconds of processor time at once."""
    assert taken(Rates(100), K, 0.125) <= 40
    assert taken(Rates(100), K, 1.0) <= 5


def test_a_key_that_sent_expensive_requests_may_run_few_of_them_at_once() -> None:
    rates = Rates(100)
    rates.settle(K, rates.take(K), 1.0)
    refusal = refused_after(lambda: rates.take(K), 20)
    assert refusal.status == 429
    assert int((refusal.headers or {})["Retry-After"]) >= 1


def test_large_pages_count_as_several_before_they_are_answered() -> None:
    rates = Rates(1000)
    assert rates.take(K, size=10) == 0
    assert refused_after(lambda: rates.take(K, size=1000), 120).status == 429


def test_an_expensive_request_of_one_key_costs_no_other_key() -> None:
    rates = Rates(100)
    taken(rates, Account("one"), 1.0)
    assert taken(rates, Account("other"), 0.001) >= 200


def test_a_credential_has_a_share_of_the_limits_of_its_key() -> None:
    rates = Rates(100, share=10)
    one, other = Account("k", "one"), Account("k", "other")
    assert refused_after(lambda: rates.take(one), 1000).status == 429
    rates.take(other)
    assert taken(rates, K, 0.001) >= 200
    assert taken(Rates(100, share=10), one, 0.125) <= 4


def test_all_credentials_of_a_key_together_have_the_same_limits_as_the_key() -> None:
    """They have four seconds of processor time at once."""
    rates, numbers = Rates(100, share=100), count()

    def answer_another() -> None:
        account = Account("k", str(next(numbers)))
        rates.settle(account, rates.take(account), 0.125)

    assert refused_after(answer_another, 64).status == 429
    rates.take(K)


def test_a_running_request_is_charged_for_the_time_used_so_far() -> None:
    rates = Rates(100)
    charged = rates.charge(K, rates.take(K), 60.0)
    assert charged == 60.0
    assert refused_after(lambda: rates.take(K), 1).status == 429
    before = rates.charge(K, charged, 60.001)
    assert before == charged  # too little to be counted by itself


async def test_a_long_request_is_charged_several_times() -> None:
    async def computes() -> None:
        for _ in range(5):
            sum(range(1_000_000))
            await asyncio.sleep(0)

    charges = list[float]()
    metered = Metered(computes(), charges.append)
    await metered
    assert len(charges) > 1
    assert charges == sorted(charges)
    assert charges[-1] <= metered.seconds


def test_without_a_rate_nothing_is_refused() -> None:
    assert taken(Rates(0), K, 1.0) == 10_000


async def test_the_processor_time_of_a_request_is_that_of_its_own_steps() -> None:
    async def waits() -> None:
        await asyncio.sleep(0)
        await busy

    async def computes() -> None:
        sum(range(3_000_000))

    busy = asyncio.ensure_future(computes())
    waiting = Metered(waits())
    await waiting
    own = Metered(computes())
    await own
    assert own.seconds > 10 * waiting.seconds


async def test_a_measured_request_can_be_cancelled() -> None:
    ended = list[str]()

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def measured() -> None:
        await Metered(run())

    task = asyncio.ensure_future(measured())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert ended == ["cancelled"]


async def test_large_pages_are_measured_and_counted_for_their_key(app: FastAPI) -> None:
    ledger: Ledger = app.state.ledger
    made = await ledger.keys.create("k", scopes=["submit", "read"])
    rates: Rates = app.state.rates
    async with client_of(app, made.secret.get_secret_value()) as client:
        for _ in range(10):
            jobs = [{"payload": n} for n in range(100)]
            await client.post("/api/v1/queues/large/jobs", json=jobs)
        large = {"state": "ready", "size": 1000}
        for _ in range(8):
            answer = await client.get("/api/v1/queues/large/jobs", params=large)
            assert len(answer.json()["jobs"]) == 1000
    assert rates.take(Account(made.info.id)) > 0
    assert rates.take(Account("another")) == 0


# ── results that are computed once ───────────────────────────────────────────────────────


async def test_simultaneous_readiness_requests_share_one_check(
    app: FastAPI, client: httpx.AsyncClient
) -> None:
    tries = 0

    async def probe(_: object) -> None:
        nonlocal tries
        tries += 1

    app.state.probes["counted"] = probe
    app.state.services["counted"] = None
    async with client_of(app) as anybody:
        answers = await asyncio.gather(*(anybody.get("/readyz") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.json()["parts"]["counted"] == {"ok": True} for answer in answers)
    assert tries <= 25


def test_the_api_description_is_not_sent_again_to_a_client_that_has_it(
    running: RunningServer,
) -> None:
    client = running.client()
    first = client.get("/openapi.json")
    assert first.status_code == 200
    assert first.json()["openapi"].startswith("3.1")
    again = client.get("/openapi.json", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/openapi.json", headers={"If-None-Match": '"other"'}).status_code == 200
    assert code(running.client(key="").get("/openapi.json"), 401) == "unauthorized"


# ── wrong keys ───────────────────────────────────────────────────────────────────────────


def test_wrong_keys_are_counted_by_address() -> None:
    guesses = Guesses(1)
    for _ in range(10):
        guesses.take("a")
    refusal = refused_after(lambda: guesses.take("a"), 10)
    assert refusal.status == 429
    assert int((refusal.headers or {})["Retry-After"]) >= 1
    guesses.take("b")


def test_the_memory_for_addresses_is_bounded() -> None:
    guesses, rates = Guesses(1), Rates(1)
    for n in range(30_000):
        guesses.take(str(n))
        account = Account(str(n), "upload")
        rates.settle(account, rates.take(account), 1.0)
    remembered = [guesses._buckets]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    for allowed in (rates._of_key, rates._of_credential):  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        assert allowed is not None
        remembered += [allowed.requests, allowed.time]
    assert all(buckets and len(buckets._buckets) <= 10_000 for buckets in remembered)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    assert len(rates._expected) <= 10_000  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
