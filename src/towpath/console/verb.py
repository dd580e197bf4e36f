"""The frame of every verb: common options, settings, connections, output, and errors."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import typer
from typer.core import TyperCommand

from towpath.console import exits
from towpath.console.exits import NotConfirmed
from towpath.errors import InvalidOption, ServerUnreachable, TowpathError

if TYPE_CHECKING:
    from towpath.app.jobs import AllJobs
    from towpath.console.output import Output
    from towpath.engine.engine import Engine
    from towpath.ledger.database.tables import Tables
    from towpath.ledger.ledger import Ledger
    from towpath.settings import Registry, Settings

Body = Callable[..., Awaitable[None] | None]
B = TypeVar("B", bound=Body)

_COMMON = {
    "url": Annotated[str | None, typer.Option(help="URL of Redis.  [setting: url]", metavar="URL")],
    "json": Annotated[bool | None, typer.Option("--json", help="Print JSON, one object per line.")],
    "timeout": Annotated[
        str | None,
        typer.Option(help="How long to wait for Redis.  [setting: timeout]", metavar="TIME"),
    ],
    "config": Annotated[
        str | None,
        typer.Option(help="Settings file to use instead of ./towpath.toml.", metavar="FILE"),
    ],
    "debug": Annotated[
        bool | None, typer.Option("--debug", help="Show the traceback of an error.")
    ],
}
"""The options of every verb. They may also come before the verb: `towpath --json queues`."""


class Session:
    """The context of a verb: its settings, its engine, and its output."""

    def __init__(self, common: Mapping[str, Any]) -> None:
        self._common = common
        self.registry: Registry = common["registry"]
        self._warned: list[str] = []

    @cached_property
    def out(self) -> Output:
        from towpath.console.output import Output  # noqa: PLC0415 -- a help text needs none

        return Output(as_json=bool(self._common.get("json")))

    def flags(self, **more: Mapping[str, Any]) -> dict[str, Any]:
        """The flags of the command line, as settings. Leaves out flags that were not given."""
        own = ("url", "timeout", "config")
        flags: dict[str, Any] = {name: self._common.get(name) for name in own}
        for group, values in more.items():
            flags[group] = {name: value for name, value in values.items() if value is not None}
        return {name: value for name, value in flags.items() if value not in (None, {})}

    @property
    def debug(self) -> bool:
        """Whether errors are raised, with their tracebacks."""
        return bool(self._common.get("debug"))

    @cached_property
    def settings(self) -> Settings:
        """All settings. Raises InvalidOption."""
        return self.load(self.flags())

    def load(self, flags: Mapping[str, Any]) -> Settings:
        """The settings with these flags. Warns once about applications that can't be loaded; they
        are only refused where a verb needs them.
        """
        from towpath.settings import load  # noqa: PLC0415 -- slow to import

        return load(flags, registry=self.registry, passed_over=self._warn)

    def _warn(self, error: TowpathError) -> None:
        warning = f"warning  {error.code}: {error}. {error.remedy}"
        if warning not in self._warned:
            self._warned.append(warning)
            self.out.note(warning)

    @asynccontextmanager
    async def engine(self) -> AsyncGenerator[Engine]:
        """An engine that is connected. Raises ServerUnreachable after the setting `timeout`."""
        from towpath.engine.engine import Engine  # noqa: PLC0415 -- slow to import
        from towpath.telemetry.logs import Silent  # noqa: PLC0415 -- the same

        settings = self.settings
        async with Engine(
            settings.server, limits=settings.limits, declared=settings.declared, log=Silent()
        ) as engine:
            _ = engine.facts
            yield engine

    @asynccontextmanager
    async def jobs(self) -> AsyncGenerator[tuple[Engine, AllJobs]]:
        """An engine, and the facade for its jobs. Opens the database of the settings when a job may
        have a record there.
        """
        from towpath.app.jobs import AllJobs  # noqa: PLC0415 -- slow to import
        from towpath.ledger.errors import LedgerNotInstalled  # noqa: PLC0415 -- the same

        opened: list[Ledger | None] = []
        async with self.engine() as engine, AsyncExitStack() as life:

            async def find_ledger() -> Ledger | None:
                if not opened:
                    try:
                        ledger = open_ledger(self, None)
                    except (InvalidOption, LedgerNotInstalled):
                        opened.append(None)
                    else:
                        await _open_with_relay(life, ledger, engine)
                        opened.append(ledger)
                return opened[0]

            yield engine, AllJobs(engine, find_ledger)

    def own_objects(self) -> tuple[str, str, str] | None:
        """Address, access key and secret of the object store that `towpath up --objects` runs on
        the data of the settings; None if none runs there.
        """
        return self._common["objects"](self.settings.data.expanduser().absolute())

    def refused(self, error: TowpathError) -> None:
        """Write *error* and its remedy."""
        remedy = _private_redis_remedy(self, error) or error.remedy
        self.out.refused(error.code, str(error), remedy, error.retry)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation in a terminal, unless *yes*. Raises NotConfirmed."""
        here = sys.stdin.isatty() and sys.stderr.isatty()
        if not (yes or (here and typer.confirm(f"{question} Go on?", err=True))):
            raise NotConfirmed(question)


def verb(
    app: typer.Typer, name: str, *, examples: str, cls: type[TyperCommand] | None = None
) -> Callable[[B], B]:
    """Make a function a command of *app*. Its first parameter is the Session, the others are
    typer's; it may be async. Errors are written, and become exit codes.
    """

    def register(body: B) -> B:
        app.command(name, help=help_of(body, examples), cls=cls)(_command(body))
        return body

    return register


