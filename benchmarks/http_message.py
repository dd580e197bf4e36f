"""`POST /api/v1/message` reaches 75 % of the rate of an endpoint that does nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

import msgspec

from benchmarks.bench import Bench, Plan, bench
from benchmarks.figure import Figure, Reference, at_least, measured
from benchmarks.measure import Cost, in_turns, percentile
from benchmarks.web.load import CONNECTIONS, LoadResult, load
from benchmarks.web.serving import ServerProcess, empty, served

EACH = 10
"""Messages of one user, where they wait for each other."""
_WARM = 200


async def run(plan: Plan) -> list[Figure]:
    messages = plan.count(4_000, 320)
    trials: dict[str, list[LoadResult]] = {"empty": [], "ours": [], "behind": []}
    async with (
        bench() as workbench,
        served(workbench) as (ours, database),
        empty(database) as nothing,
    ):

        def contender(
            name: str, serving: ServerProcess, each: int
        ) -> Callable[[], Awaitable[Cost]]:
            async def work() -> Cost:
                trials[name].append(await load(workbench, serving, bodies(messages, each=each)))
                return trials[name][-1].cost

            return work

        await _warm(workbench, ours, nothing)
        contenders = {
            "empty": contender("empty", nothing, 1),
            "ours": contender("ours", ours, 1),
            "behind": contender("behind", ours, EACH),
        }
        await in_turns(plan.rounds, contenders)
    return _figures(trials)


def _figures(trials: dict[str, list[LoadResult]]) -> list[Figure]:
    nothing, ours, behind = trials["empty"], trials["ours"], trials["behind"]
    bound = f"a message takes {_typical(ours).spent()}; an empty one {_typical(nothing).spent()}"
    aside = Reference("requests/s, empty endpoint", _rates(nothing))
    what = f"POST /api/v1/message, {CONNECTIONS} connections"
    figures = [
        measured(
            "http_message",
            what,
            "messages/s",
            _rates(ours),
            at_least(0.75, "empty"),
            beside=aside,
            bound=bound,
        ),
        measured(
            "http_message.behind",
            f"the same, {EACH} of each user: they wait for each other",
            "messages/s",
            _rates(behind),
            beside=aside,
        ),
        _of("http_message.cpu", "CPU of the server process", "µs", _web, ours, beside=nothing),
        _of("http_message.store", "CPU of the store", "µs", _store, ours),
        _of("http_message.client", "CPU of the client", "µs", _client, ours, beside=nothing),
    ]
    for word, share in (("p50", 0.5), ("p99", 0.99)):

        def at(trial: LoadResult, share: float = share) -> float:
            return percentile(trial.times_ms, share)

        whole = f"request to answer, {word}"
        figures.append(_of(f"http_message.{word}", whole, "ms", at, ours, beside=nothing))
    return figures


def _of(
    name: str,
    what: str,
    unit: str,
    value: Callable[[LoadResult], float],
    trials: list[LoadResult],
    *,
    beside: list[LoadResult] | None = None,
) -> Figure:
    aside = (
        Reference(f"{unit}, empty endpoint", [value(trial) for trial in beside]) if beside else None
    )
    return measured(name, what, unit, [value(trial) for trial in trials], beside=aside)


def _web(trial: LoadResult) -> float:
    return trial.web_us


def _store(trial: LoadResult) -> float:
    return trial.cost.server_us


def _client(trial: LoadResult) -> float:
    return trial.cost.client_us


def _rates(trials: list[LoadResult]) -> list[float]:
    return [trial.cost.rate for trial in trials]


def _typical(trials: list[LoadResult]) -> LoadResult:
    """The median trial."""
    return sorted(trials, key=lambda trial: trial.cost.rate)[len(trials) // 2]


_numbers = count(1)


def bodies(messages: int, *, each: int) -> list[bytes]:
    """So many messages of new users, *each* of every user."""
    run, users = next(_numbers), messages // each
    return [
        msgspec.json.encode(
            {
                "user_id": f"user-{run}-{number % users}",
                "org_id": "acme",
                "message": "Where is my parcel? It should have been here yesterday.",
                "client_id": "web",
            }
        )
        for number in range(messages)
    ]


async def _warm(workbench: Bench, *servers: ServerProcess) -> None:
    for serving in servers:
        await load(workbench, serving, bodies(_WARM, each=1))
