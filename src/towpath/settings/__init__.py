"""Settings: one tree, filled from flags, variables, a file and defaults, with their origins.

The first source in this order that has a value decides:

    flags       options of the command line
    variables   TOWPATH_URL, TOWPATH_WORKER__GRACE=30s; REDIS_URL and DATABASE_URL for the
                addresses; TOWPATH_PASSWORD_FILE and the like name a file that holds a secret
    file        towpath.toml, or [tool.towpath] in pyproject.toml, in the current directory
    default

A group of settings is an options class and a name. Groups of the core are fields of `Core`; the
others are passed to `load` as a registry, and a class is only imported if a source has a value for
its group: `settings.of(ItsOptions)`. This package knows no application.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Meta
from msgspec.structs import replace

from towpath.clock import Duration, seconds
from towpath.engine.submit_timeout import GIVE_UP_AFTER, check_submit_timeout
from towpath.engine.tls import Tls
from towpath.engine.url import ServerUrl, parse_url
from towpath.errors import InvalidInput, InvalidOption
from towpath.options import FieldInfo, Options, Secret, fields_of
from towpath.settings.sources import UNSAID, Leaf, Origin, SettingSources, find_file, leaves_of
from towpath.telemetry.options import LogOptions
from towpath.worker.options import WorkerOptions

if TYPE_CHECKING:
    from towpath.engine.channel import Limits
    from towpath.engine.durability import Durability

_Kind = TypeVar("_Kind", bound=Options)


def _durability(value: object) -> object:
    from towpath.engine.durability import Durability  # noqa: PLC0415 -- slow to import

    return str(Durability.parse(value)) if isinstance(value, str) else value


# ── the tree ─────────────────────────────────────────────────────────────────────────────


class CallsOptions(Options, frozen=True, kw_only=True):
    """Calls that go out: pushes, callbacks, webhooks."""

    allow: tuple[str, ...] = ()
    """Private networks, addresses and hosts that outgoing calls may reach:
    `10.0.0.0/8,worker.internal`."""
    secrets: tuple[Secret, ...] = ()
    """Secrets for signing outgoing calls (`whsec_…`); two during a rotation. `up` creates one."""


class Core(Options, frozen=True, kw_only=True):
    """The settings that every installation has; a field with its own options is a group."""

    url: Annotated[Secret, FieldInfo(also=("REDIS_URL",))] = "redis://localhost:6379"
    """URL of Redis or Valkey: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://."""
    username: str | None = None
    """User name for Redis; overrides the one in the URL."""
    password: Secret | None = None
    """Password for Redis; overrides the one in the URL."""
    tls: Tls = Tls()
    database: Annotated[Secret | None, FieldInfo(also=("DATABASE_URL",))] = None
    """URL of the ledger: sqlite:///path/to/file.db or postgresql://user@host/name."""
    durability: Annotated[str | None, FieldInfo(read=_durability)] = None
    """The durability class of Redis, if it does not report one: memory, second, disk."""
    timeout: Duration = seconds(5)
    """How long a command waits for Redis; workers wait without a limit."""
    submit_timeout: Duration = GIVE_UP_AFTER
    """How long a submit, or another call of an app `Towpath()`, waits for Redis. After one such
    wait, calls fail at once until Redis answers. `towpath worker` ignores it."""
    host: str = "127.0.0.1"
    """Address the HTTP server listens on; 0.0.0.0 = all interfaces."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """Port of the HTTP server; 0 = any free one."""
    data: Path = Path("towpath-data")
    """Directory in which `towpath up` keeps jobs, database and files."""
    objects: bool = False
    """Whether `towpath up` also starts a local S3 object store (extra `objects`)."""
    api_key: Secret | None = None
    """The first admin key; none = `up` creates one and shows it once. For commands that call a
    server over HTTP (`agent`, `mcp`, `upload`): the key they use."""
    api_url: str = "http://127.0.0.1:8080"
    """URL of the HTTP server that `agent`, `mcp` and `upload` call."""
    applications: tuple[str, ...] = ()
    """Third-party applications to mount: `module:name`, one or more."""
    calls: CallsOptions = CallsOptions()
    worker: WorkerOptions = WorkerOptions()
    log: LogOptions = LogOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_submit_timeout(self.submit_timeout)


Groups = Mapping[str, Callable[[], type[Options]]]
"""Groups of settings by name; each class is imported when it is needed."""
Registry = Callable[[Core], Groups]
"""Returns the groups beside those of the core; `Core.applications` decides which."""


def no_groups(_: Core) -> Groups:
    return {}


def leaves(groups: Groups) -> Iterator[Leaf]:
    """All settings."""
    yield from leaves_of(Core)
    for name, kind in groups.items():
        yield from leaves_of(kind(), name)


class _LoadedGroups(NamedTuple):
    """The values of groups beside the core's, and the origins of all values, by setting."""

    groups: Groups
    values: dict[str, Any]
    origins: dict[str, Origin]


