"""1,000 clients that wait for their answers share one reader instead of a connection to Redis
each.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import msgspec

from benchmarks.bench import WORKER, Bench, Plan, bench
from benchmarks.figure import Figure, Reference, at_most, measured
from benchmarks.web.listening import Listeners
from benchmarks.web.serving import KEY, served
from benchmarks.web.wire import Place, client, request
from towpath import minutes
from towpath.engine.model import Complete

ROUNDS = 3
FEW = 32
"""Clients that come first: what the server loads and connects for them is for all that follow."""
_BATCH = 100


class StreamsRound(NamedTuple):
    """One server with its clients."""

    bytes_each: float
    idle: float
    """The server's connections to the store without clients."""
    few: float
    """With a few of them."""
    all: float
    """With all of them."""
    answers_s: float
    """From the first completion to the last client's answer."""


async def run(plan: Plan) -> list[Figure]:
    clients = plan.count(1_000, 100)
    seen: list[StreamsRound] = []
    for _ in range(ROUNDS):
        with_files(2 * clients + 1_000)
        seen.append(await _round(clients))
    return _figures(clients, seen)


def _figures(clients: int, seen: Sequence[StreamsRound]) -> list[Figure]:
    name, everybody = "http_streams", f"{clients:,} waiting SSE clients"
    grown = f"the pool grew from {seen[0].few:.0f} to {seen[0].all:.0f}: it may, up to its limit"
    return [
        measured(
            name,
            f"{everybody}: memory of the server process",
            "kB/client",
            [round_.bytes_each / 1000 for round_ in seen],
        ),
        measured(
            f"{name}.connections",
            f"{everybody}: connections to the store",
            "connections",
            [round_.all for round_ in seen],
            at_most(1, f"{FEW} clients"),
            beside=Reference(f"with {FEW} clients", [round_.few for round_ in seen]),
            bound=grown,
        ),
        measured(
            f"{name}.idle",
            "the same without clients",
            "connections",
            [round_.idle for round_ in seen],
        ),
        measured(
            f"{name}.answers",
            f"{everybody}: from the first completion to the last answer",
            "s",
            [round_.answers_s for round_ in seen],
        ),
    ]


async def _round(clients: int) -> StreamsRound:
    async with bench() as workbench:
        await workbench.clear()
        own = _connections(workbench)
        async with served(workbench) as (serving, _), Listeners(serving.place) as listeners:
            ids = await _send(serving.place, clients)
            idle = _connections(workbench) - own
            await listeners.add(ids[:FEW])
            resident, few = serving.resident(), _connections(workbench) - own
            await listeners.add(ids[FEW:])
            grown = serving.resident() - resident
            everybody = _connections(workbench) - own
            took = await _answered(workbench, listeners, clients)
    return StreamsRound(grown / (clients - FEW), idle, few, everybody, took)


def _connections(workbench: Bench) -> int:
    return int(workbench.meter.info("clients")["connected_clients"])


async def _send(place: Place, clients: int) -> list[str]:
    """Sends a message of each of so many users; returns their ids."""
    ids: list[str] = []
    async with client(place) as sender:
        for number in range(clients):
            body = msgspec.json.encode(
                {
                    "user_id": f"user-{number}",
                    "org_id": "acme",
                    "message": "Where is my parcel?",
                    "client_id": "bench",
                }
            )
            answer = await sender.ask(request("POST", "/api/v1/message", KEY, body))
            ids.append(msgspec.json.decode(answer.body)["message_id"])
    return ids


async def _answered(workbench: Bench, listeners: Listeners, clients: int) -> float:
    """Completes every message; returns the seconds until each client has its answer."""
    began = perf_counter()
    for _ in range(0, clients, _BATCH):
        leases = await workbench.engine.claim(
            "messages", worker=WORKER, lease=minutes(5), count=_BATCH
        )
        await workbench.engine.settle([Complete(lease, b'"here"') for lease in leases])
    await listeners.answered()
    return perf_counter() - began


def with_files(wanted: int) -> None:
    """Raises the limit of open files of this process and its children, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
