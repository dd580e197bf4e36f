"""How requests to the GitHub double fail, when a test asks for it."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from towpath.clock import wall_ms
from towpath.testing.github.exchange import ApiRequest

LIMIT = 5000
"""Requests an hour, as GitHub allows them."""


class HangUp(Enum):
    """When the connection is closed instead of an answer."""

    BEFORE = "before"
    """The request is not carried out."""
    AFTER = "after"
    """The request is carried out, and the answer is lost."""


@dataclass
class Trouble:
    """How some requests fail."""

    status: int = 0
    """Of the answer; 0 = the request is answered as usual, once `until` is set."""
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    until: threading.Event | None = None
    """The answer waits for this."""
    hang_up: HangUp | None = None
    method: str = ""
    """Empty = any."""
    path: str = ""
    """A regular expression that is searched in the path."""
    times: int | None = 1
    """How many requests fail; None = all until `calm`."""

    def fits(self, request: ApiRequest) -> bool:
        return self.method in ("", request.method) and bool(re.search(self.path, request.path))


def rate_limit(*, reset_s: int = 60, **more: Any) -> Trouble:
    """403: the hour's requests are used up. It ends in *reset_s* seconds."""
    headers = {
        "x-ratelimit-limit": str(LIMIT),
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": str(wall_ms() // 1000 + reset_s),
    }
    return Trouble(403, "API rate limit exceeded for user ID 1.", headers, **more)


def too_many(*, retry_after_s: int = 1, **more: Any) -> Trouble:
    """429 with Retry-After: a secondary limit."""
    text = "You have exceeded a secondary rate limit."
    return Trouble(429, text, {"retry-after": str(retry_after_s)}, **more)


def answers(status: int, message: str = "", **more: Any) -> Trouble:
    """Any status: 502, 404, …"""
    return Trouble(
        status, message or {404: "Not Found", 502: "Server Error"}.get(status, ""), **more
    )


def slow(until: threading.Event, **more: Any) -> Trouble:
    """The answer comes once *until* is set."""
    return Trouble(until=until, **more)


def hangs_up(when: HangUp = HangUp.BEFORE, **more: Any) -> Trouble:
    """The connection is closed instead of an answer."""
    return Trouble(hang_up=when, **more)
