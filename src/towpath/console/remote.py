"""The HTTP client of commands: the server's URL, the key, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self, cast
from urllib.parse import urlsplit

import msgspec

from towpath.calls.answer import CallAnswer, Next, advice
from towpath.calls.caller import Caller
from towpath.clock import Duration, seconds
from towpath.console.exits import RemoteRefused
from towpath.console.verb import Session
from towpath.errors import InvalidOption, RetryAdvice

_NOTHING: Mapping[str, str] = MappingProxyType({})
_LARGEST = 8 << 20
LONGEST_CALL = seconds(90)
"""Longer than the longest time that a request may wait at the server."""


def _refusal_of(answer: CallAnswer) -> RemoteRefused:
    later = advice(answer).next is Next.LATER
    return RemoteRefused(
        answer.status, _problem(answer.body), RetryAdvice.LATER if later else RetryAdvice.NEVER
    )


def _problem(body: bytes) -> dict[str, Any]:
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class ServerAnswer(NamedTuple):
    """A successful response of the server."""

    status: int
    content: Any
    """The decoded body; None if it is empty (204)."""
    date: str
    """The header `Date`: the time by the server's clock."""


class Remote:
    """The server at *url*, called with *key*. The user chose the address, so it may be a private
    one.

    A call takes at most *within*, and is not repeated.
    """

    def __init__(self, url: str, key: str, *, within: Duration = LONGEST_CALL) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidOption("api_url", url, rule="must be an http or https URL")
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"}
        self._caller = Caller(
            allow=(parts.hostname,), timeout=within, largest_answer=_LARGEST, connections=8
        )

    @classmethod
    def of(cls, session: Session, url: str | None, *, within: Duration = LONGEST_CALL) -> Self:
        """The server that the settings name, or *url*. Raises InvalidOption without a key."""
        settings = session.settings
        if settings.api_key is None:
            rule = "set TOWPATH_API_KEY, or TOWPATH_API_KEY_FILE; `towpath keys create` makes one"
            raise InvalidOption("api_key", "", rule=rule)
        return cls(url or settings.api_url, settings.api_key, within=within)

    async def __aenter__(self) -> Self:
        await self._caller.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._caller.__aexit__()

    async def answer(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = _NOTHING
    ) -> CallAnswer:
        """The response, whatever its status. Raises CallFailed if there is none."""
        kind = {"content-type": "application/json"} if body else _NOTHING
        sent = {**self._headers, **kind, **headers}
        return await self._caller.call(method, self.url + path, headers=sent, body=body or None)

    async def post(
        self, path: str, content: Any, headers: Mapping[str, str] = _NOTHING
    ) -> ServerAnswer:
        """Post *content* to *path*. Raises RemoteRefused, CallFailed."""
        answer = await self.answer("POST", path, msgspec.json.encode(content), headers)
        if answer.status >= 300:
            raise _refusal_of(answer)
        content = msgspec.json.decode(answer.body) if answer.body else None
        return ServerAnswer(answer.status, content, answer.headers.get("date", ""))
