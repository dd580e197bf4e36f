"""A background task that ends by itself is restarted, and `/readyz` names it meanwhile."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.messages.sending import SECRET
from tests.server.in_process import client_of, key_of, started
from tests.server.messaging import app_on
from tests.waiting import eventually_async
from towpath import supervise
from towpath.app.app import Towpath
from towpath.apps.messages.options import MessagesOptions
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.keys.keys import ApiKeys
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Route
from towpath.ledger.outbox.options import OutboxOptions
from towpath.ledger.outbox.outbox import Outbox
from towpath.ledger.records.relay import Relay
from towpath.server.build import LIMITS, ServerSetup, build
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits
from towpath.worker.worker import Worker


class PlantedFailure:
    """Makes a method fail with an unexpected error while it is planted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
        right, self.failing = getattr(owner, method), False

        async def planted(*args: Any, **options: Any) -> Any:
            if self.failing:
                raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")
            return await right(*args, **options)

        monkeypatch.setattr(owner, method, planted)


async def told(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/readyz")
    ready = answer.json()
    assert answer.status_code == (200 if ready["ready"] else 503)
    return ready


def all_of_it(server: EmbeddedServer, ledger: Ledger) -> FastAPI:
    """A server with every background task."""
    return build(
        ServerSetup(
            engine=Engine(server.url, limits=LIMITS),
            ledger=ledger,
            limits=ServerLimits(),
            metrics=Metrics(),
            log=Log(),
            version="0",
            options={"messages": MessagesOptions(secrets=(SECRET,))},
            outbox=OutboxOptions(sinks=("redis",)),
            app=Towpath(server.url),
        )
    )


@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        (Relay, "_turn", "relay"),
        (Route, "_look", "courier of redis"),
        (Outbox, "counts", "readings of the outbox"),
        (ApiKeys, "note_uses", "uses of keys"),
        (Worker, "run", "handlers"),
    ],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
async def test_a_task_that_ends_by_itself_is_named_and_restarted(  # noqa: PLR0917 -- one table
    owner: type,
    method: str,
    name: str,
    server: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = PlantedFailure(monkeypatch, owner, method)
    monkeypatch.setattr(supervise, "_PROVEN", 0.2)
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db", sinks=["redis"])
    async with ledger:
        await ledger.migrate()
    monkeypatch.setattr(ledger.keys, "_noted_every", 0.01)
    plant.failing = True
    async with started(all_of_it(server, ledger)) as app, client_of(app) as client:

        async def named() -> bool:
            return name in (await told(client))["parts"]

        await eventually_async(named)
        ready = await told(client)
        assert (ready["ready"], ready["status"]) == (False, "degraded")
        part = ready["parts"][name]
        assert (part["ok"], part["error"]) == (False, "RuntimeError")
        assert "restarts" in part["remedy"]
        plant.failing = False

        async def works() -> bool:
            return (await told(client))["ready"]

        await eventually_async(works)
        assert name not in (await told(client))["parts"]


async def test_a_review_that_was_accepted_meanwhile_is_queued(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the relay that ended would have enqueued it."""
    plant = PlantedFailure(monkeypatch, Relay, "_turn")
    enqueue = PlantedFailure(monkeypatch, Relay, "enqueue")
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    async with ledger:
        await ledger.migrate()
    plant.failing = enqueue.failing = True
    async with (
        started(app_on(server.url, ledger)) as app,
        client_of(app, await key_of(app, "admin")) as client,
    ):
        asked = {"repository": "octo/hello-world", "head": "a1" * 20, "number": 7}
        answer = await client.post("/api/v1/reviews", json=asked)
        assert answer.status_code == 202, answer.text

        async def queued() -> int:
            counts = await app.state.engine.inspect.counts("reviews")
            return counts.ready

        assert await queued() == 0
        plant.failing = enqueue.failing = False
        await eventually_async(queued)
