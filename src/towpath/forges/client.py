"""A forge's API: where it is, with which token, page by page, and what its refusals mean.

Calls go through the guard of `calls`, and raise its errors: AnswerRefused for what the forge may
take later (`after` says when), RefusedForGood for what it never will, CallFailed for no answer.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from towpath.calls.answer import FINAL, Advice, CallAnswer, Next, advice, require_taken
from towpath.calls.caller import Caller, request_headers
from towpath.calls.errors import AnswerRefused, AnswerTooLarge
from towpath.calls.guard import parse_target
from towpath.clock import ZERO, Duration, days, minutes, seconds, steady, wall_ns
from towpath.errors import InvalidOption
from towpath.forges import GITHUB, GITLAB

_HIDDEN, _UNCHANGED = 404, 304
"""404 is what forges answer for what is gone, and for what the token may not see."""
_ABSENT = (404, 410, 451)
_LIMITED = (403, 429)
_PAGE, _PAGES = 50, 20
_LONGEST_REASON = 200
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,<]*\brel="?next"?')
_PAGE_NUMBER = re.compile(r"[0-9]{1,9}")


class ForgePage(msgspec.Struct, frozen=True):
    """Some entries of a list."""

    entries: list[dict[str, Any]]
    etag: str
    """To ask later whether anything has changed; empty where the forge gives none."""
    next: str | None
    """Where the next page is; None = this was the last."""


class ForgeClient:
    """Calls the API of one forge. The *token* goes to *api* and nowhere else, whatever it answers.

    *host* is the address of its pages, by which what comes from it is known. Once the forge has
    said that its rate limit is reached, it is left alone as long as it asks: calls fail
    with the same refusal, and send nothing. Raises CallRefused for an address that is none, and
    InvalidOption, which does not repeat it, for a token that is none.
    """

    def __init__(
        self, caller: Caller, *, name: str, host: str, api: str, token: str, accept: str
    ) -> None:
        parse_target(host)
        parse_target(api)
        if not token:
            raise InvalidOption("token", "…", rule="must not be empty")
        self.name, self.host, self._api = name, host.rstrip("/"), api.rstrip("/")
        self._caller, self._token = caller, token
        self._headers = {"authorization": f"Bearer {token}", "accept": accept}
        request_headers(self._headers, authority=b"")
        self._limited, self._until = 0, 0.0

    @classmethod
    def github(
        cls, caller: Caller, *, token: str, host: str = GITHUB, api: str | None = None
    ) -> ForgeClient:
        """The GitHub at *host*: github.com, or one's own with its API at /api/v3, or at *api*."""
        own = host.rstrip("/")
        where = api or ("https://api.github.com" if own.lower() == GITHUB else f"{own}/api/v3")
        accept = "application/vnd.github+json"
        return cls(caller, name="GitHub", host=host, api=where, token=token, accept=accept)

    @classmethod
    def gitlab(
        cls, caller: Caller, *, token: str, host: str = GITLAB, api: str | None = None
    ) -> ForgeClient:
        """The GitLab at *host*, with its API at /api/v4, or at *api*."""
        where = api or f"{host.rstrip('/')}/api/v4"
        accept = "application/json"
        return cls(caller, name="GitLab", host=host, api=where, token=token, accept=accept)

    def __repr__(self) -> str:
        return f"ForgeClient({self.name})"

    # ── questions ────────────────────────────────────────────────────────────────────────

    async def get(self, path: str) -> CallAnswer:
        """What is at *path*. Raises AnswerRefused unless it is a success."""
        answer = await self._call("GET", path)
        self.require_taken(answer)
        return answer

    async def look(self, path: str) -> CallAnswer:
        """What is at *path*, whatever its status: see `require_taken` and `moved`."""
        return await self._call("GET", path)

    def moved(self, answer: CallAnswer) -> str | None:
        """Where the forge says that what was asked for is now, as a path of its API."""
        if not 300 <= answer.status < 400 or answer.status == _UNCHANGED:
            return None
        there, here = urlsplit(answer.headers.get("location", "")), urlsplit(self._api)
        inside = there.path.startswith(f"{here.path}/")
        # The path alone counts: the token goes nowhere else.
        return there.path[len(here.path) :] if inside and there.path != here.path else None

    async def page(self, path: str, *, etag: str = "") -> ForgePage | None:
        """The page at *path*, or at the `next` of another one; None = as it was with *etag*.

        An answer that nothing has changed costs none of GitHub's limit. Raises AnswerRefused, also
        for what is no list.
        """
        named = {"if-none-match": etag} if etag else {}
        answer = await self._call("GET", path, headers=named)
        if etag and answer.status == _UNCHANGED:
            return None
        self.require_taken(answer)
        return ForgePage(self._entries(answer), answer.headers.get("etag", ""), _next(path, answer))

    async def pages(self, path: str, *, most: int = _PAGES) -> AsyncGenerator[ForgePage]:
        """The pages of the list at *path*, *most* at most."""
        following: str | None = path
        for _ in range(most):
            page = await self.page(following)
            if page is None:
                return
            yield page
            following = page.next
            if following is None:
                return

    async def find(self, path: str, mark: str, *, field: str) -> dict[str, Any] | None:
        """The entry of the list at *path* with *mark* in its *field*, among the first thousand.

        A list that is too large to be read counts as one without it: what is posted twice is a
        nuisance, what is never posted is a loss.
        """
        try:
            async for page in self.pages(f"{path}?per_page={_PAGE}"):
                for entry in page.entries:
                    if mark in str(entry.get(field, "")):
                        return entry
        except AnswerTooLarge as large:
            self.require_taken(CallAnswer(large.status, {}, b""))
        return None

    # ── changes ──────────────────────────────────────────────────────────────────────────

    async def send(self, method: str, path: str, content: Mapping[str, Any]) -> CallAnswer:
        """The answer to *content*, whatever its status: see `require_taken`."""
        named = {"content-type": "application/json"}
        body = msgspec.json.encode(content)
        return await self._call(method, path, headers=named, body=body)

    async def remove(self, path: str) -> CallAnswer:
        """The answer to a removal of what is at *path*, whatever its status."""
        return await self._call("DELETE", path)

    async def post(self, path: str, content: Mapping[str, Any]) -> CallAnswer:
        return await self.send("POST", path, content)

    # ── what its answers mean ────────────────────────────────────────────────────────────

    def lacks(self, answer: CallAnswer) -> bool:
        """Whether the forge says that it has no such thing, or none for this token."""
        return answer.status in _ABSENT

    def lasting(self, answer: CallAnswer) -> bool:
        """Whether the forge will never take the same call."""
        return _asked(answer, "").next in FINAL

    def require_taken(self, answer: CallAnswer) -> None:
        """Raises AnswerRefused for an answer that is no success, with what the forge says."""
        why = self.said(answer)
        require_taken(answer, self.name, asked=_asked(answer, why), why=why)

    def said(self, answer: CallAnswer) -> str:
        """The forge's own words in one line: it is the operator's, and knows what is missing."""
        if answer.status < 300:
            return ""
        try:
            fields: Any = msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        words = cast("dict[str, Any]", fields).get("message") if isinstance(fields, dict) else None
        line = " ".join(str(words or "").replace(self._token, "…").split())
        return line[:_LONGEST_REASON]

    def _entries(self, answer: CallAnswer) -> list[dict[str, Any]]:
        try:
            return msgspec.json.decode(answer.body, type=list[dict[str, Any]])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AnswerRefused(self.name, answer.status, "not a list") from error

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _call(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> CallAnswer:
        if (left := self._until - steady()) > 0:
            why = "its rate limit is reached"
            raise AnswerRefused(self.name, self._limited, why, after=seconds(left))
        sent = {**self._headers, **(headers or {})}
        answer = await self._caller.call(method, self._api + path, headers=sent, body=body or None)
        asked = _asked(answer, self.said(answer))
        if answer.status in _LIMITED and asked.after > ZERO:
            self._limited, self._until = answer.status, steady() + asked.after.total_seconds()
        return answer


def _next(path: str, answer: CallAnswer) -> str | None:
    """The page behind the one at *path*. Both forges link it; GitLab also gives its number.

    Of the link only the query counts. The token goes nowhere else, and a forge behind a proxy may
    know itself by another address.
    """
    place, _, query = path.partition("?")
    if found := _NEXT.search(answer.headers.get("link", "")):
        return f"{place}?{urlsplit(found[1]).query}"
    number = answer.headers.get("x-next-page", "")
    if _PAGE_NUMBER.fullmatch(number) is None:
        return None
    kept = [(name, value) for name, value in parse_qsl(query) if name != "page"]
    return f"{place}?{urlencode([*kept, ('page', number)])}"


def _asked(answer: CallAnswer, why: str) -> Advice:
    """What a forge means by a status, where it is not what all mean by it."""
    asked = advice(answer)
    if answer.status == _HIDDEN:
        return Advice(Next.NEVER)
    if asked.after > ZERO or asked.next not in (Next.LATER, Next.REFUSED):
        return asked
    return Advice(asked.next, _window(answer.headers, why))


def _window(headers: Mapping[str, str], why: str) -> Duration:
    """How long the forge's own limit of requests asks to wait, where no Retry-After says it; zero
    = it is not that. GitHub says it with 403 as well as with 429.
    """
    for prefix in ("x-ratelimit", "ratelimit"):
        reset = headers.get(f"{prefix}-reset", "")
        if headers.get(f"{prefix}-remaining") == "0" and reset.isascii() and reset.isdecimal():
            # A second more: the forge's clock has whole seconds.
            until = seconds(int(reset[:11]) + 1 - wall_ns() / 1e9)
            return min(max(until, seconds(1)), days(1))
    # GitHub asks for a minute at least where it says no more than this.
    return minutes(1) if "rate limit" in why.lower() else ZERO
