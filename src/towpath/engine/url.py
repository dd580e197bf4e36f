"""URLs of Redis: which servers, how to reach them, and a form that is safe to show."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from towpath.engine.tls import PARAMETERS, SENTINEL_PARAMETER, Tls
from towpath.errors import InvalidOption

_DEFAULT_PORT = 6379
_SENTINEL_PORT = 26379


class Topology(StrEnum):
    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class ServerUrl(msgspec.Struct, frozen=True):
    """A parsed URL of Redis. `str()` shows it without the password."""

    topology: Topology
    tls: Tls | None
    hosts: tuple[tuple[str, int], ...]
    path: str = ""
    """The Unix socket's path, or the name of the service that the sentinels watch."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    durability: str | None = None
    """The durability class of Redis, for a user who may not read its configuration."""

    def __str__(self) -> str:
        if not self.hosts:
            return f"unix://{self.path}"
        scheme = ("rediss" if self.tls else "redis") + (
            "" if self.topology is Topology.SINGLE else f"+{self.topology}"
        )
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{hosts}/{self.path or self.db}"

    __repr__ = __str__


_SCHEMES = {
    "redis": (Topology.SINGLE, False),
    "rediss": (Topology.SINGLE, True),
    "valkey": (Topology.SINGLE, False),
    "valkeys": (Topology.SINGLE, True),
    "unix": (Topology.SINGLE, False),
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
}
_RULE = (
    "redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://host1,host2/service, "
    "redis+cluster://host1,host2"
)


def _invalid_url(what: str) -> InvalidOption:
    """The error for an invalid URL. Its password may be anywhere, so no part of it is repeated."""
    return InvalidOption("url", "…", rule=f"{what}; must be one of {_RULE}")


def parse_url(url: str) -> ServerUrl:
    """The parts of *url*. Raises InvalidOption, which never repeats a part of the URL."""
    scheme, _, _ = url.partition("://") if isinstance(url, str) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
    if scheme.lower() not in _SCHEMES:
        raise _invalid_url("has an unknown scheme")
    topology, tls = _SCHEMES[scheme.lower()]
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _invalid_url("can't be read") from error
    if parts.fragment:
        raise _invalid_url("has a '#' that must be written as %23")
    query = _parse_query(parts.query, topology, tls=tls)
    credentials, _, places = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    is_socket = scheme.lower() == "unix"
    if is_socket and places:
        raise _invalid_url("must name the absolute path of a socket")
    path, db = _path_and_db(topology, unquote(parts.path), query, is_socket=is_socket)
    return ServerUrl(
        topology=topology,
        tls=_parse_tls(query) if tls else None,
        hosts=() if is_socket else _parse_hosts(places, topology),
        path=path,
        db=db,
        username=unquote(username) or None,
        password=unquote(password) or None,
        sentinel_username=query.get("sentinel_username"),
        sentinel_password=query.get("sentinel_password"),
        durability=_parse_durability(query),
    )


def _parse_query(text: str, topology: Topology, *, tls: bool) -> dict[str, str]:
    """The parameters after the `?`. Raises InvalidOption for an unknown one."""
    known = {"db", "durability", *(PARAMETERS if tls else ())}
    if topology is Topology.SENTINEL:
        known |= {"sentinel_username", "sentinel_password", *({SENTINEL_PARAMETER} if tls else ())}
    query = dict(parse_qsl(text, keep_blank_values=True))
    if unknown := query.keys() - known:
        # What does not look like a name may be a part of a password.
        names = sorted(name for name in unknown if name.isidentifier() and len(name) <= 32)
        without = "" if tls or not PARAMETERS & unknown else "; rediss:// is the scheme for TLS"
        shown = ", ".join(names) or "(not shown)"
        raise _invalid_url(f"has an unknown parameter: {shown}{without}")
    return query


def _parse_durability(query: dict[str, str]) -> str | None:
    declared = query.get("durability")
    if declared not in (None, "memory", "second", "disk"):
        raise _invalid_url("has a durability that is not memory, second or disk")
    return declared


def _parse_tls(query: dict[str, str]) -> Tls:
    try:
        return Tls.of(query)
    except ValueError as error:
        raise _invalid_url(str(error)) from error


def _parse_hosts(places: str, topology: Topology) -> tuple[tuple[str, int], ...]:
    usual = _SENTINEL_PORT if topology is Topology.SENTINEL else _DEFAULT_PORT
    found: list[tuple[str, int]] = []
    for place in places.split(","):
        try:
            parts = urlsplit(f"//{place}")
            found.append((parts.hostname or "", parts.port or usual))
        except ValueError as error:
            raise _invalid_url("has a host that is not host:port") from error
        if not found[-1][0]:
            raise _invalid_url("names no host")
    if topology is Topology.SINGLE and len(found) > 1:
        raise _invalid_url("names several hosts")
    return tuple(found)


def _path_and_db(
    topology: Topology, path: str, query: dict[str, str], *, is_socket: bool
) -> tuple[str, int]:
    if is_socket:
        if len(path) < 2:
            raise _invalid_url("must name the absolute path of a socket")
        return path, _parse_db(query.get("db", "0"))
    first, _, second = path.strip("/").partition("/")
    if topology is Topology.SENTINEL:
        if not first:
            raise _invalid_url("names no service")
        return first, _parse_db(second or query.get("db", "0"))
    db = _parse_db(first or query.get("db", "0"))
    if topology is Topology.CLUSTER and db:
        raise _invalid_url("asks for a database, but a cluster has only 0")
    return "", db


def _parse_db(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4):
        raise _invalid_url("has a database that is not a whole number")
    return int(text)
