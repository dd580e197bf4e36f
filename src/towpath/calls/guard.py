"""Where calls may go: to global addresses, and to what the configuration allows in addition.

The tables follow IANA's registries of special-purpose addresses. They are written out because
`is_global` differs between releases of Python and does not know the addresses of clouds. A URL is
parsed once; the connection uses the parts that were checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TYPE_CHECKING

from towpath.calls.errors import CallRefused
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    import httpx


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_V4: dict[IPv4Network, str] = {
    IPv4Network(range_): what
    for range_, what in (
        ("0.0.0.0/8", "this machine"),
        ("10.0.0.0/8", "a private network"),
        ("100.64.0.0/10", "a provider's shared network (NAT)"),
        ("127.0.0.0/8", "this machine"),
        ("168.63.129.16/32", "a cloud's own services"),  # Azure's, although in a public range
        ("169.254.0.0/16", "the local link, or a cloud's own services"),
        ("172.16.0.0/12", "a private network"),
        ("192.0.0.0/24", "network protocols"),
        ("192.0.2.0/24", "a network for documentation"),
        ("192.88.99.0/24", "IPv6 relays"),
        ("192.168.0.0/16", "a private network"),
        ("198.18.0.0/15", "a network for benchmarks"),
        ("198.51.100.0/24", "a network for documentation"),
        ("203.0.113.0/24", "a network for documentation"),
        ("224.0.0.0/4", "multicast groups"),
        ("240.0.0.0/4", "a reserved network"),
    )
}

# Nothing outside 2000::/3 is assigned; for those ranges, _V6 only improves the message.
_GLOBAL_V6 = IPv6Network("2000::/3")
_V6: dict[IPv6Network, str] = {
    IPv6Network(range_): what
    for range_, what in (
        ("::/128", "this machine"),
        ("::1/128", "this machine"),
        ("::ffff:0:0/96", "IPv4, written as IPv6"),
        ("::/96", "IPv4, written as IPv6"),
        ("64:ff9b:1::/48", "a translation to a private network"),
        ("fc00::/7", "a private network"),
        ("fe80::/10", "the local link"),
        ("fec0::/10", "a private network"),
        ("ff00::/8", "multicast groups"),
        ("2001::/32", "IPv4 tunnels"),
        ("2001::/23", "network protocols"),
        ("2001:db8::/32", "a network for documentation"),
        ("2002::/16", "IPv4 tunnels"),
        ("3fff::/20", "a network for documentation"),
    )
}
_TRANSLATED = IPv6Network("64:ff9b::/96")


def parse_address(text: str) -> Address | None:
    """Parse *text* as an address; None if it is none, or has a zone (`fe80::1%eth0`)."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return None if getattr(address, "scope_id", None) else address


def behind_translation(address: Address) -> Address:
    """Return the IPv4 address inside a NAT64 address; any other address unchanged.

    In networks with IPv6 only, every IPv4 host is reached through NAT64, so the IPv4 address
    decides whether the call is allowed.
    """
    if isinstance(address, IPv6Address) and address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def not_global(address: Address) -> str | None:
    """Describe the range of *address* if it is not global; None if it is.

    The text names the range, never the address: its reader may not know what the name resolves to.
    """
    if isinstance(address, IPv4Address):
        return next(
            (_describe_range(net, what) for net, what in _V4.items() if address in net), None
        )
    named = next((_describe_range(net, what) for net, what in _V6.items() if address in net), None)
    if named is None and address not in _GLOBAL_V6:
        return "an unassigned address"
    return named


def _describe_range(network: Network, what: str) -> str:
    return f"an address of {what} ({network})"


# ── URLs ─────────────────────────────────────────────────────────────────────────────────

_LONGEST = 2048
_PORTS = {"http": 80, "https": 443}
_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_UNREAD = "the URL"


@dataclass(frozen=True, slots=True)
class CallTarget:
    """Where a call goes. Its repr shows host and port only: path and query may hold tokens."""

    scheme: str
    host: str
    """A name in lower case and ASCII, or an address in its usual form."""
    port: int
    path: bytes
    """The path with the query."""
    authority: bytes
    """The value of the Host header."""

    def __str__(self) -> str:
        return place(self.host, self.port)

    __repr__ = __str__


