"""`towpath config`: every setting, its value, and who decided about it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import typer

from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.settings import Settings

HIDDEN = "(hidden)"


def config(session: Session) -> None:
    """Show every setting and its origin.

    With its value and what it means. Secrets are hidden.

    \b
    Flags win over variables, variables over the file, the file over the defaults:
      variables  TOWPATH_URL, TOWPATH_WORKER__GRACE=30s, REDIS_URL,
                 TOWPATH_URL_FILE and TOWPATH_PASSWORD_FILE for secrets in files
      file       ./towpath.toml, or [tool.towpath] in ./pyproject.toml
    """
    from towpath.settings import leaves, origins  # noqa: PLC0415 -- slow to import

    settings, decided = session.settings, origins(session.flags())
    rows = [(it.name, value_of(settings, it.name), decided[it.name], it.about) for it in leaves()]
    if session.out.as_json:
        for name, value, origin, about in rows:
            told = {"setting": name, "value": value or None, "origin": origin.kind}
            session.out.object(told | {"by": origin.name or None, "about": about})
        return
    session.out.table(("SETTING", "VALUE", "ORIGIN", "ABOUT"), rows)


def value_of(settings: Settings, name: str) -> str:
    """The value of *name* as it would be written in a file; what is secret is not told."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return settings.shown if name == "url" else shown(value)


def shown(value: object) -> str:
    """A value as it would be written in a file; a secret as `(hidden)`, none as nothing."""
    from pydantic import SecretStr  # noqa: PLC0415 -- slow to import

    from towpath.clock import Duration  # noqa: PLC0415
    from towpath.durations import spelled  # noqa: PLC0415

    match value:
        case SecretStr():
            return HIDDEN
        case Duration():
            return spelled(value)
        case None:
            return ""
        case dict():
            named = cast("dict[str, Any]", value)
            return ",".join(f"{name}={shown(it)}" if it else name for name, it in named.items())
        case tuple():
            listed = cast("tuple[object, ...]", value)
            return json.dumps([shown(it) for it in listed], ensure_ascii=False)
        case _:
            return str(value)


def register(app: typer.Typer) -> None:
    verb(app, "config", examples="towpath config --json")(config)
