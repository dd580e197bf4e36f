"""The `towpath` command: its nouns and verbs, and those of applications."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from towpath.apps import BUILT_IN, ApplicationLine, Verb
from towpath.cli import config
from towpath.console import exits
from towpath.console.output import Output
from towpath.console.verb import Session, noun, verb
from towpath.errors import TowpathError

COMMANDS = (
    "serve", "demo", "worker", "submit", "queues", "jobs", "dead", "pause", "schedules", "top",
    "workers", "doctor", "config", "bench", "outbox", "keys", "audit", "ledger", "mcp",
)  # fmt: skip
"""The modules of this package that have commands, in the order of the help. Each has a function
`register`, which adds its verbs and its noun.
"""


class Nouns(TyperGroup):
    """The engine's verbs and nouns, and the applications' nouns, each loaded when it is used.

    Settings are loaded only if the setting `applications` may be set, because that takes longer
    than the rest.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *VERBS, *self._lines(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        if cmd_name in VERBS:
            return Noun(cmd_name, *VERBS[cmd_name])
        line = BUILT_IN.get(cmd_name) or self._lines(ctx).get(cmd_name)
        return Noun(cmd_name, line) if line and line.noun else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        if not isinstance(found, Noun):
            return name, found, rest
        try:
            return name, found.loaded, rest
        except TowpathError as error:
            self._refuse(ctx, error)
            raise typer.Exit(exits.exit_code(error)) from error

    def _lines(self, ctx: Any) -> Mapping[str, ApplicationLine]:
        """The nouns of applications. Writes an error for one that can't be loaded."""
        found = {name: line for name, line in BUILT_IN.items() if line.noun}
        if _may_name_applications(ctx.params.get("config")):
            try:
                found |= _load_named({**ctx.obj, **ctx.params})
            except TowpathError as error:
                self._refuse(ctx, error)
        return found

    def _refuse(self, ctx: Any, error: TowpathError) -> None:
        Session({**ctx.obj, **ctx.params}).refused(error)


VERBS = {name: (line, verb) for line in BUILT_IN.values() for name, verb in line.verbs.items()}
"""The applications' commands that are not below their nouns."""


class Noun(TyperGroup):
    """Stands in the help for an application's noun or verb; `loaded` is the command itself."""

    def __init__(self, name: str, line: ApplicationLine, verb: Verb | None = None) -> None:
        super().__init__(name=name, help=verb.about if verb else line.noun)
        self._place, self._verb = line.place, verb

    @cached_property
    def loaded(self) -> Any:
        """The command. Raises ApplicationInvalid."""
        from towpath.apps.application import loaded  # noqa: PLC0415 -- slow to import

        application = loaded(self._place, self._place)
        for kind, answered in application.load(application.errors, {}).items():
            exits.OF_APPLICATIONS.setdefault(kind, answered.exit)
        if self._verb is not None:
            command: Any = typer.main.get_command(application.load(self._verb.place))
            command.name = self.name
            return command
        group: Any = typer.main.get_group(application.load(application.cli))
        group.name = application.name
        return group


def nouns(command: Any) -> dict[str, Any]:
    """The subcommands of a command, also of the built-in applications; for the docs."""
    below: dict[str, Any] = dict(getattr(command, "commands", {}))
    if isinstance(command, Nouns):
        below |= {name: Noun(name, *found).loaded for name, found in VERBS.items()}
        below |= {name: Noun(name, line).loaded for name, line in BUILT_IN.items() if line.noun}
    return below


def _load_named(common: Mapping[str, Any]) -> dict[str, ApplicationLine]:
    """The nouns of the applications in the settings. Raises the same errors as the server."""
    from towpath.apps.application import Application, loaded  # noqa: PLC0415 -- slow to import
    from towpath.settings import load  # noqa: PLC0415 -- the same

    session = Session(common)
    # Loading the settings checks the applications, too.
    places = load(session.flags(), registry=session.registry).applications

    found: list[tuple[str, Application]] = [(place, loaded(place, place)) for place in places]
    return {
        application.name: ApplicationLine(place, application.noun)
        for place, application in found
        if application.cli
    }


def _own_objects(data: Path) -> tuple[str, str, str] | None:
    from towpath.embedded.objects import running_at  # noqa: PLC0415 -- rarely needed

    return running_at(data / "objects")


def _may_name_applications(config: str | None) -> bool:
    """Whether a variable or a file may set `applications`.

    Without this test, the help and each completion would load the settings: 0.23 s of processor
    time instead of 0.17.
    """
    if any(name.startswith("TOWPATH_APPLICATIONS") for name in os.environ):
        return True
    files = [Path(config)] if config else [Path("towpath.toml"), Path("pyproject.toml")]
    texts = {file.name: file.read_bytes() for file in files if file.is_file()}
    shared = texts.pop("pyproject.toml", b"")  # pyproject.toml is also used by other tools
    own = [*texts.values(), shared if b"[tool.towpath" in shared else b""]
    return any(b"applications" in text for text in own)


app = typer.Typer(
    name="towpath",
    cls=Nouns,
    # Plain help: rich takes longer to load than the rest, also for each completion.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "obj": {"registry": config.groups, "objects": _own_objects},
    },
    epilog=exits.help_text(),
)


@noun(
    app,
    examples="""
        towpath worker shop.jobs:app
        towpath queues --json
        towpath explain mails/01JB7Q
    """,
)
def towpath(
    session: Session,
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Work that must be done once, in order and on time, on Redis or Valkey.

    Redis is named by --url, by TOWPATH_URL or REDIS_URL, or in ./towpath.toml;
    `towpath config` shows what is in force. Times are written 250ms, 10s, 1h30m or 7d.
    """
    if version:
        return versions(session)
    session.out.note("Choose a command: towpath --help")
    raise typer.Exit(exits.USAGE)


for module in COMMANDS:
    import_module(f"towpath.cli.{module}").register(app)


@verb(app, "version", examples="towpath version --json")
def versions(session: Session) -> None:
    """Show the versions."""
    from importlib.metadata import version  # noqa: PLC0415 -- slow to import

    facts = {"towpath": version("towpath"), "python": platform.python_version()}
    facts["hiredis"] = version("hiredis")
    session.out.answer(facts, facts)


_AT_ONCE = """
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then %(complete_func)s "$@"; fi
"""


def _complete_at_the_first_tab() -> None:
    """Make zsh complete at the first Tab: it then only loads typer's script, which just declares
    the function. The addition calls it.
    """
    with suppress(ImportError, KeyError):  # another typer may have its scripts elsewhere
        from typer._completion_shared import _completion_scripts as scripts  # pyright: ignore[reportPrivateUsage]  # noqa: PLC0415 -- typer's own place

        if _AT_ONCE not in scripts["zsh"]:
            scripts["zsh"] += _AT_ONCE


def main() -> None:
    """The entry point of the installed command."""
    sys.excepthook = _print_defect
    _complete_at_the_first_tab()
    # Not `app()`, which would set its own excepthook.
    typer.main.get_command(app)()


def _print_defect(
    kind: type[BaseException], error: BaseException, at: TracebackType | None
) -> None:
    """Print an unexpected error: one line, or the traceback with `--debug`.

    Names the file and line, because the error may come from an app's own module.
    """
    if "--debug" in sys.argv:
        sys.__excepthook__(kind, error, at)
        return
    frames = extract_tb(at)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    Output(as_json="--json" in sys.argv).refused(
        "defect",
        f"{kind.__name__}: {error}{place}",
        "Pass --debug to see the traceback; report it if the fault is in Towpath.",
        "never",
    )
