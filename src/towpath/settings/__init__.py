"""Settings: one tree, filled from flags, variables, a file and defaults, able to explain itself.

The only reader of the environment. In this order, the first that says something decides:

    flags       what the command line was told
    variables   TOWPATH_URL, TOWPATH_WORKER__GRACE=30s; REDIS_URL and DATABASE_URL for the
                addresses; TOWPATH_PASSWORD_FILE and the like name a file that holds a secret
    file        towpath.toml, or [tool.towpath] in pyproject.toml, in the current directory
    default
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from towpath.clock import seconds
from towpath.engine.channel import Limits
from towpath.engine.durability import Durability
from towpath.engine.url import ServerUrl, parse_url
from towpath.errors import InvalidOption
from towpath.settings.groups import (
    CallSettings,
    DeclaredDurability,
    EventSettings,
    HttpSettings,
    LogSettings,
    Names,
    ReviewSettings,
    Time,
    TlsSettings,
    WorkerSettings,
)

PREFIX = "TOWPATH_"
_LINKED = re.compile(r"TOWPATH_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
"""What an orchestrator sets by itself for a service that is called towpath."""
_LINK = re.compile(r"(tcp|udp)://")
SECRET = {
    "url": ("TOWPATH_URL", "REDIS_URL"),
    "password": ("TOWPATH_PASSWORD",),
    "database": ("TOWPATH_DATABASE", "DATABASE_URL"),
    "api_key": ("TOWPATH_API_KEY",),
    "messages_worker_url": ("TOWPATH_MESSAGES_WORKER_URL",),
    "calls.secrets": ("TOWPATH_CALLS__SECRETS",),
    "reviews.github_secrets": ("TOWPATH_REVIEWS__GITHUB_SECRETS",),
    "reviews.gitlab_secrets": ("TOWPATH_REVIEWS__GITLAB_SECRETS",),
    "reviews.reviewer_url": ("TOWPATH_REVIEWS__REVIEWER_URL",),
    "reviews.github_token": ("TOWPATH_REVIEWS__GITHUB_TOKEN",),
    "reviews.gitlab_token": ("TOWPATH_REVIEWS__GITLAB_TOKEN",),
    "events.kafka_options": ("TOWPATH_EVENTS__KAFKA_OPTIONS",),
    "events.webhook_url": ("TOWPATH_EVENTS__WEBHOOK_URL",),
}
"""What may come from a file that a variable names; never repeated in a message."""


# ── the tree ─────────────────────────────────────────────────────────────────────────────


class Settings(BaseSettings):
    """Everything that can be set. `load` makes one, and refuses with InvalidOption."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    url: SecretStr = SecretStr("redis://localhost:6379")
    """The server: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://."""
    username: str | None = None
    """Who logs in at the server; wins over the one in the URL."""
    password: SecretStr | None = None
    """With what; wins over the one in the URL, and keeps it out of there."""
    tls: TlsSettings = TlsSettings()
    database: SecretStr | None = None
    """The ledger: sqlite:///path/to/file.db or postgresql://user@host/name."""
    durability: DeclaredDurability = None
    """What the server promises, where it does not say so itself: memory, second, disk."""
    timeout: Time = seconds(5)
    """How long a command waits for the server; a worker waits as long as it takes."""
    host: str = "127.0.0.1"
    """Where the HTTP server listens; 0.0.0.0 = for everybody who reaches the machine."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """On which port; 0 = a free one."""
    data: Path = Path("towpath-data")
    """Where `towpath up` keeps everything: jobs, database, files."""
    objects: bool = False
    """Whether `towpath up` starts a local object store as well: S3, from the extra `objects`."""
    api_key: SecretStr | None = None
    """The first admin key; none = `up` makes one and shows it once."""
    messages_worker_url: SecretStr | None = None
    """Where messages are pushed to; none = workers pull them."""
    applications: Names = ()
    """Applications of others that are mounted: `module:name`, one or more."""
    http: HttpSettings = HttpSettings()
    calls: CallSettings = CallSettings()
    reviews: ReviewSettings = ReviewSettings()
    events: EventSettings = EventSettings()
    worker: WorkerSettings = WorkerSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        given: dict[str, Any] = dict(cast("Any", init_settings).init_kwargs)
        file = _find_file(given.pop("config", None))
        return (
            InitSettingsSource(settings_cls, given),
            _Variables(settings_cls),
            InitSettingsSource(settings_cls, file.values if file else {}),
        )

    # ── what the others need ─────────────────────────────────────────────────────────────

    @property
    def server(self) -> str:
        """The address with its credentials, for `Engine`. Never show it: `shown` is for that."""
        url, tls = self.url.get_secret_value(), self.tls.wanted.parameters
        if self.username is None and self.password is None and not tls:
            return url
        parsed, parts = parse_url(url), urlsplit(url)
        if tls and parsed.tls is None:
            rule = "is without TLS, but there are settings of tls: write rediss://, or remove them"
            raise InvalidOption("url", str(parsed), rule=rule)
        if tls:
            query = urlencode({**dict(parse_qsl(parts.query)), **tls})
            parts = parts._replace(query=query)
        if self.username is not None or self.password is not None:
            user = self.username or parsed.username or ""
            password = self.password.get_secret_value() if self.password else parsed.password or ""
            place = parts.netloc.rpartition("@")[2]
            login = f"{quote(user, safe='')}:{quote(password, safe='')}@{place}"
            parts = parts._replace(netloc=login)
        return urlunsplit(parts)

    @property
    def shown(self) -> str:
        """The address as it may be shown."""
        return str(self.address)

    @property
    def address(self) -> ServerUrl:
        """The parts of the address, credentials included; its text leaves them out."""
        return parse_url(self.server)

    @property
    def declared(self) -> Durability | None:
        return Durability.parse(self.durability) if self.durability else None

    @property
    def limits(self) -> Limits:
        """How long a command waits for its server."""
        return Limits(answer=self.timeout, give_up=self.timeout)


# ── where values come from ───────────────────────────────────────────────────────────────


class Origin(NamedTuple):
    """Who decided about a value: a kind, and which flag, variable or file."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class _File(NamedTuple):
    path: Path
    values: dict[str, Any]


