"""What an application is: one declaration that server, command line, settings and docs read.

A declaration is data. Code is named as `module:name` and imported where it is used, so that a
command line without the server's libraries can read all declarations. `docs/how-to` has an example.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from towpath.apps import BUILT_IN
from towpath.calls.signature import TAKEN
from towpath.engine.options import QueueOptions
from towpath.errors import InvalidInput, InvalidName
from towpath.ids import queue_name
from towpath.ledger.keys.raw import RAW_VERBS, RawQueues
from towpath.options import Options
from towpath.telemetry.events import CATALOGUE, COMMON, FIELDS, LogEvents
from towpath.telemetry.measures import MetricSpec

if TYPE_CHECKING:
    from towpath.app.app import Towpath
    from towpath.engine.engine import Engine
    from towpath.ledger.database.tables import Tables
    from towpath.ledger.ledger import Ledger
    from towpath.telemetry.logs import Log
    from towpath.telemetry.metrics import Metrics
    from towpath.web.tools import Tools

_PARTS = frozenset({"server", "store", "ledger"})
"""Names of other parts of the server in `/readyz` and in errors; no application may use them."""
_NONE: Mapping[str, Any] = MappingProxyType({})


class ApplicationInvalid(InvalidInput):
    """An application that can't be mounted; nothing was started."""

    code = "application_invalid"
    remedy = "Fix the application, or remove it from the setting `applications`."

    def __init__(self, application: str, reason: str) -> None:
        super().__init__(f"application {application}: {reason}")
        self.application, self.reason = application, reason


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of an application: all that is known about it before it runs."""

    name: str
    """Its name, also of its group of settings, service, noun and webhook paths."""
    options: type[Options]
    """Its settings, as one frozen class."""
    queues: str | None = None
    """A mapping from its queues to their options; keys are names or prefixes (`timers.*`)."""
    raw: Mapping[str, tuple[str, ...]] = {}
    """Which verbs of the generic paths (`/api/v1/queues/{queue}/…`) are part of its API, by queue
    as `queues` names it. All others need the scope `raw`."""
    tables: str | None = None
    """A `Tables`: its tables, and the steps that bring them up to date."""
    errors: str | None = None
    """A mapping from its errors to `ErrorCodes`, for errors whose base class has none."""
    service: str | None = None
    """`(Host) -> async context manager` that yields the service for its routes and tasks."""
    tasks: str | None = None
    """`(service) -> {name: run}`: background tasks of the server, started again if they end."""
    handlers: str | None = None
    """`(options) -> Consumers`: the handlers and schedules that run beside the server."""
    http: str | None = None
    """An `ApplicationRoutes`: its routes, tags, open paths and webhooks."""
    tools: str | None = None
    """A `Tools`: what coding agents may do with it over MCP."""
    pages: str | None = None
    """A `Pages`: what the dashboard shows of it."""
    cli: str | None = None
    """A `typer.Typer`: the verbs of its noun."""
    noun: str = ""
    """What `towpath --help` says about the noun."""
    metrics: tuple[MetricSpec, ...] = ()
    """Its own metrics; their names begin with `towpath_` and its name."""
    log_events: LogEvents = LogEvents()
    """Its own log events. Their names belong to no other part."""
    published: tuple[str, ...] = ()
    """Other prefixes of its metrics, if their names were published elsewhere."""
    purposes: tuple[str, ...] = ()
    """The kinds of calls that it signs, each with a secret of its own: see `towpath secret`."""
    probe: str | None = None
    """`async (service) -> None`: for `/readyz`; raises an error if the application is not ready."""
    bundled: str | None = None
    """`(options, BundledServices) -> options`: fills options that are not set from what
    `towpath up` starts."""
    facts: str | None = None
    """`(options) -> {name: StartFact}`: what the server prints when it starts."""

    def load(self, what: str | None, without: Any = None) -> Any:
        """Import *what* (`module:name`), or return *without* if it is None. Raises
        ApplicationInvalid.
        """
        return loaded(self.name, what) if what else without

    def named_by_setting(self) -> AbstractContextManager[None]:
        """Errors about options in the block name the setting instead of the option."""
        from towpath.settings import named_by_setting  # noqa: PLC0415 -- slow to import

        return named_by_setting(self.name, self.options)

    def with_bundled(self, options: Options, bundled: BundledServices | None) -> Options:
        """Returns *options*; under `towpath up`, with what it has started filled in."""
        return self.load(self.bundled)(options, bundled) if self.bundled and bundled else options

    def behaviours(self) -> Mapping[str, QueueOptions]:
        """Returns the options of its queues, by name or prefix (`timers.*`)."""
        return self.load(self.queues, _NONE)


class ErrorCodes(NamedTuple):
    """The codes of an error: the status over HTTP, and the exit code on the command line."""

    status: int
    exit: int


class StartFact(NamedTuple):
    """A fact that a server prints when it starts: *value*; or, for people only, *without*."""

    value: str | None
    without: str


class BundledObjectStore(NamedTuple):
    """The object store that `towpath up --objects` starts; it speaks S3."""

    url: str
    access_key: str
    secret_key: str


class BundledServices(NamedTuple):
    """What `towpath up` starts or sets up: a data directory, and an object store with --objects."""

    data: Path
    objects: BundledObjectStore | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What a server gives an application to work with."""

    options: Any
    engine: Engine
    ledger: Ledger
    metrics: Metrics
    log: Log


