"""Events of the server: how recorded jobs ended, sent to the sinks that the settings name."""

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.kafka import KafkaBroker
from tests.ledger.kafka_program import TOPIC
from tests.server.serving import RunningServer, begin, serve, up
from tests.server.webhook_endpoint import Endpoint, Posted, endpoint
from tests.waiting import HANGS, eventually
from towpath.calls.signature import OUTBOX, derive_secret, message_id, new_secret, verify
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.outbox import OutboxCounts

HEAD = "a1" * 20
REVIEWS = "/api/v1/reviews"
REVIEWER = "import sys; sys.stdin.read(); print('Looks fine.')"
SECRET, OLD_SECRET = new_secret(), new_secret()
CANARY = "canary-6b0d"
_numbers = count(1)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Endpoint]:
    with endpoint() as listening:
        yield listening


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, receiver: Endpoint) -> Iterator[RunningServer]:
    """`towpath up` with a reviewer: its events go to its own Valkey and to a webhook."""
    env = {
        "TOWPATH_OUTBOX__SINKS": "redis,webhook",
        "TOWPATH_OUTBOX__WEBHOOK_URL": f"{receiver.address}/hooks?key={CANARY}",
        "TOWPATH_CALLS__SECRETS": f"{SECRET},{OLD_SECRET}",
        "TOWPATH_REVIEWS__REVIEWER_COMMAND": json.dumps([sys.executable, "-c", REVIEWER]),
    }
    with up(tmp_path_factory.mktemp("outbox"), **env) as running:
        yield running


