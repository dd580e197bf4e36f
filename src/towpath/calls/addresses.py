"""Which addresses belong to the whole Internet, and what the others are.

The tables follow IANA's registries of special-purpose addresses. They are written out because
Python's own `is_global` differs between its releases, and because it knows no cloud's addresses.
"""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_V4: dict[IPv4Network, str] = {
    IPv4Network(range_): what
    for range_, what in (
        ("0.0.0.0/8", "this machine"),
        ("10.0.0.0/8", "a private network"),
        ("100.64.0.0/10", "a network behind a carrier's translation"),
        ("127.0.0.0/8", "this machine"),
        ("168.63.129.16/32", "a cloud's own services"),  # Azure's: public only by its number
        ("169.254.0.0/16", "this link, or a cloud's own services"),
        ("172.16.0.0/12", "a private network"),
        ("192.0.0.0/24", "protocols of the network"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "relays from IPv6"),
        ("192.168.0.0/16", "a private network"),
        ("198.18.0.0/15", "benchmarks"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "groups"),
        ("240.0.0.0/4", "nobody"),
    )
}

# Outside of 2000::/3 nothing is given out. These names are for the message only.
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
        ("fe80::/10", "this link"),
        ("fec0::/10", "a private network"),
        ("ff00::/8", "groups"),
        ("2001::/32", "tunnels to IPv4"),
        ("2001::/23", "protocols of the network"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "tunnels to IPv4"),
        ("3fff::/20", "documentation"),
    )
}
_TRANSLATED = IPv6Network("64:ff9b::/96")


def parse_address(text: str) -> Address | None:
    """The address that *text* spells; None for one that needs a zone, and for anything else."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return None if getattr(address, "scope_id", None) else address


def behind_translation(address: Address) -> Address:
    """The IPv4 address that an address of NAT64 stands for; any other address itself.

    Where only IPv6 is connected, every IPv4 host is reached that way: the host decides.
    """
    if isinstance(address, IPv6Address) and address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def not_global(address: Address) -> str | None:
    """What kind of address it is, for one that is not of the whole Internet; None for one that is.

    Says the range, never the address: the text may be read by who only knows the name.
    """
    if isinstance(address, IPv4Address):
        return next((_said(net, what) for net, what in _V4.items() if address in net), None)
    named = next((_said(net, what) for net, what in _V6.items() if address in net), None)
    if named is None and address not in _GLOBAL_V6:
        return "an address of nobody"
    return named


def _said(network: Network, what: str) -> str:
    return f"an address of {what} ({network})"
