"""The applications: one folder each, and one line here; `application.py` defines what one is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Verb(NamedTuple):
    """A command that an application adds beside its noun: its module, and its help."""

    place: str
    """`module:name` of a `typer.Typer` with this one command."""
    about: str


class ApplicationLine(NamedTuple):
    """Where an application is declared, and the help of its noun, if it has one.

    With the help here, `towpath --help` need not import the applications.
    """

    place: str
    """`module:name`."""
    noun: str = ""
    verbs: Mapping[str, Verb] = {}
    """Its commands beside the noun."""


BUILT_IN = {
    "messages": ApplicationLine("towpath.apps.messages:APPLICATION"),
    "reviews": ApplicationLine(
        "towpath.apps.reviews:APPLICATION", "Reviews: submit, list, show, cancel, retry."
    ),
    "timers": ApplicationLine(
        "towpath.apps.timers:APPLICATION",
        "Timers: submit, set, show, list, move, cancel, log, types.",
    ),
    "issues": ApplicationLine(
        "towpath.apps.issues:APPLICATION",
        "Issues: add, list, show, release, sync, policy.",
        {
            "agent": Verb(
                "towpath.apps.issues.agent_cli:app",
                "Work on issues: run a command for each task that the server hands out.",
            )
        },
    ),
    "uploads": ApplicationLine(
        "towpath.apps.uploads:APPLICATION",
        "Uploads: list, show, abort, resume, sweep.",
        {
            "upload": Verb(
                "towpath.apps.uploads.client.cli:app",
                "Send files to a server, and wait until they are stored.",
            )
        },
    ),
}
"""The applications that come with Towpath."""
