"""50 consumers over HTTP that die at random: order per user kept, no message lost or done twice."""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random
from typing import Any

import msgspec

from benchmarks.bench import Plan, bench
from benchmarks.figure import Figure, at_most, measured
from benchmarks.measure import Cost
from benchmarks.web.account import HeldMessage, MessageAccount, Violation
from benchmarks.web.serving import KEY, served
from benchmarks.web.wire import HttpClient, Place, client, request

ROUNDS = 3
LEASE_S = 1
"""The shortest there is, so that what the dead held is given to others within the run."""
LATE_S = 1.5
DEATHS = 0.01
"""The share of claims at which a consumer dies."""
_QUEUE = "/api/v1/queues/messages"
_SENDERS = 20
_WITHIN = 600.0


class ConsumersSize(msgspec.Struct, frozen=True):
    users: int
    each: int
    consumers: int


async def run(plan: Plan) -> list[Figure]:
    size = ConsumersSize(plan.count(1_000, 50), plan.count(20, 6), plan.count(50, 10))
    costs, accounts = list[Cost](), list[MessageAccount]()
    for number in range(ROUNDS):
        cost, account = await consumers_round(size, seed=number)
        costs.append(cost)
        accounts.append(account)
    return _figures(size, costs, accounts)


def _figures(
    size: ConsumersSize, costs: list[Cost], accounts: list[MessageAccount]
) -> list[Figure]:
    what = f"{size.users:,} users, {size.each} messages each, {size.consumers} consumers"
    return [
        measured("http_consumers", what, "messages/s", [cost.rate for cost in costs]),
        measured(
            "http_consumers.broken",
            "of them lost, out of order or completed twice",
            "messages",
            # Checked in each round: the first violation ends the bench with an error.
            [0.0 for _ in accounts],
            at_most(0),
        ),
        measured(
            "http_consumers.deaths",
            "consumers that died",
            "consumers",
            [account.deaths for account in accounts],
        ),
        measured(
            "http_consumers.refused",
            "completions of the dead that came late and were refused",
            "completions",
            [account.refused for account in accounts],
        ),
    ]


async def consumers_round(size: ConsumersSize, *, seed: int) -> tuple[Cost, MessageAccount]:
    """Sends and consumes at the same time on a new server. Raises Violation."""
    account = MessageAccount(size.users, size.each)
    async with bench() as workbench, served(workbench) as (serving, _):
        everybody = _SendersAndConsumers(serving.place, account, Random(seed))
        cost = await workbench.meter.cost(account.total, everybody.work(size))
        account.check(await _totals(serving.place))
    return cost, account


class _SendersAndConsumers:
    """Senders and consumers, each with a connection of its own."""

    def __init__(self, place: Place, account: MessageAccount, chance: Random) -> None:
        self._place, self._account, self._chance = place, account, chance
        self._names = count(1)
        self._all_done = asyncio.Event()

    async def work(self, size: ConsumersSize) -> None:
        """Runs until all sent messages are completed. Raises Violation, also if that takes too
        long.
        """
        senders = [self._send(range(n, size.users, _SENDERS), size.each) for n in range(_SENDERS)]
        everybody = asyncio.gather(*senders, *(self._live() for _ in range(size.consumers)))
        done = asyncio.ensure_future(self._all_done.wait())
        try:
            ends = (done, everybody)
            await asyncio.wait(ends, timeout=_WITHIN, return_when=asyncio.FIRST_COMPLETED)
            if everybody.done():
                everybody.result()  # consumers are replaced for ever, so only an error ends them
            if not done.done():
                left = self._account.total - self._account.done
                raise Violation(f"{left} messages were not completed within {_WITHIN:g} s")
        finally:
            done.cancel()
            everybody.cancel()
            await asyncio.gather(done, everybody, return_exceptions=True)

    async def _send(self, users: range, each: int) -> None:
        """Sends each user's messages in order, taking turns between users."""
        async with client(self._place) as sender:
            for number in range(each):
                for user in users:
                    body = {
                        "user_id": f"user-{user}",
                        "org_id": "acme",
                        "message": str(number),
                        "client_id": "bench",
                    }
                    await _told(sender, "/api/v1/message", body, 200)

    async def _live(self) -> None:
        """Runs one consumer after the other: when one dies, the next takes its place."""
        while True:
            async with client(self._place) as consumer:
                await self._consume(consumer, f"consumer-{next(self._names)}")
            self._account.deaths += 1

    async def _consume(self, consumer: HttpClient, name: str) -> None:
        """Claims and completes, until the consumer dies."""
        wish = {"worker": name, "wait": 5, "lease": LEASE_S}
        while True:
            if self._dies():
                # It dies in the middle of its claim: what it would have got, no consumer has.
                consumer.wire.send(_post(f"{_QUEUE}/claim", wish))
                return
            status, answer = await _told(consumer, f"{_QUEUE}/claim", wish, 200, 204)
            if status == 204:
                continue
            [job] = msgspec.json.decode(answer)["jobs"]
            given = _given(job)
            self._account.given(given)
            if self._dies():
                return
            if self._dies():
                await asyncio.sleep(LATE_S)
                await self._complete(consumer, job["id"], given)
                return
            await self._complete(consumer, job["id"], given)

    async def _complete(self, consumer: HttpClient, id: str, given: HeldMessage) -> None:
        self._account.completing(given)
        path = f"{_QUEUE}/jobs/{id}/complete"
        status, _ = await _told(consumer, path, {"token": given.token}, 200, 404, 409)
        if status == 200:
            self._account.completed(given)
        else:
            self._account.refused += 1
        if self._account.done == self._account.total:
            self._all_done.set()

    def _dies(self) -> bool:
        return self._chance.random() < DEATHS / 3


def _given(job: dict[str, Any]) -> HeldMessage:
    message = job["payload"]
    return HeldMessage(message["user_id"], int(message["message"]), job["token"])


def _post(path: str, body: object) -> bytes:
    return request("POST", path, KEY, msgspec.json.encode(body))


async def _told(who: HttpClient, path: str, body: object, *statuses: int) -> tuple[int, bytes]:
    answer = await who.ask(_post(path, body))
    if answer.status not in statuses:
        raise Violation(f"{path} was answered with {answer.status}: {answer.body[:200]!r}")
    return answer


async def _totals(place: Place) -> dict[str, int]:
    """The counts of the server. Raises Violation if anything is left."""
    async with client(place) as looking:
        answer = await looking.ask(request("GET", _QUEUE, KEY))
    counts = msgspec.json.decode(answer.body)
    left = {name: counts[name] for name in ("ready", "delayed", "waiting", "leased", "dead")}
    if any(left.values()):
        raise Violation(f"the server still has {left}")
    return counts["totals"]
