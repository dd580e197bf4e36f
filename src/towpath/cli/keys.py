"""`towpath keys`: create, list, rotate, revoke; `towpath secret`: shows signing secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.console.verb import DatabaseOption, Session, file_in, open_ledger, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from datetime import datetime

    from towpath.ledger.keys.key import KeyInfo
    from towpath.settings import Settings

app = typer.Typer(no_args_is_help=True, help="API keys: create, list, rotate, revoke.")

COLUMNS = ("KEY", "NAME", "STATE", "SCOPES", "QUEUES", "OWNER", "CREATED", "EXPIRES", "LAST USED")


@verb(
    app,
    "create",
    examples="""
        towpath keys create shop --scope submit --queue 'mails*'
        towpath keys create build-3 --scope work --expires 90d --json
    """,
)
async def create(
    session: Session,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who the key is for.")],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope", "-s", help="submit, work, read, manage, raw or admin; can be repeated."
        ),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", "-q", help="Only queues that match; * and ? are wildcards. [default: all]"
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who owns what the key makes. Keys with the same owner share it.  "
            "[default: the key itself]",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long the key is valid, such as 90d.  [default: never]"
        ),
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """Create a key. Its secret is shown only once.

    What a key makes (uploads, messages, instances of timers) can be used only by keys of the same
    owner, and by admins. To replace a key, use `towpath keys rotate`.
    """
    async with open_ledger(session, database) as ledger:
        info, secret = await ledger.keys.create(
            name, scopes=scope, queues=queue or ("*",), owner=owner, expires_at=_ends(expires)
        )
    _show_secret(session, info, secret.get_secret_value())


def _show_secret(session: Session, info: KeyInfo, secret: str) -> None:
    session.out.answer(described(info) | {"secret": secret}, secret)
    if not session.out.as_json:
        session.out.note(f"key {info.id} for {info.name}: it is shown only once; store it safely")


@verb(
    app,
    "rotate",
    examples="""
        towpath keys rotate h7m2kxq9ab
        towpath keys rotate h7m2kxq9ab --overlap 0s
    """,
)
async def rotate(
    session: Session,
    *,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Id of the key, as `list` shows it.")],
    overlap: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long the old key stays valid; 0s = not at all."),
    ] = "24h",
    database: DatabaseOption = None,
) -> None:
    """Replace a key by a new one with the same name, scopes, queues and owner.

    What the old key made belongs to the new one too. The secret of the new key is shown only once.
    """
    from towpath.clock import parse_duration  # noqa: PLC0415 -- a help text needs none

    async with open_ledger(session, database) as ledger:
        info, secret = await ledger.keys.rotate(key, overlap=parse_duration("overlap", overlap))
    _show_secret(session, info, secret.get_secret_value())


@verb(app, "list", examples="towpath keys list --json")
async def list_(session: Session, *, database: DatabaseOption = None) -> None:
    """List all keys, ended ones included.

    A key's id is the middle part of its secret.
    """
    async with open_ledger(session, database) as ledger:
        keys = await ledger.keys.list()
    none = "no keys yet; create one: towpath keys create NAME --scope admin"
    session.out.answers(COLUMNS, keys, _row, described, none=none)


@verb(app, "revoke", examples="towpath keys revoke h7m2kxq9ab")
async def revoke(
    session: Session,
    *,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY…", help="Ids of keys, as `list` shows them.")
    ],
    database: DatabaseOption = None,
) -> None:
    """Revoke keys for good.

    Every server refuses them within 5 seconds. A revoked key can't be restored: create a new one.
    """
    async with open_ledger(session, database) as ledger:
        for id in keys:
            info = await ledger.keys.revoke(id)
            session.out.answer(described(info), f"{info.id}  {info.name}  revoked")


def _ends(expires: str | None) -> datetime | None:
    from towpath.clock import (  # noqa: PLC0415 -- a help text needs none
        instant,
        parse_duration,
        wall_ms,
    )

    return None if expires is None else instant(wall_ms()) + parse_duration("expires", expires)


def described(info: KeyInfo) -> dict[str, Any]:
    """A key as JSON. Leaves out empty fields."""
    facts = {
        "key": info.id,
        "name": info.name,
        "state": state(info),
        "scopes": sorted(info.scopes),
        "queues": list(info.queues),
        "owner": info.owner,
        "created_at": info.created_at,
        "expires_at": info.expires_at,
        "revoked_at": info.revoked_at,
        "last_used_at": info.last_used_at,
    }
    return {name: value for name, value in facts.items() if value is not None}


def state(info: KeyInfo) -> str:
    """The state of a key: live, revoked or expired."""
    from towpath.clock import instant, wall_ms  # noqa: PLC0415 -- a help text needs none

    if info.revoked_at is not None:
        return "revoked"
    return "expired" if info.ended(instant(wall_ms())) else "live"


def _row(info: KeyInfo) -> list[object]:
    scopes, queues = ", ".join(sorted(info.scopes)), ", ".join(info.queues)
    return [
        info.id, info.name, state(info), scopes, queues, info.owner,
        info.created_at, info.expires_at, info.last_used_at,
    ]  # fmt: skip


SIGNING = "signing.secret"
"""The file in the data directory of `towpath up` with the signing secret that it created."""


def secret(
    session: Session,
    purpose: Annotated[
        str, typer.Argument(help="Kind of calls: outbox, or a kind of an application.")
    ],
) -> None:
    """Show the secret for the receiver of one kind of calls.

    Each kind of calls is signed with its own secret. It is derived from `calls.secrets`, or from
    the secret that `towpath up` created. With it, a receiver can
    check its own calls, but can't sign calls of other kinds.
    """
    from towpath.apps.application import applications  # noqa: PLC0415 -- slow to import
    from towpath.calls.signature import OUTBOX, derive_secret  # noqa: PLC0415 -- the same

    found = applications(session.settings.applications)
    known = [OUTBOX, *(name for application in found for name in application.purposes)]
    if purpose not in known:
        raise InvalidOption("purpose", purpose, rule=f"must be one of {', '.join(known)}")
    for each in _signing(session.settings):
        signing = derive_secret(each, purpose)
        session.out.answer({"purpose": purpose, "secret": signing}, signing)


def _signing(settings: Settings) -> list[str]:
    """The secrets that sign outgoing calls: those of the settings, or that of `towpath up`."""
    if settings.calls.secrets:
        return list(settings.calls.secrets)
    kept = file_in(settings.data).with_name(SIGNING)
    if not kept.exists():
        rule = (
            f"none is set, and {settings.data} has no {kept.name}: run the command in the directory"
            " in which `towpath up` runs, or set TOWPATH_CALLS__SECRETS"
        )
        raise InvalidOption("calls.secrets", "", rule=rule)
    return [kept.read_text().strip()]


def register(towpath: typer.Typer) -> None:
    towpath.add_typer(app, name="keys")
    verb(towpath, "secret", examples="towpath secret callback")(secret)
