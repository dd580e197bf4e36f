"""Limits: how much a server process accepts, and how often a key may ask."""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from typing import Annotated

from msgspec import Meta

from towpath.clock import Duration, seconds, steady
from towpath.options import Options

_KEYS_MOST = 10_000


Many = Annotated[int, Meta(ge=1, le=1_000_000)]


class ServerLimits(Options, frozen=True, kw_only=True):
    """What one server process takes on."""

    body: Annotated[int, Meta(ge=1024, le=1024**3)] = 2 * 1024 * 1024
    """Maximum size of a request's body, in bytes."""
    body_within: Duration = seconds(15)
    """How long a body may take to arrive."""
    head_within: Duration = seconds(15)
    """How long the request line and headers may take to arrive."""
    rate: Annotated[int, Meta(ge=0, le=10_000_000)] = 2_000
    """Requests per second and key, with bursts of twice as many; 0 = no limit."""
    streams: Many = 10_000
    """Maximum number of open event streams."""
    streams_per_key: Many = 100
    """Maximum number of open event streams per key."""
    waits: Many = 10_000
    """Maximum number of waiting claims."""
    mcp_hosts: tuple[str, ...] = ()
    """Host names under which /mcp may be called; IP addresses and localhost are always allowed."""
    mcp_origins: tuple[str, ...] = ()
    """Origins whose web pages may call /mcp, such as https://tools.example.com."""
    grace: Duration = seconds(10)
    """How long open requests may continue after SIGTERM."""


DEFAULTS = ServerLimits()


class Rates:
    """A bucket per key: refuses who asks too often."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Count one request. 429 with the time after which there is room again."""
        if not self._rate:
            return
        now = steady()
        full = 2.0 * self._rate
        left, at = self._buckets.get(key, (full, now))
        left = min(full, left + (now - at) * self._rate)
        if left < 1:
            from towpath.web.problems import Refused  # noqa: PLC0415 -- an extra; limits are not

            after = max(1, ceil((1 - left) / self._rate))
            raise Refused(
                429,
                "rate_limited",
                f"more than {self._rate} requests a second with this key",
                remedy="Send fewer, larger requests: most paths take lists.",
                headers={"Retry-After": str(after)},
            )
        self._buckets[key] = (left - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _KEYS_MOST:
            self._buckets.popitem(last=False)