class Consumers(Protocol):
    """The handlers of an application. Creating the object checks its options."""

    def added(self, app: Towpath) -> AbstractAsyncContextManager[None]:
        """Add the handlers to *app*, and keep their connections open while the body runs."""
        ...


Serving = Callable[[Host], AbstractAsyncContextManager[Any]]
Tasks = Callable[[Any], Mapping[str, Callable[[], Awaitable[object]]]]
Probe = Callable[[Any], Awaitable[None]]


# ── the applications of a process ────────────────────────────────────────────────────────


def applications(named: Iterable[str] = ()) -> tuple[Application, ...]:
    """Returns the built-in applications, then the ones at *named* (`module:name`).

    Raises ApplicationInvalid if one can't be loaded, or has a name or a queue of another one.
    """
    places = [line.place for line in BUILT_IN.values()]
    found = [_load_application(place) for place in dict.fromkeys([*places, *named])]
    for at, one in enumerate(found):
        for before in found[:at]:
            _require_no_conflict(one, before)
    return tuple(found)


def raw_queues(found: Iterable[Application]) -> RawQueues:
    """Returns the queues of the applications, with the raw verbs that they publish."""
    return RawQueues(
        {
            queue: application.raw.get(queue, ())
            for application in found
            for queue in application.behaviours()
        }
    )


def tables_of(found: Iterable[Application]) -> tuple[Tables, ...]:
    """Returns the tables of the applications, for the ledger. Raises ApplicationInvalid."""
    from towpath.ledger.database.tables import Tables  # noqa: PLC0415 -- needs the libraries of an extra

    some: list[Tables] = []
    for application in found:
        if application.tables:
            tables = application.load(application.tables)
            if not isinstance(tables, Tables) or tables.name != application.name:
                raise ApplicationInvalid(
                    application.name, f"{application.tables} is not Tables({application.name!r}, …)"
                )
            some.append(tables)
    return tuple(some)


def tools_of(found: Iterable[Application]) -> tuple[Tools, ...]:
    """Returns the MCP tools of the applications. Raises ApplicationInvalid."""
    from towpath.web.tools import Tools  # noqa: PLC0415 -- slow to import

    some: list[Tools] = []
    owners: dict[str, str] = {}
    for application in found:
        if application.tools:
            tools = application.load(application.tools)
            if not isinstance(tools, Tools):
                raise ApplicationInvalid(application.name, f"{application.tools} is not Tools(…)")
            for tool in tools.tools:
                if (owner := owners.setdefault(tool.name, application.name)) != application.name:
                    raise ApplicationInvalid(
                        application.name, f"{owner} has a tool {tool.name}, too"
                    )
            some.append(tools)
    return tuple(some)


