"""The groups of settings, and values as people write them."""

from __future__ import annotations

import json
import os
import shlex
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_settings import NoDecode

from towpath.clock import Duration, minutes, seconds
from towpath.durations import parse_duration
from towpath.engine.durability import Durability
from towpath.ids import queue_name, worker_name

# ── values as people write them ──────────────────────────────────────────────────────────


def _duration(value: object) -> object:
    if isinstance(value, int | float | str):
        return parse_duration("value", str(value))
    return value


def _queues(value: object) -> object:
    """`a,b=3`, or a table of weights: each queue with how many turns it gets."""
    if not isinstance(value, str):
        return value
    parts = (part.strip().partition("=") for part in value.split(",") if part.strip())
    return {name.strip(): (weight.strip() if equals else 0) for name, equals, weight in parts}


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
    """The reviewer as an HTTP endpoint; calls to it are signed with `calls.secrets`."""
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


class LogSettings(BaseModel):
    """What a worker says about its work, on stderr."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    format: LogFormat = LogFormat.AUTO
    """human, json, or auto: human in a terminal, JSON otherwise."""
    level: LogLevel = LogLevel.INFO
    """The least important that is said: debug, info, warning, error."""