def reviewed(served: RunningServer) -> str:
    """The id of a review that was just requested."""
    body = {"repository": f"octo/sinks-{next(_numbers)}", "head": HEAD, "number": 7}
    answer = served.client().post(REVIEWS, json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def cancelled(served: RunningServer) -> str:
    """The id of a review that was cancelled."""
    id = reviewed(served)
    answer = served.client().post(f"{REVIEWS}/{id}/cancel")
    assert answer.json()["state"] == "CANCELLED", answer.text
    return id


def stream(place: RunningServer | EmbeddedServer, name: str = "events") -> list[dict[str, bytes]]:
    """What is in a stream: fields and values of each entry."""
    words = ("XRANGE", f"towpath:stream:{name}", "-", "+")
    found: Any = (
        place.ask(*words) if isinstance(place, EmbeddedServer) else ask(place.store, *words)
    )
    return [
        {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        for _, flat in found
    ]


def about(place: RunningServer | EmbeddedServer, review: str, name: str = "events") -> list[Any]:
    """The events of the stream that are about *review*."""
    told = [json.loads(entry["event"]) for entry in stream(place, name)]
    return [event for event in told if event["subject"] == f"reviews/{review}"]


def posted(receiver: Endpoint, review: str) -> list[Posted]:
    return [call for call in receiver.posted if call.told["subject"] == f"reviews/{review}"]


def counts(served: RunningServer) -> dict[str, OutboxCounts]:
    """The counts of the sinks with waiting or refused events."""

    async def read() -> dict[str, OutboxCounts]:
        async with Ledger(served.database) as ledger:
            return await ledger.outbox.counts()

    return asyncio.run(read())


class TestTheStreamInRedis:
    def test_gets_the_end_of_a_record_as_a_cloud_event(self, served: RunningServer) -> None:
        review = reviewed(served)
        eventually(lambda: about(served, review))
        [told] = about(served, review)
        assert told.pop("time").endswith("Z")
        assert told == {
            "specversion": "1.0",
            "id": f"reviews/{review}/completed",
            "source": "towpath",
            "type": "towpath.job.completed",
            "subject": f"reviews/{review}",
            "datacontenttype": "application/json",
            "data": {
                "queue": "reviews",
                "id": review,
                "state": "completed",
                "subject": told["data"]["subject"],
                "attempts": 1,
                "reason": None,
            },
        }
        [entry] = [one for one in stream(served) if one["id"].decode() == told["id"]]
        assert entry["type"] == b"towpath.job.completed"

    def test_gets_the_events_of_a_server_without_outbox_settings(
        self, running: RunningServer
    ) -> None:
        review = cancelled(running)
        eventually(lambda: about(running, review))
        [told] = about(running, review)
        assert told["type"] == "towpath.job.cancelled"

    def test_gets_what_ended_while_redis_was_away(self, tmp_path: Path) -> None:
        """Redis is away from the start: the server serves, the events wait, and are sent when it is
        back.
        """
        store = EmbeddedServer(data=tmp_path / "valkey")
        with serve(tmp_path, store.url, TOWPATH_OUTBOX__REDIS_STREAM="ends") as served:
            review = cancelled(served)
            eventually(lambda: unreachable(served))
            assert counts(served)["redis"].pending == 1
            store.start()
            eventually(lambda: about(store, review, "ends"))
            eventually(lambda: "sink.back" in served.log.read_text())
            eventually(lambda: counts(served) == {})
        store.stop()
        assert "courier.failed" not in served.log.read_text()


def unreachable(served: RunningServer) -> bool:
    return any(e["event"] == "sink.unreachable" and e["sink"] == "redis" for e in served.events())


class TestTheWebhook:
    def test_gets_signed_events(self, served: RunningServer, receiver: Endpoint) -> None:
        """They are signed with both secrets during a rotation; the header has the id of the
        event.
        """
        review = reviewed(served)
        eventually(lambda: posted(receiver, review))
        [got] = posted(receiver, review)
        assert got.path == f"/hooks?key={CANARY}"
        assert got.headers["content-type"] == "application/cloudevents+json"
        assert got.told["type"] == "towpath.job.completed"
        for secret in (SECRET, OLD_SECRET):
            assert verify([derive_secret(secret, OUTBOX)], got.headers, got.body).id == message_id(
                got.told["id"]
            )

    def test_that_refuses_an_event_gets_it_again_when_it_is_resent(
        self, served: RunningServer, receiver: Endpoint
    ) -> None:
        receiver.status = 410
        try:
            review = reviewed(served)
            eventually(lambda: any(one.refused for one in counts(served).values()))
        finally:
            receiver.status = 204
        line = next(e for e in served.events() if e["event"] == "outbox.refused")
        assert line["sink"] == "webhook"
        assert "410" in line["reason"]

        async def resend() -> int:
            async with Ledger(served.database) as ledger:
                return await ledger.outbox.resend_all("webhook")

        assert asyncio.run(resend()) == 1
        eventually(lambda: len(posted(receiver, review)) == 2)
        eventually(lambda: counts(served) == {})


def test_kafka_gets_the_event_too(tmp_path: Path, server: EmbeddedServer) -> None:
    """Its options for librdkafka come from a file."""
    options = tmp_path / "options"
    options.write_text("client.id=towpath\nsocket.timeout.ms=5000\n")
    with KafkaBroker() as broker:
        env = {
            "TOWPATH_OUTBOX__SINKS": "kafka",
            "TOWPATH_OUTBOX__KAFKA_SERVERS": broker.address,
            "TOWPATH_OUTBOX__KAFKA_TOPIC": TOPIC,
            "TOWPATH_OUTBOX__KAFKA_OPTIONS_FILE": str(options),
        }
        with serve(tmp_path, server.url, **env) as served:
            review = cancelled(served)
            eventually(lambda: counts(served) == {})
        [message] = asyncio.run(broker.messages())
    assert message.key == f"reviews/{review}".encode()
    assert json.loads(message.value)["type"] == "towpath.job.cancelled"
    assert server.ask("EXISTS", "towpath:stream:events") == 0


def test_a_server_without_sinks_writes_no_events(tmp_path: Path, server: EmbeddedServer) -> None:
    """The settings of a sink may stay, so events can be switched off for a while."""
    env = {
        "TOWPATH_OUTBOX__SINKS": "none",
        "TOWPATH_OUTBOX__WEBHOOK_URL": "https://example.com/hooks",
    }
    with serve(tmp_path, server.url, **env) as served:
        cancelled(served)
        assert counts(served) == {}
        assert served.stop() == 0
    assert server.ask("EXISTS", "towpath:stream:events") == 0


def test_the_metrics_show_the_sinks(served: RunningServer) -> None:
    review = reviewed(served)
    eventually(lambda: about(served, review))

    def told() -> bool:
        text = served.client().get("/metrics").text
        sent = [line for line in text.splitlines() if line.startswith("towpath_outbox_sent_total{")]
        return (
            any('sink="redis"' in line and not line.endswith(" 0.0") for line in sent)
            and 'towpath_outbox_lag_seconds{sink="webhook"}' in text
        )

    eventually(told)


# ── invalid settings ─────────────────────────────────────────────────────────────────────

KAFKA = {"SINKS": "kafka", "KAFKA_SERVERS": "127.0.0.1:1"}
HOOK = {"SINKS": "webhook", "WEBHOOK_URL": f"https://example.com/{CANARY}"}
SIGNED = {"TOWPATH_CALLS__SECRETS": SECRET}
WRONG: dict[str, tuple[dict[str, str], dict[str, str], tuple[str, ...]]] = {
    "no such sink": ({"SINKS": "kafk"}, {}, ("outbox.sinks", "redis, kafka, webhook")),
    "kafka without servers": (
        {"SINKS": "kafka"},
        {},
        ("outbox.kafka_servers = 'none'",),
    ),
    "webhook without a url": (
        {"SINKS": "webhook"},
        SIGNED,
        ("outbox.webhook_url = 'none'",),
    ),
    "webhook without secrets": (HOOK, {}, ("calls.secrets", "whsec_")),
    "a secret that signs nothing": (HOOK, {"TOWPATH_CALLS__SECRETS": CANARY}, ("secret_invalid",)),
    "no http": (
        HOOK | {"WEBHOOK_URL": f"ftp://{CANARY}"},
        SIGNED,
        ("outbox.webhook_url = ", "http://"),
    ),
    "servers without kafka": (
        {"KAFKA_SERVERS": "127.0.0.1:1"},
        {},
        ("outbox.sinks", "kafka_servers"),
    ),
    "no such option": (
        KAFKA | {"KAFKA_OPTIONS": f"sasl.pasword={CANARY}"},
        {},
        ("outbox.kafka_options", "pasword"),
    ),
    "an option of ours": (
        KAFKA | {"KAFKA_OPTIONS": f"acks={CANARY}"},
        {},
        ("outbox.kafka_options",),
    ),
    "no options": (KAFKA | {"KAFKA_OPTIONS": CANARY}, {}, ("outbox.kafka_options", "name=value")),
    "no stream": ({"REDIS_STREAM": "a b"}, {}, ("outbox.redis_stream",)),
}


@pytest.mark.parametrize(("outbox", "more", "words"), WRONG.values(), ids=WRONG.keys())
def test_invalid_outbox_settings_are_refused_at_the_start(
    tmp_path: Path,
    server: EmbeddedServer,
    outbox: dict[str, str],
    more: dict[str, str],
    words: tuple[str, ...],
) -> None:
    """The error has a remedy, and no value that may be a secret (I21)."""
    env = {f"TOWPATH_OUTBOX__{name}": value for name, value in outbox.items()} | more
    database = f"sqlite:///{tmp_path}/ledger.db"
    begun = ("serve", "--url", server.url, "--database", database)
    with begin(*begun, log=tmp_path / "log", env=env) as process:
        process.communicate(timeout=HANGS)
    log = (tmp_path / "log").read_text()
    refusal = json.loads(log.splitlines()[-1])
    assert process.returncode == 2, log
    assert refusal["do"]
    told = f"{refusal['refused']}: {refusal['message']}"
    assert [word for word in words if word not in told] == []
    assert CANARY not in log


def test_no_secret_is_in_the_log(served: RunningServer, receiver: Endpoint) -> None:
    """I21: neither the webhook's URL nor the secret of its signatures, even while it fails."""
    receiver.status = 500
    try:
        review = reviewed(served)
        eventually(lambda: len(posted(receiver, review)) > 1)
    finally:
        receiver.status = 204
    eventually(lambda: counts(served) == {})
    log = served.log.read_text()
    assert "sink.unreachable" in log
    for hidden in (CANARY, SECRET, OLD_SECRET):
        assert hidden not in log
