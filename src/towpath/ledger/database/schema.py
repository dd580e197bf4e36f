"""The tables, and which version of them this code works with.

Their names begin with `towpath_`, because the database may also have tables of the user. Times
are milliseconds since 1970 in UTC, as everywhere in Towpath. `docs/reference/database.md` is made
from this file.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    ScalarSelect,
    String,
    Table,
    Text,
    UniqueConstraint,
    select,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from towpath.ledger.database.tables import Tables

SCHEMA = "0013"
"""The newest step: its number, growing, with leading zeros."""

LEDGER = Tables(
    "ledger", version=SCHEMA, steps="towpath.ledger.database.migrations", prefix="towpath_"
)
metadata, schema_version = LEDGER.metadata, LEDGER.versions

api_keys = Table(
    "towpath_api_keys",
    metadata,
    Column("id", String(16), primary_key=True, doc="The id of the key: public part of its secret."),
    Column("name", String(100), nullable=False, doc="Who the key is for; need not be unique."),
    Column("digest", LargeBinary(32), nullable=False, unique=True, doc="SHA-256 of the secret."),
    Column("scopes", String(100), nullable=False, doc="What the key may do: `submit read`."),
    Column("queues", Text, nullable=False, doc="Patterns of queue names: `mails* reports`."),
    Column("created_at", BigInteger, nullable=False, doc="When the key was created."),
    Column("expires_at", BigInteger, doc="When the key expires; null = never."),
    Column("revoked_at", BigInteger, doc="When the key was revoked; null = it was not."),
    Column("last_used_at", BigInteger, doc="When the key was last used, to about a minute."),
    Column(
        "owner",
        String(100),
        doc="Who owns what the key makes; null = the key, made before there were owners.",
    ),
    info={"about": "API keys. A secret is stored only as its SHA-256 digest."},
)

# SQLite numbers rows by itself only if the column's type is INTEGER.
_Counting = BigInteger().with_variant(Integer, "sqlite")

logins = Table(
    "towpath_logins",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True, doc="SHA-256 of the cookie or link."),
    Column("kind", String(8), nullable=False, doc="session or link."),
    Column("key_id", String(16), nullable=False, doc="Its API key. The login ends with the key."),
    Column("created_at", BigInteger, nullable=False, doc="When it was created."),
    Column("expires_at", BigInteger, nullable=False, doc="When it expires."),
    Index("ix_towpath_logins_expires_at", "expires_at"),
    Index("ix_towpath_logins_key", "key_id", "kind", "created_at"),
    info={"about": "Sessions of the dashboard, and login links that can be used once."},
)

audit = Table(
    "towpath_audit",
    metadata,
    Column("seq", _Counting, primary_key=True, doc="Number of the action, in the order they came."),
    Column("at", BigInteger, nullable=False, doc="When the request came."),
    Column("key_id", String(16), nullable=False, doc="The API key that was used."),
    Column("key_name", String(100), nullable=False, doc="The name of that key."),
    Column("method", String(8), nullable=False, doc="HTTP method: POST, PUT, PATCH or DELETE."),
    Column("path", Text, nullable=False, doc="Path of the request, without its query."),
    Column("status", Integer, doc="HTTP status of the response; null = none, or none yet."),
    Column("owner", String(100), doc="The owner of that key; null for an older entry."),
    Column("via", String(9), doc="`dashboard` or `api`; null for an older entry: dashboard."),
    Column("action", String(64), doc="What was asked for, such as `pause`."),
    Column("target", Text, doc="The names in the path, as JSON."),
    Column("changed", Text, doc="Fields of request and answer, as JSON, without secrets."),
    Index("ix_towpath_audit_key", "key_id", "seq"),
    info={
        "about": "Changes through the dashboard and the API. For each key, the newest 10,000 "
        "changes and the newest 100 refused requests are kept."
    },
    sqlite_autoincrement=True,
)

_STATES = "pending, running, completed, failed, dead, cancelled, superseded"
jobs = Table(
    "towpath_jobs",
    metadata,
    Column("seq", _Counting, primary_key=True, doc="Number of the record; a later one is higher."),
    Column("queue", String(64), nullable=False, doc="The queue."),
    Column("id", String(512), nullable=False, doc="The id that the caller chose, or a new one."),
    Column(
        "job", String(512), nullable=False, doc="Its id in Redis; another each time it is queued."
    ),
    Column("state", String(12), nullable=False, doc=f"One of {_STATES}."),
    Column("payload", LargeBinary, nullable=False, doc="The payload that the handler gets."),
    Column("options", Text, doc="Other options of the job, as JSON."),
    Column("priority", Integer, nullable=False, doc="0 to 100; higher runs first."),
    Column("lane", String(512), doc="The lane; jobs of one lane run one at a time."),
    Column("subject", String(512), doc="What it is about; a new record supersedes older ones."),
    Column("version", BigInteger, doc="Order among the records of a subject: highest = latest."),
    Column("revision", String(128), doc="The revision of the subject, such as a commit."),
    Column("follows", String(128), doc="The revision before it; orders equal versions."),
    Column("attempts", Integer, nullable=False, doc="Number of attempts that have begun."),
    Column("max_attempts", Integer, doc="Maximum attempts; null = as its handler or queue says."),
    Column("fence", BigInteger, nullable=False, doc="The token of the latest attempt."),
    Column("last_error", Text, doc="Why the last attempt failed, or why it ended without one."),
    Column("failures", Text, doc="The last failed attempts, as JSON, newest last."),
    Column("result", LargeBinary, doc="What the handler returned."),
    Column("created_at", BigInteger, nullable=False, doc="When the record was made."),
    Column("due_at", BigInteger, doc="The due time that was asked for; null = none."),
    Column("next_try_at", BigInteger, doc="When it may be tried again; null = no try waits."),
    Column("started_at", BigInteger, doc="When the latest attempt began."),
    Column("finished_at", BigInteger, doc="When the job ended."),
    Column("relay_at", BigInteger, doc="When the relay looks for it in Redis; null = never."),
    Column("cancel_requested", Boolean, nullable=False, doc="If it was cancelled while it ran."),
    UniqueConstraint("queue", "id"),
    UniqueConstraint("queue", "job"),
    CheckConstraint(
        "state IN ('pending', 'running', 'completed', 'failed', 'dead', 'cancelled', 'superseded')",
        name="state",
    ),
    Index(None, "finished_at"),
    Index(None, "queue", "state", "seq"),
    Index(None, "queue", "subject", "version"),
    info={
        "about": "Records: one row per job with `record=True`. If Redis differs, the row is right."
    },
)

_unseen = jobs.c.relay_at.is_not(None)
Index(
    "ix_towpath_jobs_unseen",
    jobs.c.queue,
    jobs.c.relay_at,
    sqlite_where=_unseen,
    postgresql_where=_unseen,
)
OPEN_IN_WORDS = "state IN ('pending', 'running', 'failed')"
_open_in_lane = text(f"lane IS NOT NULL AND {OPEN_IN_WORDS}")
Index(
    "ix_towpath_jobs_lane",
    jobs.c.queue,
    jobs.c.lane,
    jobs.c.seq,
    sqlite_where=_open_in_lane,
    postgresql_where=_open_in_lane,
)

outbox = Table(
    "towpath_outbox",
    metadata,
    Column("seq", _Counting, primary_key=True, doc="Number; gives the order of events of one key."),
    Column("sink", String(64), nullable=False, doc="The sink that it is for."),
    Column("id", String(1024), nullable=False, doc="The id of the event, the same for every sink."),
    Column("type", String(128), nullable=False, doc="The type of the event: what happened."),
    Column("source", String(512), nullable=False, doc="Where it happened."),
    Column("key", String(1024), nullable=False, doc="What it happened to, such as one job."),
    Column("data", LargeBinary, nullable=False, doc="The content of the event, as JSON."),
    Column("at", BigInteger, nullable=False, doc="When it happened."),
    Column("created_at", BigInteger, nullable=False, doc="When it was put into the outbox."),
    Column("attempts", Integer, nullable=False, doc="Sends that failed while others succeeded."),
    Column("refused_at", BigInteger, doc="When it was refused for good; null = it is pending."),
    Column("reason", Text, doc="Why it was refused."),
    # Numbers are never reused: a courier with an old number must not delete a newer row.
    sqlite_autoincrement=True,
    info={"about": "Events that wait to be sent, or were refused. A sent event is deleted."},
)
for _name, _which in (
    ("ix_towpath_outbox_pending", outbox.c.refused_at.is_(None)),
    ("ix_towpath_outbox_refused", outbox.c.refused_at.is_not(None)),
):
    Index(_name, outbox.c.sink, outbox.c.seq, sqlite_where=_which, postgresql_where=_which)

couriers = Table(
    "towpath_couriers",
    metadata,
    Column("sink", String(64), primary_key=True, doc="The sink."),
    Column("holder", String(64), nullable=False, doc="The courier that sends to it."),
    Column("expires_at", BigInteger, nullable=False, doc="When another may take over; 0 = now."),
    info={"about": "Which courier sends to which sink: one at a time."},
)

identity = Table(
    "towpath_identity",
    metadata,
    Column("id", String(32), primary_key=True, doc="A random id; the only row has it."),
    info={"about": "The id of this database. Workers report it, and servers compare it."},
)


class now_ms(FunctionElement[int]):  # noqa: N801 -- reads as what it is in SQL
    """The time by the database's clock, in ms: the clocks of hosts that write here may differ."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _postgres_now(*_: Any, **__: Any) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000)::bigint"


@compiles(now_ms, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


def moment() -> ScalarSelect[int]:
    """Return `now_ms()` as a subquery: it is evaluated once per statement, so indexes help."""
    return select(now_ms()).scalar_subquery()
