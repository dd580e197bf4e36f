"""The groups of settings, and values as people write them."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_settings import NoDecode

from towpath.clock import Duration, minutes, seconds
from towpath.durations import parse_duration
from towpath.engine.durability import Durability
from towpath.engine.tls import Tls, Verify
from towpath.errors import InvalidOption
from towpath.ids import queue_name, stream_name, worker_name

SINKS = ("redis", "kafka", "webhook")
"""Who can get events."""

# ── values as people write them ──────────────────────────────────────────────────────────


def _duration(value: object) -> object:
    if isinstance(value, int | float | str):
        return parse_duration("value", str(value))
    return value


_BY_HANDLERS = 0
"""The weight of a queue for which none is given."""


def _queues(value: object) -> object:
    """`a,b=3`, or a table of weights: each queue with how many turns it gets."""
    said: dict[str, object] = {}
    wanted: dict[str, object] = {}
    if isinstance(value, str):
        parts = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        said = {name.strip(): weight.strip() for name, equals, weight in parts if equals}
        wanted = {name.strip(): _BY_HANDLERS for name, _, _ in parts} | said
    elif isinstance(value, dict):
        said = wanted = cast("dict[str, object]", value)
    else:
        return value
    for name, weight in said.items():
        if not str(weight).strip("+-0 "):
            raise ValueError(f"{name} has the weight {weight!r}, it must be from 1 to 1000")
    return wanted


def _queue_names(value: dict[str, int]) -> dict[str, int]:
    return {queue_name(name): weight for name, weight in value.items()}


def _listed(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = value.replace("\n", ",").split(",")  # a file may have one per line
    return tuple(part.strip() for part in parts if part.strip())


def _command(value: object) -> object:
    """A list, as JSON or as words the way a shell reads them; no shell ever does."""
    if not isinstance(value, str):
        return value
    return tuple(json.loads(value) if value.lstrip().startswith("[") else shlex.split(value))


def _sinks(value: object) -> object:
    """`redis,kafka`, or a list; `none` = nobody."""
    listed = _listed(value)
    return () if listed == ("none",) else listed


def _known_sinks(value: tuple[str, ...]) -> tuple[str, ...]:
    if not set(value) <= set(SINKS) or len(set(value)) < len(value):
        rule = f"must be some of {', '.join(SINKS)}, each once; or none"
        raise InvalidOption("sinks", list(value), rule=rule)
    return value


def _named_values(value: object) -> object:
    """`name=value`, one per line so that a value may have commas; or a table, or JSON of one."""
    if isinstance(value, Mapping):
        return dict(_flat(cast("Mapping[str, Any]", value)))
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return _named_values(json.loads(value))
    lines = [line.partition("=") for line in value.splitlines() if line.strip()]
    if not all(name.strip() and equals for name, equals, _ in lines):
        raise InvalidOption("value", "…", rule="must be name=value, one per line; or JSON")
    return {name.strip(): text.strip() for name, _, text in lines}


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """The names and values of *table*; TOML reads `sasl.username = …` as a table in a table."""
    for name, value in table.items():
        match value:
            case Mapping():
                yield from _flat(cast("Mapping[str, Any]", value), f"{above}{name}.")
            case bool():
                yield f"{above}{name}", str(value).lower()
            case _:
                yield f"{above}{name}", str(value)


def _worker(value: object) -> object:
    return worker_name(value) if isinstance(value, str) else value


def _durability(value: object) -> object:
    return str(Durability.parse(value)) if isinstance(value, str) else value


DeclaredDurability = Annotated[str | None, BeforeValidator(_durability)]
Time = Annotated[Duration, BeforeValidator(_duration)]
Weight = Annotated[int, Field(ge=0, le=1000)]
"""0 = what the handlers of the queue say."""
QueueWeights = Annotated[
    dict[str, Weight], NoDecode, BeforeValidator(_queues), AfterValidator(_queue_names)
]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
Sinks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_sinks), AfterValidator(_known_sinks)]
SecretValues = Annotated[dict[str, SecretStr], NoDecode, BeforeValidator(_named_values)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_listed)]


class LogFormat(StrEnum):
    AUTO = "auto"
    HUMAN = "human"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# ── the tree ─────────────────────────────────────────────────────────────────────────────


class TlsSettings(BaseModel):
    """TLS to the server, for rediss:// URLs. The paths are those of PEM files."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    ca: str | None = None
    """Authorities to trust besides those that this machine trusts."""
    cert: str | None = None
    """The client certificate, for servers that ask for one."""
    key: str | None = None
    """Its private key; none = it is in the file of the certificate."""
    verify: Verify = Verify.FULL
    """How the server's certificate is checked: full; authority (host names don't matter); none
    (anybody may answer)."""

    @property
    def wanted(self) -> Tls:
        return Tls(ca=self.ca, cert=self.cert, key=self.key, verify=self.verify)


