"""The facts that a release reads from Redis and a database, as JSON: written down with the data,
and compared today.
"""

import base64
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

import msgspec

from towpath import Engine
from towpath.engine.model import JobRef, job_ref
from towpath.ledger.ledger import Ledger

_JOB_KEY = re.compile(r"\{(?P<queue>[^}]+)\}:job:(?P<id>.+)", re.DOTALL)
RECORDS = ("orders", "reviews")


def jobs_of(keys: Iterable[str]) -> list[JobRef]:
    """The jobs among *keys* that have a record."""
    found = [job_key for key in keys if (job_key := _JOB_KEY.fullmatch(key))]
    return [job_ref(job_key["queue"], job_key["id"]) for job_key in found]


async def of_store(engine: Engine, jobs: Iterable[JobRef]) -> dict[str, Any]:
    queues = sorted(await engine.queues.names())
    return _plain(
        {
            "jobs": {str(ref): _fields(await engine.inspect.job(ref)) for ref in jobs},
            "counts": {queue: _fields(await engine.inspect.counts(queue)) for queue in queues},
            "options": {queue: _fields(await engine.queues.options(queue)) for queue in queues},
            "events": {
                queue: [_fields(event) for event in await engine.events.list(queue)]
                for queue in queues
            },
            "recurring": {
                name: _fields(firing)
                for name, firing in (await engine.schedules.of("nightly")).last.items()
            },
        }
    )


async def of_database(ledger: Ledger) -> dict[str, Any]:
    """The facts without times, because the loaded database has other ones."""
    records = [
        _fields(await ledger.jobs.get(queue, record.id))
        for queue in RECORDS
        for record in (await ledger.jobs.list(queue, size=100)).records
    ]
    return _plain(
        {
            "records": _timeless(records),
            "keys": _timeless([_without_id(key) for key in await ledger.keys.list()]),
            "outbox": {
                sink: (count.pending, count.refused)
                for sink, count in (await ledger.outbox.counts()).items()
            },
        }
    )


def differences(told: Any, now: Any, place: str = "") -> list[str]:
    """The facts in *told* that *now* lacks or has otherwise; new facts are no difference."""
    if isinstance(told, list) and isinstance(now, list):
        before, after = cast("list[Any]", told), cast("list[Any]", now)
        if len(before) == len(after):
            told, now = dict(enumerate(before)), dict(enumerate(after))
    if not isinstance(told, dict) or not isinstance(now, dict):
        return [] if told == now else [f"{place}: {told!r} is {now!r}"]
    then, today = cast("dict[Any, Any]", told), cast("dict[Any, Any]", now)
    return [
        difference
        for name, value in then.items()
        for difference in differences(value, today.get(name, "(missing)"), f"{place}/{name}")
    ]


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _without_id(key: msgspec.Struct) -> dict[str, Any]:
    """Without the id, which is random in each database."""
    return {name: value for name, value in _fields(key).items() if name != "id"}


def _timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value is not None if name.endswith("_at") else value for name, value in row.items()}
        for row in rows
    ]


def _plain(value: Any) -> Any:
    """The value as JSON returns it; sets in order, and bytes in base64 where necessary."""

    def hook(mapping: Any) -> Any:
        return dict(mapping)  # a read-only mapping

    return msgspec.json.decode(msgspec.json.encode(_sorted(value), enc_hook=hook))


def _sorted(value: Any) -> Any:
    match value:
        case frozenset():
            return sorted(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] -- of names
        case bytes():
            text = value.decode("latin-1")
            return text if text.isprintable() else "base64:" + base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case dict():
            return {name: _sorted(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType] -- any
        case list() | tuple():
            return [_sorted(item) for item in value]  # pyright: ignore[reportUnknownVariableType] -- any
        case _:
            return value