def noun(app: typer.Typer, *, examples: str) -> Callable[[B], B]:
    """The same for a group of commands: the function runs if no verb follows."""

    def register(body: B) -> B:
        text = help_of(body, examples)
        app.callback(invoke_without_command=True, help=text)(_command(body))
        return body

    return register


def help_of(body: Body, examples: str) -> str:
    """The help text: the docstring, then the examples."""
    lines = [f"  $ {line.strip()}" for line in examples.strip().splitlines()]
    return "\n".join([inspect.getdoc(body) or "", "", "\b", "Examples:", *lines])


def _command(body: Body) -> Callable[..., None]:
    """A function for typer, with the body's parameters and the common ones."""
    own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
    own = [
        parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD
    ]  # the command class adds these parameters

    def command(ctx: typer.Context, **values: Any) -> None:
        given = {name: values.pop(name) for name in _COMMON}
        # An option after the verb overrides the same option before it.
        common: dict[str, Any] = dict(ctx.obj or {})
        ctx.obj = common | {name: value for name, value in given.items() if value is not None}
        if ctx.invoked_subcommand is None:
            run(Session(ctx.obj), body, values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("ctx", keyword, annotation=typer.Context)
    common = [
        inspect.Parameter(name, keyword, annotation=kind, default=None)
        for name, kind in _COMMON.items()
    ]
    parameters = [context, *(parameter.replace(kind=keyword) for parameter in own), *common]
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess] -- the documented way to set a signature
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__name__ = body.__name__
    return command


def run(session: Session, body: Body, values: Mapping[str, Any]) -> None:
    """Run *body*. Raises typer.Exit with the exit code if it fails."""
    try:
        answer = body(session, **values)
        if inspect.iscoroutine(answer):
            asyncio.run(answer)
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(exits.INTERRUPTED) from None
    except BrokenPipeError:
        # Otherwise the interpreter would fail to flush stdout at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(exits.NOBODY_READS) from None
    except TowpathError as error:
        if session.debug:
            raise
        session.refused(error)
        raise typer.Exit(exits.exit_code(error)) from error


def _private_redis_remedy(session: Session, error: TowpathError) -> str | None:
    """The remedy if `towpath up` runs a Redis here, but the default URL was used."""
    if not isinstance(error, ServerUnreachable):
        return None
    from towpath.settings import Core  # noqa: PLC0415 -- slow to import

    settings = session.settings
    socket = settings.data.expanduser().absolute() / "valkey" / "server.sock"
    if settings.url != Core().url or not socket.exists():
        return None
    return f"`towpath up` runs a server here: pass --url unix://{quote(str(socket))}"


N = TypeVar("N")


async def each(session: Session, names: Iterable[N], do: Callable[[N], Awaitable[None]]) -> None:
    """Call *do* for one name after the other. Writes the error of a name, and continues.

    The exit code is that of the first error. An error that is not about one name, such as an
    unreachable Redis, ends the loop.
    """
    code = exits.OK
    for name in names:
        try:
            await do(name)
        except TowpathError as error:
            own = exits.exit_code(error)
            if session.debug or own not in (exits.USAGE, exits.REFUSED, exits.NOT_FOUND):
                raise
            session.refused(error)
            code = code or own
    if code:
        raise typer.Exit(code)


async def _open_with_relay(life: AsyncExitStack, ledger: Ledger, engine: Engine) -> None:
    """Open *ledger*, with a relay that brings its changes to Redis."""
    from towpath.telemetry.logs import Silent  # noqa: PLC0415 -- slow to import

    await life.enter_async_context(ledger)
    await life.enter_async_context(ledger.relayed(engine, log=Silent()))


DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="URL of the database.  [setting: database]"),
]


def open_ledger(
    session: Session, database: str | None, tables: Callable[[], Iterable[Tables]] = tuple
) -> Ledger:
    """A ledger, not yet entered: that of *database*, of the settings, or of `towpath up`.

    *tables* loads the tables of applications, whose versions are checked, too. Raises
    InvalidOption if there is no ledger, LedgerNotInstalled if its libraries are missing.
    """
    flags = {} if database is None else {"database": database}
    settings = session.load(session.flags() | flags)
    kept = file_in(settings.data)
    if settings.database is not None:
        url = settings.database
    elif kept.exists():
        url = f"sqlite:///{kept}"
    else:
        rule = (
            f"there is no {settings.data}: run the command in the directory of `towpath up`, pass"
            f" --database sqlite:///path/to/{settings.data.name}/{kept.name}, or set DATABASE_URL"
        )
        raise InvalidOption("database", "", rule=rule)
    try:
        from towpath.ledger.ledger import Ledger  # noqa: PLC0415 -- slow to import, and an extra
    except ModuleNotFoundError as error:
        from towpath.ledger.errors import LedgerNotInstalled  # noqa: PLC0415 -- rarely needed

        raise LedgerNotInstalled(error.name or "a library") from error
    # Changes made here also write events to the outbox, which a server with a courier sends.
    sinks = settings.value("outbox.sinks")
    return Ledger(url, limit=settings.timeout, sinks=sinks, tables=tables())


def file_in(data: Path) -> Path:
    """The database file of `towpath up`."""
    return data.expanduser().absolute() / "towpath.db"
