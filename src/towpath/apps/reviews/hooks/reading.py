"""What all forges' webhooks have in common: headers, times, branches, and tasks made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from towpath.apps.reviews.errors import TaskInvalid, WebhookInvalid
from towpath.apps.reviews.model import ReviewTask
from towpath.apps.reviews.texts import NO_COMMIT
from towpath.clock import instant_ms

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,63}")
_DELIVERY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TIME = re.compile(
    r"(?P<day>(?:19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2})[T ]"
    r"(?P<clock>[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?)"
    r" ?(?P<zone>Z|UTC|[+-][0-9]{2}:?[0-9]{2})"
)
_BRANCHES = "refs/heads/"


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers by their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def event_name(header: str, headers: Mapping[str, str]) -> str:
    """The event, or WebhookInvalid if the header does not name one."""
    name = headers.get(header.lower(), "")
    if _NAME.fullmatch(name) is None:
        raise WebhookInvalid(header, "must name the event")
    return name


def delivery_id(header: str, headers: Mapping[str, str]) -> str:
    """The delivery's id, or WebhookInvalid."""
    return checked_delivery(header, headers.get(header.lower(), ""))


def checked_delivery(header: str, id: str) -> str:
    """*id* if it can be a part of a record's, else WebhookInvalid."""
    if _DELIVERY.fullmatch(id) is None:
        raise WebhookInvalid(header, "must be an id of up to 128 letters, digits and hyphens")
    return id


def milliseconds(field: str, text: str) -> int:
    """A time as forges write it, in ms since 1970: `2026-01-01T10:00:00Z`, with a fraction or
    another zone, or `2026-01-01 10:00:00 UTC`. Raises WebhookInvalid.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise WebhookInvalid(field, "must be a time with its zone")
    zone = "+00:00" if found["zone"] in ("Z", "UTC") else found["zone"]
    try:
        return instant_ms(field, datetime.fromisoformat(f"{found['day']}T{found['clock']}{zone}"))
    except ValueError as error:
        raise WebhookInvalid(field, "must be a time between 1970 and 2169") from error


def branch_of(ref: str) -> str | None:
    """The branch that a push went to; None for tags and all else."""
    return ref.removeprefix(_BRANCHES) if ref.startswith(_BRANCHES) else None


def commit_or_none(sha: str | None) -> str | None:
    """The commit, unless it is what forges write for none."""
    return None if sha in NO_COMMIT else sha


def host_of(field: str, page: str, repository: str) -> str:
    """The forge's address, of the repository's page. Raises WebhookInvalid if that is elsewhere."""
    host, slash, rest = page.removesuffix(repository).rpartition("/")
    if page.endswith(repository) and slash and not rest:
        return host
    raise WebhookInvalid(field, "must end with the repository's name")


def task_of(names: Mapping[str, str], **fields: Any) -> ReviewTask:
    """The task; what breaks a rule of it is named as the forge names it, by *names*."""
    try:
        return ReviewTask(**fields)
    except TaskInvalid as error:
        raise WebhookInvalid(names.get(error.field, error.field), error.rule) from error
