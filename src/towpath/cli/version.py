"""`towpath version`."""

from __future__ import annotations

import platform

import typer

from towpath.console.verb import Session, verb


def tell(session: Session) -> None:
    """Show the versions."""
    from importlib.metadata import version  # noqa: PLC0415 -- slow to import

    facts = {
        "towpath": version("towpath"),
        "python": platform.python_version(),
        "redis-py": version("redis"),
    }
    if session.out.as_json:
        session.out.object(facts)
    else:
        session.out.facts(facts)


def register(app: typer.Typer) -> None:
    verb(app, "version", examples="towpath version --json")(tell)
