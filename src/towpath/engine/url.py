"""Server URLs: which server, how to reach it, and a form that is safe to show."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from towpath.errors import InvalidOption

_DEFAULT_PORT = 6379
_SENTINEL_PORT = 26379


class Topology(StrEnum):
    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class ServerUrl(msgspec.Struct, frozen=True):
    """A parsed URL. `str()` shows it without the password."""

    topology: Topology
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    path: str = ""
    """The Unix socket's path, or the name of the service that the sentinels watch."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None

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


def parse_url(url: str) -> ServerUrl:
    """The parts of *url*. Raises InvalidOption that never repeats a password."""
    scheme = url.partition("://")[0].lower()
    if scheme not in _SCHEMES or "://" not in url:
        raise InvalidOption("url", f"{scheme[:40]}://…", rule=f"must be one of {_RULE}")
    topology, tls = _SCHEMES[scheme]
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    credentials, _, places = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    hosts = () if scheme == "unix" else _hosts(places, topology)
    path, db = _path_and_db(scheme, topology, unquote(parts.path), query)
    return ServerUrl(
        topology=topology,
        tls=tls,
        hosts=hosts,
        path=path,
        db=db,
        username=unquote(username) or None,
        password=unquote(password) or None,
        sentinel_username=query.get("sentinel_username"),
        sentinel_password=query.get("sentinel_password"),
    )


def _hosts(places: str, topology: Topology) -> tuple[tuple[str, int], ...]:
    usual = _SENTINEL_PORT if topology is Topology.SENTINEL else _DEFAULT_PORT
    found: list[tuple[str, int]] = []
    for place in places.split(","):
        try:
            parts = urlsplit(f"//{place}")
            found.append((parts.hostname or "", parts.port or usual))
        except ValueError as error:
            raise InvalidOption("url", place, rule=f"must be host:port; {_RULE}") from error
        if not found[-1][0]:
            raise InvalidOption("url", place, rule=f"names no host; must be one of {_RULE}")
    return tuple(found)


def _path_and_db(
    scheme: str, topology: Topology, path: str, query: dict[str, str]
) -> tuple[str, int]:
    if scheme == "unix":
        if not path.startswith("/"):
            raise InvalidOption("url", path, rule="must be unix:///absolute/path")
        return path, _db(query.get("db", "0"))
    first, _, second = path.strip("/").partition("/")
    if topology is Topology.SENTINEL:
        if not first:
            raise InvalidOption("url", path, rule="names no service: redis+sentinel://host/service")
        return first, _db(second or query.get("db", "0"))
    db = _db(first or query.get("db", "0"))
    if topology is Topology.CLUSTER and db:
        raise InvalidOption("url", path, rule="a cluster has only database 0")
    return "", db


def _db(text: str) -> int:
    if not text.isdecimal():
        raise InvalidOption("url", text, rule="the database must be a whole number")
    return int(text)
