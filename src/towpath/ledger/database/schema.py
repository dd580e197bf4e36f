"""The tables, and which version of them this code works with.

Their names begin with `towpath_`: they may live in a database that also has the user's own. Times
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

SCHEMA = "0007"
"""The newest step: its number, growing, with leading zeros."""

LEDGER = Tables(
    "ledger", version=SCHEMA, steps="towpath.ledger.database.migrations", prefix="towpath_"
)
metadata, schema_version = LEDGER.metadata, LEDGER.versions

api_keys = Table(
    "towpath_api_keys",
    metadata,
    Column(
        "id", String(16), primary_key=True, doc="Public: part of the secret, for telling apart."
    ),
    Column("name", String(100), nullable=False, doc="Whose it is; two keys may share one."),
    Column("digest", LargeBinary(32), nullable=False, unique=True, doc="SHA-256 of the secret."),
    Column("scopes", String(100), nullable=False, doc="submit, work, read, admin; with blanks."),
    Column("queues", Text, nullable=False, doc="Patterns of queue names; with blanks."),
    Column("created_at", BigInteger, nullable=False, doc="When it was made."),
    Column("expires_at", BigInteger, doc="From when on it no longer counts; none = never."),
    Column("revoked_at", BigInteger, doc="Since when it no longer counts; none = it does."),
    Column("last_used_at", BigInteger, doc="When it was last used, to about a minute."),
    info={"about": "API keys. Secrets are not here: only their digests are."},
)

# SQLite counts up by itself only what it calls INTEGER.
_Counting = BigInteger().with_variant(Integer, "sqlite")

logins = Table(
    "towpath_logins",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True, doc="SHA-256 of the cookie or link."),
    Column("kind", String(8), nullable=False, doc="session, or link: one that logs in once."),
    Column("key_id", String(16), nullable=False, doc="Whose it is; it ends with that key."),
    Column("created_at", BigInteger, nullable=False, doc="When it was made."),
    Column("expires_at", BigInteger, nullable=False, doc="From when on it no longer counts."),
    Index("ix_towpath_logins_expires_at", "expires_at"),
    info={"about": "Sessions of the dashboard, and links that begin one."},
)

audit = Table(
    "towpath_audit",
    metadata,
    Column("seq", _Counting, primary_key=True, doc="The order of the actions."),
    Column("at", BigInteger, nullable=False, doc="When it was asked for."),
    Column("key_id", String(16), nullable=False, doc="Whose session it was."),
    Column("key_name", String(100), nullable=False, doc="What the key was called."),
    Column("method", String(8), nullable=False, doc="POST, PUT, PATCH or DELETE."),
    Column("path", Text, nullable=False, doc="What it was about, as it was sent."),
    Column("status", Integer, doc="How it was answered; none = it was not, or not yet."),
    info={"about": "What was done in the dashboard: the newest 10,000 actions."},
    sqlite_autoincrement=True,
)

jobs = Table(
    "towpath_jobs",
    metadata,
    Column("seq", _Counting, primary_key=True, doc="The order in which records were made."),
    Column("queue", String(64), nullable=False, doc="Its queue."),
    Column("id", String(512), nullable=False, doc="Its id, the caller's or ours."),
    Column("job", String(512), nullable=False, doc="What it is called in Redis now."),
    Column("state", String(12), nullable=False, doc="Where it stands; the row decides."),
    Column("payload", LargeBinary, nullable=False, doc="What its handler is given."),
    Column("options", Text, doc="What else was said about the job, as JSON."),
    Column("priority", Integer, nullable=False, doc="0 to 100, higher runs first."),
    Column("lane", String(512), doc="Jobs of one lane run one at a time."),
    Column("subject", String(512), doc="What it is about: of one subject the latest counts."),
    Column("version", BigInteger, doc="The order among those of one subject."),
    Column("revision", String(128), doc="What of the subject it is about."),
    Column("follows", String(128), doc="The revision before it, which tells their order."),
    Column("attempts", Integer, nullable=False, doc="Attempts that have begun."),
    Column("max_attempts", Integer, doc="How many there may be; none = its handler or queue says."),
    Column("fence", BigInteger, nullable=False, doc="The token of the last attempt that began."),
    Column("last_error", Text, doc="Why the last attempt failed, or why there is none."),
    Column("result", LargeBinary, doc="What its handler returned."),
    Column("created_at", BigInteger, nullable=False, doc="When it was made."),
    Column("due_at", BigInteger, doc="Not before then."),
    Column("started_at", BigInteger, doc="When the last attempt began."),
    Column("finished_at", BigInteger, doc="When it ended."),
    Column(
        "relay_at", BigInteger, doc="When to see that it is in Redis; none = it was seen there."
    ),
    Column("cancel_requested", Boolean, nullable=False, doc="Somebody cancelled it while it ran."),
    UniqueConstraint("queue", "id"),
    UniqueConstraint("queue", "job"),
    CheckConstraint(
        "state IN ('pending', 'running', 'completed', 'failed', 'dead', 'cancelled', 'superseded')",
        name="state",
    ),
    Index(None, "finished_at"),
    Index(None, "queue", "state", "seq"),
    Index(None, "queue", "subject", "version"),
    info={"about": "Jobs whose record is this database: Redis only hands them out."},
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
    Column("seq", _Counting, primary_key=True, doc="Its place: of one key the lower goes first."),
    Column("sink", String(64), nullable=False, doc="Who is to get it."),
    Column("id", String(1024), nullable=False, doc="The event's id, the same for every sink."),
    Column("type", String(128), nullable=False, doc="What happened."),
    Column("source", String(512), nullable=False, doc="Where it happened."),
    Column("key", String(1024), nullable=False, doc="To what; events of one key go in order."),
    Column("data", LargeBinary, nullable=False, doc="The particulars, as JSON."),
    Column("at", BigInteger, nullable=False, doc="When it happened."),
    Column("created_at", BigInteger, nullable=False, doc="Since when it is here."),
    Column(
        "attempts", Integer, nullable=False, doc="How often it was not taken while others were."
    ),
    Column("refused_at", BigInteger, doc="Since when it is set aside; none = it is pending."),
    Column("reason", Text, doc="Why it was refused."),
    # A place is never given out twice: a late courier must not delete another's row.
    sqlite_autoincrement=True,
    info={"about": "Events that are to be sent, or were refused. What is sent is deleted."},
)
for _name, _which in (
    ("ix_towpath_outbox_pending", outbox.c.refused_at.is_(None)),
    ("ix_towpath_outbox_refused", outbox.c.refused_at.is_not(None)),
):
    Index(_name, outbox.c.sink, outbox.c.seq, sqlite_where=_which, postgresql_where=_which)

couriers = Table(
    "towpath_couriers",
    metadata,
    Column("sink", String(64), primary_key=True, doc="Whose events it sends."),
    Column("holder", String(64), nullable=False, doc="The courier that sends them."),
    Column("expires_at", BigInteger, nullable=False, doc="When another one may; 0 = now."),
    info={"about": "Who sends: one courier per sink at a time."},
)


class now_ms(FunctionElement[int]):  # noqa: N801 -- reads as what it is in SQL
    """The database's clock, in ms: hosts that write here may differ."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _postgres_now(*_: Any, **__: Any) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000)::bigint"


@compiles(now_ms, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


def moment() -> ScalarSelect[int]:
    """The same, asked once for a whole statement: for comparing with what an index has in order."""
    return select(now_ms()).scalar_subquery()
