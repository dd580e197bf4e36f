"""`towpath audit`: who changed what through the dashboard and the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.console.arguments import After, Limit, instant
from towpath.console.verb import DatabaseOption, Session, open_ledger, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from towpath.ledger.audit import AuditEntry

COLUMNS = ("WHEN", "KEY", "NAME", "VIA", "ACTION", "TARGET", "CHANGED", ">STATUS")

KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", metavar="KEY", help="Only changes with the key of this id."),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="INSTANT", help="Only from this time on.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="INSTANT", help="Only before this time.")
]


async def audit(
    session: Session,
    *,
    key: KeyOption = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    after: After = None,
    database: DatabaseOption = None,
) -> None:
    """List the changes through the dashboard and the API, newest first.

    Who made it, with which key, what was changed, and how it was answered. Payloads and secrets
    are left out. For each key, the newest 10,000 changes and the newest 100 refused requests are
    kept. Submitting, claiming and settling jobs is listed only if it was done in the dashboard:
    the jobs themselves are the record of it. Commands that use Redis or the database directly are
    not listed.
    """
    wanted = {"key": key, "since": since, "until": until}
    async with open_ledger(session, database) as ledger:
        page = await ledger.audit.list(
            key=key,
            since=instant("since", since),
            until=instant("until", until),
            after=_place(after),
            size=limit,
        )
    none = "no changes yet" if after is None and not any(wanted.values()) else "no changes"
    session.out.answers(COLUMNS, page.actions, _row, described, none=none)
    if page.after is not None:
        flags = "".join(f" --{name} {value}" for name, value in wanted.items() if value)
        session.out.more(str(page.after), f"towpath audit{flags} --limit {limit}")


def described(entry: AuditEntry) -> dict[str, Any]:
    """An entry as JSON."""
    return {
        "seq": entry.seq,
        "at": entry.at,
        "key_id": entry.key_id,
        "key_name": entry.key_name,
        "owner": entry.owner,
        "via": entry.via,
        "method": entry.method,
        "path": entry.path,
        "action": entry.action,
        "target": entry.target,
        "changed": entry.changed,
        "status": entry.status,
        "refused": entry.refused,
    }


def _row(entry: AuditEntry) -> list[object]:
    action = entry.action or f"{entry.method} {entry.path}"
    return [
        entry.at, entry.key_id, entry.key_name, entry.via, action,
        _words(entry.target), _words(entry.changed), entry.status,
    ]  # fmt: skip


def _words(facts: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in facts.items())


def _place(after: str | None) -> int | None:
    if after is None:
        return None
    if not (after.isascii() and after.isdecimal() and len(after) <= 18):
        raise InvalidOption(
            "after", after, rule="must be the `after` value returned with the previous page"
        )
    return int(after)


def register(towpath: typer.Typer) -> None:
    examples = "towpath audit\ntowpath audit --key h7m2kxq9ab --since 2026-01-31T08:00:00Z --json"
    verb(towpath, "audit", examples=examples)(audit)