def loaded(named: str, place: str) -> Any:
    """Import *place* (`module:name`). Raises ApplicationInvalid, which names *named*."""
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise ApplicationInvalid(named, f"{place or 'nothing'} is not MODULE:NAME")
    try:
        return attrgetter(name)(import_module(module))
    except Exception as error:  # an application's module may raise anything at all
        reason = f"{place} can't be imported: {type(error).__name__}: {error}"
        raise ApplicationInvalid(named, reason) from error


def _load_application(place: str) -> Application:
    found = loaded(place, place)
    if not isinstance(found, Application):
        raise ApplicationInvalid(place, f"is a {type(found).__name__}, not an Application")
    if not (isinstance(found.options, type) and issubclass(found.options, Options)):  # pyright: ignore[reportUnnecessaryIsInstance] -- others may be untyped
        raise ApplicationInvalid(place, "its options are not a subclass of towpath.options.Options")
    if not found.name.isidentifier() or found.name != found.name.lower():
        raise ApplicationInvalid(place, f"its name {found.name!r} must be a word in lower case")
    for name in found.behaviours():
        try:
            queue_name(name.removesuffix("*").removesuffix("."))
        except InvalidName as error:
            raise ApplicationInvalid(place, f"its {error}") from error
    for name, verbs in found.raw.items():
        if name not in found.behaviours():
            raise ApplicationInvalid(place, f"it publishes verbs of {name}, which it does not have")
        if unknown := set(verbs) - RAW_VERBS:
            rule = f"must be one of {', '.join(sorted(RAW_VERBS))}"
            raise ApplicationInvalid(place, f"its raw verb {unknown.pop()} {rule}")
    for spec in found.metrics:
        if not spec.name.startswith((f"towpath_{found.name}_", *found.published)):
            raise ApplicationInvalid(place, f"{spec.name} must begin with towpath_{found.name}_")
    for event in found.log_events.events:
        if unknown := set(event.fields) - FIELDS.keys() - found.log_events.fields.keys():
            raise ApplicationInvalid(place, f"{event.name} has the unknown field {unknown.pop()}")
    if taken := found.log_events.fields.keys() & {*FIELDS, *COMMON}:
        raise ApplicationInvalid(place, f"the log field {taken.pop()} has a meaning already")
    if taken := _event_names(found) & {event.name for event in CATALOGUE}:
        raise ApplicationInvalid(place, f"another part has the log event {taken.pop()}")
    return found


def _event_names(application: Application) -> set[str]:
    return {event.name for event in application.log_events.events}


def _require_no_conflict(one: Application, before: Application) -> None:
    from towpath.settings import Core  # noqa: PLC0415 -- slow to import

    if one.name in _PARTS:
        raise ApplicationInvalid(one.name, "another part of the server has this name")
    if one.name in {*Core.__struct_fields__, "http", "outbox", "events"}:
        raise ApplicationInvalid(one.name, "another group of settings has this name")
    if one.name == before.name:
        raise ApplicationInvalid(one.name, "another application has this name")
    if shared := set(one.purposes) & {*before.purposes, *TAKEN}:
        raise ApplicationInvalid(
            one.name, f"{shared.pop()} is a kind of calls of another application"
        )
    if shared := _event_names(one) & _event_names(before):
        raise ApplicationInvalid(one.name, f"its log event {shared.pop()} belongs to {before.name}")
    meanings, others = one.log_events.fields, before.log_events.fields
    if differ := [name for name in meanings if others.get(name, meanings[name]) != meanings[name]]:
        reason = f"the log field {differ[0]} has another meaning in {before.name}"
        raise ApplicationInvalid(one.name, reason)
    for queue in one.behaviours():
        if any(_overlap(queue, other) for other in before.behaviours()):
            raise ApplicationInvalid(one.name, f"its queue {queue} belongs to {before.name}")


def _overlap(one: str, other: str) -> bool:
    """Whether a queue can match both names; `a.*` matches each name that begins with `a.`."""
    if one.endswith("*") and other.endswith("*"):
        return one[:-1].startswith(other[:-1]) or other[:-1].startswith(one[:-1])
    if one.endswith("*"):
        return other.startswith(one[:-1])
    return one.startswith(other[:-1]) if other.endswith("*") else one == other