def place(host: str, port: int) -> str:
    """Format host and port as people write them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_target(url: str) -> CallTarget:
    """Parse *url*. Raises CallRefused, which does not repeat a URL that can't be read.

    A host is a name of letters, digits and hyphens, or an address in its usual form. Other forms
    of addresses (octal, hexadecimal, one number, short, with a zone) are refused, because programs
    interpret them differently.
    """
    parts = _parse_url(url)
    if parts.scheme not in _PORTS:
        raise CallRefused(_UNREAD, "must begin with http:// or https://")
    if parts.userinfo:
        raise CallRefused(_UNREAD, "must not contain a user or a password")
    host = parts.raw_host.decode("ascii")
    _check_host(host)
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    if not 1 <= port <= 65535:
        raise CallRefused(_UNREAD, "must have a port from 1 to 65535")
    return CallTarget(parts.scheme, host, port, parts.raw_path, parts.netloc)


def is_name(host: str) -> bool:
    """Whether *host* can be a name: no address, and no number that some programs take for one."""
    return _NAME.fullmatch(host) is not None and _NUMBER.fullmatch(host) is None


def _parse_url(url: str) -> httpx.URL:
    if not isinstance(url, str) or len(url) > _LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise CallRefused(_UNREAD, f"must be text of at most {_LONGEST} characters")
    import httpx  # noqa: PLC0415 -- an extra; options without a URL are read where it is missing

    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        # Not chained: the parser's error repeats parts of the URL.
        raise CallRefused(_UNREAD, "can't be read") from None


def _check_host(host: str) -> None:
    if not host:
        raise CallRefused(_UNREAD, "names no host")
    if is_name(host) or parse_address(host) is not None:
        return
    if host.endswith("."):
        raise CallRefused(_UNREAD, "must name the host without a trailing dot")
    raise CallRefused(_UNREAD, "names no host, or an address in an unusual form")


# ── what is allowed ──────────────────────────────────────────────────────────────────────

_RULE = "must be a network such as 10.0.0.0/8, an address, or a host's name"
_USUAL_PORTS = {80, 443}
_FIRST_FREE_PORT = 1024


class Guard:
    """Refuses every address that is neither global nor allowed.

    *allow* has networks, addresses and exact host names. An allowed name may resolve to any
    address: to allow it means to trust its DNS. Raises InvalidOption for any other entry.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        if isinstance(allow, str):  # each of its characters would become an entry
            raise InvalidOption("allow", allow, rule="must be a list; each entry " + _RULE)
        entries = [entry.strip().lower() for entry in allow]
        self._names = frozenset(entry for entry in entries if is_name(entry))
        self._networks = [_network(entry) for entry in entries if entry not in self._names]

    def target(self, url: str) -> CallTarget:
        """Parse and check *url* without resolving its name. Raises CallRefused."""
        target = parse_target(url)
        if target.host not in self._names and f".{target.host}".endswith(".localhost"):
            raise CallRefused(str(target), "is a name of this machine itself")
        if parse_address(target.host) is not None:
            self.permit(target.host, target.port, [target.host])
        return target

    def permit(self, host: str, port: int, addresses: Sequence[str]) -> list[str]:
        """Return *addresses* of *host* if all of them are allowed. Raises CallRefused.

        One forbidden address refuses all: mixing both kinds in one DNS answer suggests an attack.
        """
        read = [parse_address(address) for address in addresses]
        for address in read:
            reason = self._reason(host, port, address)
            if reason is not None:
                raise CallRefused(place(host, port), reason)
        return [str(address) for address in read]

    def _reason(self, host: str, port: int, address: Address | None) -> str | None:
        if address is None:
            return "leads to an address with a zone, or to no address"
        if host in self._names or self._allows(address):
            return None
        if port not in _USUAL_PORTS and port < _FIRST_FREE_PORT:
            return "of the ports below 1024, only 80 and 443 are allowed"
        kind = not_global(behind_translation(address))
        return kind and f"leads to {kind}"

    def _allows(self, address: Address) -> bool:
        spelled = (address, behind_translation(address))
        return any(spelling in network for spelling in spelled for network in self._networks)


def _network(entry: str) -> Network:
    try:
        return ip_network(entry)
    except ValueError as error:
        raise InvalidOption("allow", entry, rule=_RULE) from error