class Settings(Core, frozen=True, kw_only=True):
    """All settings, as `load` returns them."""

    loaded: Annotated[Any, FieldInfo(secret=True)] = _LoadedGroups({}, {}, {})

    def of(self, kind: type[_Kind]) -> _Kind:
        """The options of the group of *kind*. Raises InvalidOption, which names the setting."""
        name = next(name for name, found in self.loaded.groups.items() if found() is kind)
        own = {leaf.field.name: self.value(leaf.name) for leaf in leaves_of(kind, name)}
        shared = {field.name: field.info.shared for field in fields_of(kind) if field.info.shared}
        with named_by_setting(name, kind):
            return kind(**own, **{name: self.value(place) for name, place in shared.items()})

    def value(self, name: str) -> Any:
        """The value of any setting."""
        group, _, option = name.partition(".")
        if group not in self.loaded.groups:
            found = getattr(self, group)
            return getattr(found, option) if option else found
        if name in self.loaded.values:
            return self.loaded.values[name]
        fields = fields_of(self.loaded.groups[group]())
        return next(field.default for field in fields if field.name == option)

    def leaves(self) -> Iterator[Leaf]:
        """All settings, in the order of the tree."""
        return leaves(self.loaded.groups)

    def origin(self, name: str) -> Origin:
        """The source of a setting's value."""
        return self.loaded.origins.get(name, Origin("default", ""))

    def signing_with(self, secrets: tuple[str, ...]) -> Settings:
        """The same settings, with these secrets for signing outgoing calls."""
        return replace(self, calls=replace(self.calls, secrets=secrets))

    # ── values for the engine ────────────────────────────────────────────────────────────

    @property
    def server(self) -> str:
        """The URL of Redis with its credentials, for `Engine`. Never show it; show `shown`."""
        url, tls = self.url, self.tls.parameters
        if self.username is None and self.password is None and not tls:
            return url
        parsed, parts = parse_url(url), urlsplit(url)
        if tls and parsed.tls is None:
            rule = "is without TLS, but tls settings are set: use rediss://, or remove them"
            raise InvalidOption("url", str(parsed), rule=rule)
        if tls:
            query = urlencode({**dict(parse_qsl(parts.query)), **tls})
            parts = parts._replace(query=query)
        if self.username is not None or self.password is not None:
            user, password = self.username or parsed.username, self.password or parsed.password
            place = parts.netloc.rpartition("@")[2]
            login = f"{quote(user or '', safe='')}:{quote(password or '', safe='')}@{place}"
            parts = parts._replace(netloc=login)
        return urlunsplit(parts)

    @property
    def shown(self) -> str:
        """The URL of Redis without credentials."""
        return str(self.address)

    @property
    def address(self) -> ServerUrl:
        """The parts of the URL, credentials included; its text leaves them out."""
        return parse_url(self.server)

    @property
    def declared(self) -> Durability | None:
        from towpath.engine.durability import Durability  # noqa: PLC0415 -- slow to import

        declared = self.durability or self.address.durability
        return Durability.parse(declared) if declared else None

    @property
    def limits(self) -> Limits:
        """How long a command waits for Redis."""
        from towpath.engine.channel import Limits  # noqa: PLC0415 -- slow to import

        return Limits(answer=self.timeout, give_up=self.timeout)


# ── loading ──────────────────────────────────────────────────────────────────────────────


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    registry: Registry = no_groups,
    passed_over: Callable[[InvalidInput], None] | None = None,
) -> Settings:
    """All settings, checked together. *flags* are nested like the tree; `config` names the file.

    Raises InvalidOption, which names the setting, and suggests a similar one for an unknown name.
    It never has a value that may be a secret. With *passed_over*, an error of an application that
    can't be loaded is passed to it; then no application is loaded, and their settings are ignored.
    """
    given = dict(flags or {})
    sources = SettingSources(given, find_file(given.pop("config", None)))
    core = _core(sources, Core)
    refused = None
    try:
        groups = registry(core)
    except InvalidInput as error:
        if passed_over is None:
            raise
        passed_over(refused := error)
        groups = registry(replace(core, applications=()))
    mentioned = {name: kind for name, kind in groups.items() if sources.mention(name)}
    if refused is None:
        sources.refuse_unknown(list(leaves(mentioned)), lambda: leaves(groups))
    handed = [leaf for name, kind in mentioned.items() for leaf in leaves_of(kind(), name)]
    values = {leaf.name: value for leaf in handed if (value := sources.value(leaf)) is not UNSAID}
    loaded = _LoadedGroups(groups, values, sources.origins)
    return _settings(core, loaded)


def load_core() -> Settings:
    """The settings of the core, for an app without a URL: `Towpath()`. Ignores settings of
    applications. Raises InvalidOption.
    """
    sources = SettingSources({}, find_file(None))
    return _settings(_core(sources, Core), _LoadedGroups({}, {}, sources.origins))


def _settings(core: Core, loaded: _LoadedGroups) -> Settings:
    settings = Settings(
        **{field.name: getattr(core, field.name) for field in fields_of(Core)}, loaded=loaded
    )
    parse_url(settings.server)
    return settings


def _core(sources: SettingSources, kind: type[_Kind], group: str = "") -> _Kind:
    """The values for *kind*, `Core` or one of its groups."""
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        name = f"{group}.{field.name}" if group else field.name
        if isinstance(field.default, Options):
            values[field.name] = _core(sources, type(field.default), name)
        elif (value := sources.value(Leaf(name, field, kind))) is not UNSAID:
            values[field.name] = value
    return kind(**values)


@contextmanager
def named_by_setting(group: str, kind: type[Options]) -> Generator[None]:
    """Make InvalidOption in the block name the setting instead of the option of *kind*."""
    try:
        yield
    except InvalidOption as error:
        field = next((option for option in fields_of(kind) if option.name == error.option), None)
        if field is None:
            raise
        name = field.info.shared or f"{group}.{field.name}"
        if not field.info.secret or error.value == "none":
            raise InvalidOption(name, error.value, rule=error.rule) from error
        raise InvalidOption(name, "…", rule=error.rule) from None