def _find_file(path: str | Path | None) -> _File | None:
    """The settings in *path*, or in the current directory's towpath.toml or pyproject.toml."""
    if path is not None:
        return _File(Path(path), _toml(Path(path)))
    if (own := Path("towpath.toml")).is_file():
        return _File(own, _toml(own))
    if (project := Path("pyproject.toml")).is_file():
        table: dict[str, Any] = _toml(project).get("tool", {}).get("towpath", {})
        return _File(project, table) if table else None
    return None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        rule = f"can't be read: {error.strerror}"
        raise InvalidOption("config", str(path), rule=rule) from error
    except ValueError as error:
        raise InvalidOption("config", str(path), rule=f"is no TOML: {error}") from error


class _Variables(EnvSettingsSource):
    """TOWPATH_… as pydantic-settings reads them, with REDIS_URL and secrets from files."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        _refuse_unknown()
        found = {name: _secret(names) for name, names in SECRET.items()}
        told = {variable_of(name).lower(): value for name, (_, value) in found.items() if value}
        # An orchestrator sets TOWPATH_PORT=tcp://… for a service that is called towpath.
        own = {name: it for name, it in self.env_vars.items() if not _LINK.match(it or "")}
        for file in _secret_files():
            own.pop(file.lower(), None)
        self.env_vars = {**own, **told}
        self.origins = {name: variable for name, (variable, value) in found.items() if value}


def _secret(names: tuple[str, ...]) -> tuple[str, str]:
    """The first of these variables that is set, or that names a file; and what it says."""
    for name in names:
        value, path = os.environ.get(name, ""), os.environ.get(f"{name}_FILE", "")
        if value and path:
            raise InvalidOption(f"{name}_FILE", path, rule=f"give it or {name}, not both")
        if value:
            return name, value
        if path:
            return f"{name}_FILE", _secret_file(f"{name}_FILE", Path(path))
    return "", ""


def _secret_file(variable: str, path: Path) -> str:
    try:
        return path.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(variable, str(path), rule="must name a file with text") from error


def _secret_files() -> set[str]:
    return {f"{name}_FILE" for names in SECRET.values() for name in names}


def _refuse_unknown() -> None:
    known = [variable_of(leaf.name) for leaf in leaves()]
    files = _secret_files()
    for variable in sorted(os.environ):
        ours = variable.startswith(PREFIX) and not _LINKED.fullmatch(variable)
        if ours and variable not in files.union(known):
            raise InvalidOption(variable, "…", rule=_unknown(variable, known))


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"is no setting; {hint}"


# ── loading and explaining ───────────────────────────────────────────────────────────────


def load(flags: Mapping[str, Any] | None = None) -> Settings:
    """All settings, checked together. *flags* are nested as the tree is; `config` names the file.

    Raises InvalidOption that names the setting, and the nearest one for a name that is none. It
    repeats no value that may be a secret.
    """
    try:
        settings = Settings(**(flags or {}))
        parse_url(settings.server)
    except ValidationError as error:
        raise _refusal(error) from error
    return settings


def _refusal(error: ValidationError) -> InvalidOption:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    known = [leaf.name for leaf in leaves()]
    if first["type"] == "extra_forbidden":
        return InvalidOption(name, "…", rule=_unknown(name, known))
    cause = first.get("ctx", {}).get("error")
    rule = getattr(cause, "rule", None) or first["msg"].removeprefix("Value error, ").lower()
    may_be_told = name in known and name not in SECRET
    return InvalidOption(name, first["input"] if may_be_told else "…", rule=str(rule))


class Leaf(NamedTuple):
    """A setting: its dotted name, its default and its sentence."""

    name: str
    default: Any
    about: str


def leaves(tree: type[BaseModel] = Settings, above: str = "") -> Iterator[Leaf]:
    """Every setting, in the order of the tree."""
    for name, field in tree.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from leaves(type(default), f"{above}{name}.")
        else:
            yield Leaf(f"{above}{name}", default, " ".join((field.description or "").split()))


def origins(flags: Mapping[str, Any] | None = None) -> dict[str, Origin]:
    """Who decided about each setting."""
    given = dict(flags or {})
    file, variables = _find_file(given.pop("config", None)), _Variables(Settings)
    told = variables()

    def origin(name: str) -> Origin:
        if _has(given, name):
            return Origin("flag", f"--{name.rpartition('.')[2].replace('_', '-')}")
        if _has(told, name):
            return Origin("variable", variables.origins.get(name, variable_of(name)))
        if file and _has(file.values, name):
            return Origin("file", str(file.path))
        return Origin("default", "")

    return {leaf.name: origin(leaf.name) for leaf in leaves()}


def variable_of(name: str) -> str:
    """The variable that sets *name*."""
    return f"{PREFIX}{name}".upper().replace(".", "__")


def _has(values: Mapping[str, Any], name: str) -> bool:
    first, _, rest = name.partition(".")
    return first in values and (not rest or _has(values[first], rest))
