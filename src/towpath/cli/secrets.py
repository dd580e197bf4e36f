"""`towpath secret`: what a receiver of calls needs to check their signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from towpath.console.ledgers import file_in
from towpath.console.verb import Session, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.settings import Settings

SIGNING = "signing.secret"
"""Where `towpath up` keeps the secret that it made, in its data directory."""


def secret(
    session: Session,
    purpose: Annotated[
        str, typer.Argument(help="What for: events, or a kind of calls of an application.")
    ],
) -> None:
    """Show the secret for the receiver of one kind of calls.

    Calls of each kind are signed with a secret of their own, derived from `calls.secrets`, or
    from the one that `towpath up` made: a receiver can check the calls that are meant for it,
    and sign none that are meant for others.
    """
    from towpath.apps.application import applications  # noqa: PLC0415 -- slow to import
    from towpath.calls.signature import Purpose, derived  # noqa: PLC0415 -- the same

    found = applications(session.settings.applications)
    known = [Purpose.EVENTS.value, *(name for it in found for name in it.purposes)]
    if purpose not in known:
        raise InvalidOption("purpose", purpose, rule=f"must be one of {', '.join(known)}")
    for each in _signing(session.settings):
        told = derived(each, purpose)
        if session.out.as_json:
            session.out.object({"purpose": purpose, "secret": told})
        else:
            typer.echo(told)


def _signing(settings: Settings) -> list[str]:
    """What calls are signed with, by the settings or by `towpath up`."""
    if settings.calls.secrets:
        return list(settings.calls.secrets)
    kept = file_in(settings.data).with_name(SIGNING)
    if not kept.exists():
        rule = (
            f"none is set, and no {kept.name} is in {settings.data}: run it beside that of"
            " `towpath up`, or set TOWPATH_CALLS__SECRETS"
        )
        raise InvalidOption("calls.secrets", "", rule=rule)
    return [kept.read_text().strip()]


def register(app: typer.Typer) -> None:
    verb(app, "secret", examples="towpath secret callback")(secret)