class WorkerSettings(BaseModel):
    """A worker process."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 100
    """How many jobs run at once."""
    queues: QueueWeights = Field(default_factory=dict)
    """Which queues to serve, with weights (`mails,reports=3`); none named = all that have a
    handler."""
    grace: Time = seconds(25)
    """How long running jobs may go on after SIGTERM; then they are given back."""
    lease: Time = seconds(15)
    """How long the process may be silent before its jobs run elsewhere."""
    name: Annotated[str | None, BeforeValidator(_worker)] = None
    """What the worker is called in listings; none = host, process and chance."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Where Prometheus fetches the metrics; 0 = nowhere."""
    metrics_host: str = "127.0.0.1"
    """On which address; 0.0.0.0 = on all, for whoever reaches them."""


class HttpSettings(BaseModel):
    """What one server process takes on."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    body: Annotated[int, Field(ge=1024, le=1024**3)] = 2 * 1024 * 1024
    """Bytes of one request's body."""
    body_within: Time = seconds(15)
    """How long a body may take to arrive."""
    head_within: Time = seconds(15)
    """How long its line and headers may take."""
    rate: Annotated[int, Field(ge=0, le=10_000_000)] = 2_000
    """Requests per second and key, twice as many at once; 0 = no limit."""
    streams: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Event streams open at once."""
    streams_per_key: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Event streams open at once with one key."""
    waits: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Claims that wait at once."""
    grace: Time = seconds(10)
    """How long open requests may go on after SIGTERM."""


class CallSettings(BaseModel):
    """Calls that go out: pushes and callbacks."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    allow: Names = ()
    """Private networks, addresses and hosts that they may reach: `10.0.0.0/8,worker.internal`."""
    secrets: Secrets = ()
    """What they are signed with (`whsec_…`): one, or two during a rotation. `up` makes its own."""


class ReviewSettings(BaseModel):
    """Reviews: whose webhooks are taken, who reviews, where reviews are posted."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    github_secrets: Secrets = ()
    """What GitHub's webhooks are signed with; two while one is replaced. None = they are not
    taken."""
    gitlab_secrets: Secrets = ()
    """The same for GitLab: signing tokens (`whsec_…`) or secret tokens."""
    delivery: Annotated[int, Field(ge=1024, le=25 * 1024 * 1024)] = 5 * 1024 * 1024
    """Bytes of one webhook."""
    reviewer_command: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_command)] = ()
    """The reviewer as a program and its arguments: a list, or words. No shell reads it."""
    reviewer_variables: Names = ()
    """Variables of the server that this program gets too: `MODEL_API_KEY`."""
    reviewer_function: str | None = None
    """The reviewer as a Python function: `module:name`."""
    reviewer_url: SecretStr | None = None
    """The reviewer as an HTTP endpoint; calls to it are signed: see `towpath secret`."""
    within: Time = minutes(10)
    """How long one review may take."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 5
    """How often a review is tried before it is dead."""
    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 10
    """How many reviews run at once in one server process."""
    github_token: SecretStr | None = None
    """With what reviews are posted to GitHub; none = they are not."""
    github_host: str = "https://github.com"
    """The GitHub that they are posted to."""
    github_approves: bool = False
    """Whether the verdict `approve` becomes an approval; otherwise it is a comment."""
    gitlab_token: SecretStr | None = None
    """With what reviews are posted to GitLab; none = they are not."""
    gitlab_host: str = "https://gitlab.com"
    """The GitLab that they are posted to."""

    @property
    def passed_on(self) -> dict[str, str]:
        """The variables that the reviewer's program gets too, as far as they are set."""
        return {it: os.environ[it] for it in self.reviewer_variables if it in os.environ}


class EventSettings(BaseModel):
    """Events: who is told how recorded jobs ended. The same for all processes of a database."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    sinks: Sinks = ("redis",)
    """Who gets them: some of redis, kafka, webhook; or none."""
    redis_stream: Annotated[str, AfterValidator(stream_name)] = "events"
    """The stream in Redis: its key is `towpath:stream:` and this name."""
    redis_kept: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """How many entries that stream keeps, about, read or not."""
    kafka_servers: str | None = None
    """Kafka's brokers to ask first: `kafka-1:9092,kafka-2:9092`."""
    kafka_topic: str = "towpath.events"
    """The topic there; it must exist, or the brokers must make it."""
    kafka_options: SecretValues = Field(default_factory=dict)
    """More options of librdkafka, for TLS and passwords: `sasl.username=towpath`, one per line; a
    table in the file."""
    webhook_url: SecretStr | None = None
    """Where each one is posted; calls to it are signed: see `towpath secret`."""


class LogSettings(BaseModel):
    """What a worker says about its work, on stderr."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    format: LogFormat = LogFormat.AUTO
    """human, json, or auto: human in a terminal, JSON otherwise."""
    level: LogLevel = LogLevel.INFO
    """The least important that is said: debug, info, warning, error."""
