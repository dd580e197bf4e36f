"""The URL of a call: its parts, read once, by the same rules as the connection is made by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from towpath.calls.addresses import parse_address
from towpath.calls.errors import CallRefused

if TYPE_CHECKING:
    import httpx

_LONGEST = 2048
_PORTS = {"http": 80, "https": 443}
_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_UNREAD = "the URL"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a call goes. Shown as host and port only: the rest may hold tokens."""

    scheme: str
    host: str
    """A name in lower case and ASCII, or an address in its usual spelling."""
    port: int
    path: bytes
    """With the query."""
    authority: bytes
    """What the Host header says."""

    def __str__(self) -> str:
        return place(self.host, self.port)

    __repr__ = __str__


def place(host: str, port: int) -> str:
    """Host and port as people write them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_target(url: str) -> Target:
    """The parts of *url*, or CallRefused, which repeats none of what could not be read.

    A host is a name of letters, digits and hyphens, or an address in its usual spelling. The other
    spellings (octal, hexadecimal, one number, short, with a zone) mean different things to
    different programs: they are refused, whatever they lead to.
    """
    parts = _read(url)
    if parts.scheme not in _PORTS:
        raise CallRefused(_UNREAD, "must begin with http:// or https://")
    if parts.userinfo:
        raise CallRefused(_UNREAD, "must not carry a user or a password")
    host = parts.raw_host.decode("ascii")
    _check_host(host)
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    if not 1 <= port <= 65535:
        raise CallRefused(_UNREAD, "must have a port from 1 to 65535")
    return Target(parts.scheme, host, port, parts.raw_path, parts.netloc)


def is_name(host: str) -> bool:
    """Whether *host* can be a name: no address, nor what some programs read as one."""
    return _NAME.fullmatch(host) is not None and _NUMBER.fullmatch(host) is None


def _read(url: str) -> httpx.URL:
    if not isinstance(url, str) or len(url) > _LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise CallRefused(_UNREAD, f"must be text of at most {_LONGEST} characters")
    import httpx  # noqa: PLC0415 -- an extra; options without a URL are read where it is missing

    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        # Not chained: the reason of the parser repeats parts of the URL.
        raise CallRefused(_UNREAD, "can't be read") from None


def _check_host(host: str) -> None:
    if not host:
        raise CallRefused(_UNREAD, "names no host")
    if is_name(host) or parse_address(host) is not None:
        return
    if host.endswith("."):
        raise CallRefused(_UNREAD, "must name the host without a dot at its end")
    raise CallRefused(_UNREAD, "names no host, or an address in an unusual spelling")
