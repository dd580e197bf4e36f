"""Where calls may go: the whole Internet, and what the configuration allows beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network

from towpath.calls.addresses import (
    Address,
    Network,
    behind_translation,
    not_global,
    parse_address,
)
from towpath.calls.errors import CallRefused
from towpath.calls.target import Target, is_name, parse_target, place
from towpath.errors import InvalidOption

_RULE = "must be a network such as 10.0.0.0/8, an address, or a host's name"
_USUAL_PORTS = {80, 443}
_FIRST_FREE_PORT = 1024


class Guard:
    """Refuses every place that is neither global nor allowed.

    *allow* has networks, addresses and exact names of hosts. A name that is allowed may lead
    anywhere: whoever allows it trusts those who answer for it. Raises InvalidOption for an entry
    that is none of these.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        if isinstance(allow, str):  # its letters would be taken for entries
            raise InvalidOption("allow", allow, rule="must be a list; each of it " + _RULE)
        entries = [entry.strip().lower() for entry in allow]
        self._names = frozenset(entry for entry in entries if is_name(entry))
        self._networks = [_network(entry) for entry in entries if entry not in self._names]

    def target(self, url: str) -> Target:
        """The parts of *url*. Raises CallRefused for all that can be known without a resolver."""
        target = parse_target(url)
        if target.host not in self._names and f".{target.host}".endswith(".localhost"):
            raise CallRefused(str(target), "is a name of this machine")
        if parse_address(target.host) is not None:
            self.permit(target.host, target.port, [target.host])
        return target

    def permit(self, host: str, port: int, addresses: Sequence[str]) -> list[str]:
        """*addresses* of *host*, if calls may go to every one of them; else CallRefused.

        One that is refused refuses all: an answer that mixes them is an attempt.
        """
        read = [parse_address(it) for it in addresses]
        for address in read:
            reason = self._reason(host, port, address)
            if reason is not None:
                raise CallRefused(place(host, port), reason)
        return [str(address) for address in read]

    def _reason(self, host: str, port: int, address: Address | None) -> str | None:
        if address is None:
            return "leads to an address with a zone, or to none at all"
        if host in self._names or self._allows(address):
            return None
        if port not in _USUAL_PORTS and port < _FIRST_FREE_PORT:
            return "ports below 1024 other than 80 and 443 are for other protocols"
        kind = not_global(behind_translation(address))
        return kind and f"leads to {kind}"

    def _allows(self, address: Address) -> bool:
        spelled = (address, behind_translation(address))
        return any(it in network for it in spelled for network in self._networks)


def _network(entry: str) -> Network:
    try:
        return ip_network(entry)
    except ValueError as error:
        raise InvalidOption("allow", entry, rule=_RULE) from error
