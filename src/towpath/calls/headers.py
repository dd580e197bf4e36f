"""The headers of a call: those that the caller may choose, and those that it may not."""

from __future__ import annotations

import re
from collections.abc import Mapping

from towpath.errors import InvalidOption

Headers = list[tuple[bytes, bytes]]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]{0,8190}[!-~])?)?")
_OURS = {
    "accept-encoding",  # an answer that is not compressed can't grow beyond its limit
    "connection",
    "content-length",
    "expect",
    "host",  # the name that was checked
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


def request_headers(own: Mapping[str, str], *, authority: bytes) -> Headers:
    """What is sent: *own*, and what the connection needs.

    Raises InvalidOption for a header that is not the caller's to choose, and for one that is none;
    its value is not repeated.
    """
    for name, value in own.items():
        _check(name, value)
    named = {"accept": "*/*", "user-agent": "towpath"} | {it.lower(): own[it] for it in own}
    return [
        (b"host", authority),
        (b"accept-encoding", b"identity"),
        *((name.encode(), value.encode()) for name, value in named.items()),
    ]


def answer_headers(received: Headers) -> dict[str, str]:
    """By name in lower case; several of one name joined by commas."""
    joined: dict[str, str] = {}
    for name, value in received:
        known, text = name.decode("latin-1").lower(), value.decode("latin-1")
        joined[known] = f"{joined[known]}, {text}" if known in joined else text
    return joined


def _check(name: str, value: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidOption("headers", "…", rule="a name must be of letters, digits and hyphens")
    if name.lower() in _OURS:
        raise InvalidOption("headers", name, rule="is set by the connection itself")
    if _VALUE.fullmatch(value) is None:
        raise InvalidOption("headers", name, rule="must have a value in one line of ASCII")
