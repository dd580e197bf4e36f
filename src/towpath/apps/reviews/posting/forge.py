"""Talking to a forge: where its API is, with which token, and what its refusals mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from towpath.apps.outcomes import calling
from towpath.apps.reviews.model import ReviewTask
from towpath.calls.answer import Answer, Next, advice, require_taken
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerTooLarge
from towpath.calls.headers import request_headers
from towpath.calls.target import parse_target
from towpath.clock import ZERO, Duration, days, minutes, seconds, wall_ms
from towpath.errors import InvalidOption
from towpath.worker.verdicts import Discard, Retry

_HIDDEN = 404
"""What forges answer for what is gone, and for what the token may not see: no key would help."""
_PAGE, _PAGES = 50, 20
_LONGEST_REASON = 200


class ForgeApi:
    """A forge's API. The *token* goes to *api* and nowhere else, whatever a task says.

    *host* is the address of its pages, by which its tasks are known. Raises CallRefused for an
    address that is none, and InvalidOption, which does not repeat it, for a token that is none.
    """

    def __init__(
        self, caller: Caller, *, name: str, host: str, api: str, token: str, accept: str
    ) -> None:
        parse_target(host)
        parse_target(api)
        if not token:
            raise InvalidOption("token", "…", rule="must not be empty")
        self.name, self._host, self._api = name, _plain(host), api.rstrip("/")
        self._caller, self._token = caller, token
        self._headers = {"authorization": f"Bearer {token}", "accept": accept}
        request_headers(self._headers, authority=b"")

    def __repr__(self) -> str:
        return f"ForgeApi({self.name})"

    def require_own(self, task: ReviewTask) -> None:
        """Discard a task of another host: the same name may be another repository there."""
        if not is_from(self._host, task):
            raise Discard(f"the task is not from {self._host}, to which its review would go")

    async def get(self, path: str) -> Answer:
        """What is at *path*. Raises Retry or Discard unless it is a success."""
        with calling(self.name):
            answer = await self._caller.get(self._api + path, headers=self._headers)
        self.require_taken(answer)
        return answer

    async def post(self, path: str, content: Mapping[str, Any]) -> Answer:
        """The answer to *content*, whatever its status: see `require_taken`."""
        headers = {**self._headers, "content-type": "application/json"}
        with calling(self.name):
            return await self._caller.post(
                self._api + path, msgspec.json.encode(content), headers=headers
            )

    async def find(self, path: str, mark: str, *, field: str) -> dict[str, Any] | None:
        """The entry of the list at *path* with *mark* in its *field*, among the first thousand.

        A list that is too large to be read counts as one without it: what is posted twice is a
        nuisance, what is never posted is a loss.
        """
        for page in range(1, _PAGES + 1):
            try:
                answer = await self.get(f"{path}?per_page={_PAGE}&page={page}")
            except Discard as discard:
                if isinstance(discard.__cause__, AnswerTooLarge):
                    return None
                raise
            entries = _entries(answer)
            found = next((it for it in entries if mark in str(it.get(field, ""))), None)
            if found is not None or len(entries) < _PAGE:
                return found
        return None

    def require_taken(self, answer: Answer) -> None:
        """Raises Retry or Discard for an answer that is no success, with what the forge says."""
        why = self.said(answer)
        reason = f"{self.name} answered {answer.status}: {why}"
        if answer.status == _HIDDEN:
            raise Discard(reason)
        if (wait := _window(answer, why)) > ZERO:
            raise Retry(reason, after=wait)
        with calling(self.name):
            require_taken(answer, self.name, why=why)

    def said(self, answer: Answer) -> str:
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


def is_from(host: str, task: ReviewTask) -> bool:
    """Whether *task* came from the forge at *host*; one that names no host did."""
    return not task.host or _plain(task.host) == _plain(host)


def _entries(answer: Answer) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(answer.body, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Retry("the forge answered no list") from error


def _window(answer: Answer, why: str) -> Duration:
    """How long the forge's own limit of requests asks to wait, where no Retry-After says it; zero
    = it is not that. GitHub says it with 403 as well as with 429.
    """
    asked = advice(answer)
    if asked.after > ZERO or asked.next not in (Next.LATER, Next.REFUSED):
        return ZERO
    reset = answer.headers.get("x-ratelimit-reset", "")
    if answer.headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
        until = seconds(int(reset[:11]) - wall_ms() // 1000 + 1)
        return min(max(until, seconds(1)), days(1))
    # GitHub asks for a minute at least where it says no more than this.
    return minutes(1) if "rate limit" in why.lower() else ZERO


def _plain(address: str) -> str:
    return address.lower().rstrip("/")
