"""`towpath config`: every setting, its value, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import typer

from towpath.apps import BUILT_IN
from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.options import Options
    from towpath.settings import Core, Groups, Settings
    from towpath.settings.sources import Leaf


def groups(core: Core) -> Groups:
    """The groups of settings beside those of the core. Their classes are imported when needed."""
    server = {name: partial(_options_at, place) for name, place in _SERVERS_OWN.items()}
    own = {name: partial(_options_at, f"{line.place}.options") for name, line in BUILT_IN.items()}
    if core.applications:
        from towpath.apps.application import ApplicationInvalid, applications  # noqa: PLC0415 -- slow to import
        from towpath.cli.running import import_from_here  # noqa: PLC0415 -- the same

        import_from_here()
        own = {
            application.name: partial(getattr, application, "options")
            for application in applications(core.applications)
        }
        if taken := set(own) & _words():
            raise ApplicationInvalid(taken.pop(), "a command already has this name")
    return {**server, **own}


def _words() -> set[str | None]:
    """The verbs and nouns of the command line, without those of applications."""
    from towpath.cli.main import app  # noqa: PLC0415 -- it imports this module

    return {command.name for command in (*app.registered_commands, *app.registered_groups)}


def _options_at(place: str) -> type[Options]:
    from towpath.apps.application import loaded  # noqa: PLC0415 -- slow to import

    return loaded(place, place)


_SERVERS_OWN = {
    "http": "towpath.web.limits:ServerLimits",
    "outbox": "towpath.ledger.outbox.options:OutboxOptions",
}


def config(session: Session) -> None:
    """Show every setting: its value, its origin and its meaning.

    Secrets are hidden.

    \b
    Flags override variables, variables override the file, the file overrides the defaults:
      variables  TOWPATH_URL, TOWPATH_WORKER__GRACE=30s, REDIS_URL,
                 TOWPATH_URL_FILE and TOWPATH_PASSWORD_FILE for secrets in files
      file       ./towpath.toml, or [tool.towpath] in ./pyproject.toml
    """
    from towpath.settings import load  # noqa: PLC0415 -- slow to import

    settings = load(session.flags(), registry=session.registry)
    rows = [
        (leaf.name, shown_of(settings, leaf), settings.origin(leaf.name), leaf.about)
        for leaf in settings.leaves()
    ]
    if session.out.as_json:
        for name, value, origin, about in rows:
            fields = {"setting": name, "value": value or None, "origin": origin.kind}
            session.out.object(fields | {"by": origin.name or None, "about": about})
        return
    session.out.table(("SETTING", "VALUE", "ORIGIN", "ABOUT"), rows)


def shown_of(settings: Settings, leaf: Leaf) -> str:
    """The value of a setting as in a settings file; hides secrets."""
    if leaf.name == "url":
        return settings.shown
    return shown(settings.value(leaf.name), hidden=leaf.field.info.secret)


def shown(value: object, *, hidden: bool = False) -> str:
    """A value as in a settings file; with *hidden*, only whether there is one."""
    from towpath.clock import Duration, format_duration  # noqa: PLC0415 -- slow to import
    from towpath.options import HIDDEN  # noqa: PLC0415 -- the same

    match value:
        case None:
            return ""
        case Mapping():
            named = cast("Mapping[str, Any]", value)
            return ",".join(
                f"{name}={shown(part, hidden=hidden)}" if part else name
                for name, part in named.items()
            )
        case tuple():
            listed = cast("tuple[object, ...]", value)
            return json.dumps([shown(part, hidden=hidden) for part in listed], ensure_ascii=False)
        case _ if hidden:
            return HIDDEN
        case Duration():
            return format_duration(value)
        case _:
            return str(value)


def register(towpath: typer.Typer) -> None:
    verb(towpath, "config", examples="towpath config --json")(config)
