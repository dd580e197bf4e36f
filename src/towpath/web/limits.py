"""Limits: how much a server process accepts, and how often a key may ask."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Generator
from math import ceil
from time import thread_time
from typing import Annotated, Any

from msgspec import Meta

from towpath.clock import Duration, seconds, steady
from towpath.options import Options

_NAMES_MOST = 10_000


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
    """Requests per second and key, with bursts of twice as many; 0 = no limit. Expensive
    requests of one key may also take no more than half of the server's time, with bursts of 4 s."""
    guesses: Annotated[int, Meta(ge=0, le=1_000_000)] = 20
    """Wrong keys, logins and login links per second and address, with bursts of ten times as many;
    0 = no limit."""
    connections: Many = 30_000
    """Maximum number of connections. It is lower where the process may not open as many files."""
    connections_per_address: Many = 10_000
    """Maximum number of connections, and of requests at a time, per address. A proxy is one address
    for connections."""
    requests_per_key: Many = 2_000
    """Maximum number of requests of one key at a time, streams and waiting claims included; at most
    half of all connections."""
    streams: Many = 10_000
    """Maximum number of open event streams."""
    streams_per_key: Many = 100
    """Maximum number of open event streams per key."""
    waits: Many = 10_000
    """Maximum number of waiting claims."""
    waits_per_key: Many = 1_000
    """Maximum number of waiting claims per key."""
    logins_per_key: Many = 50
    """Maximum number of logins of the dashboard per key; another one ends the oldest."""
    mcp_hosts: tuple[str, ...] = ()
    """Host names under which /mcp may be called; IP addresses and localhost are always allowed."""
    mcp_origins: tuple[str, ...] = ()
    """Origins whose web pages may call /mcp, such as https://tools.example.com."""
    grace: Duration = seconds(10)
    """How long open requests may continue after SIGTERM."""


DEFAULTS = ServerLimits()


class _Buckets:
    """Tokens by name: *rate* more a second, up to *full*. Those used least recently are forgotten.

    A bucket may be emptied below zero: then it takes longer to have tokens again.
    """

    def __init__(self, rate: float, full: float) -> None:
        self._rate, self._full = rate, full
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, name: str, amount: float = 1) -> float:
        """Seconds until there are *amount* tokens; 0 = there are."""
        return max(0.0, (amount - self._left(name)) / self._rate)

    def take(self, name: str, amount: float = 1) -> None:
        """Take tokens, whether there are enough or not; a negative *amount* gives some back."""
        self._buckets[name] = (min(self._full, self._left(name) - amount), steady())
        self._buckets.move_to_end(name)
        if len(self._buckets) > _NAMES_MOST:
            self._buckets.popitem(last=False)

    def _left(self, name: str) -> float:
        left, at = self._buckets.get(name, (self._full, 0.0))
        return min(self._full, left + (steady() - at) * self._rate)


_SHARE = 0.5
"""The part of the server's processor time that expensive requests of one key may take."""
_TIME_MOST = 4.0
"""Seconds of processor time that one key may use at once."""
_EACH = 40e-6
"""Seconds of processor time that an item of a page usually takes."""
_EXPENSIVE = 0.005
"""Seconds of processor time; what costs less is bounded by the number of requests."""


class Rates:
    """Refuses a key that asks too often, or for too much.

    What a request costs is known when it was answered. Until then it counts as much as the last
    ones of its key did, or as the page that it asks for usually does, so that a key can't have many
    expensive ones under way at once.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._requests = _Buckets(rate, 2 * rate) if rate else None
        self._time = _Buckets(_SHARE, _TIME_MOST)
        self._expected: OrderedDict[str, float] = OrderedDict()

    def take(self, key: str, *, size: int = 0) -> float:
        """Count one request for a page of that *size*: the seconds that it is expected to cost. 429
        with the time after which there is room again.
        """
        if self._requests is None:
            return 0
        expected = max(self._expected.get(key, 0), size * _EACH)
        if expected <= _EXPENSIVE:
            expected = 0
        if wait := max(self._requests.wait(key), self._time.wait(key, 0)):
            raise _too_often(
                "rate_limited",
                f"more than {self._rate} requests a second with this key, or too expensive ones",
                "Send fewer, larger requests: most paths take lists. Ask for smaller pages.",
                wait,
            )
        self._requests.take(key)
        if expected:
            self._time.take(key, expected)
        return expected

    def settle(self, key: str, expected: float, seconds: float) -> None:
        """A request that was *expected* to cost so much has used that much processor time."""
        if self._requests is None:
            return
        cost = seconds if seconds > _EXPENSIVE else 0.0
        if cost != expected:
            self._time.take(key, cost - expected)
        before = self._expected.pop(key, 0.0)
        # One that is unusual changes little, and some are always let in.
        mean = min(before + (cost - before) / 4, _TIME_MOST / 16)
        if mean > _EXPENSIVE / 4:
            self._expected[key] = mean
            if len(self._expected) > _NAMES_MOST:
                self._expected.popitem(last=False)


class Metered:
    """Awaits *answering*, and adds up the processor time of its steps in `seconds`.

    Other requests run between the steps, so the time from begin to end would say nothing.
    """

    __slots__ = ("_steps", "seconds")

    def __init__(self, answering: Awaitable[None]) -> None:
        self._steps = answering.__await__()
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, None]:
        thrown: BaseException | None = None
        while True:
            began = thread_time()
            try:
                awaited = self._steps.send(None) if thrown is None else self._steps.throw(thrown)
            except StopIteration:
                return
            finally:
                self.seconds += thread_time() - began
            try:
                thrown = None
                yield awaited
            except GeneratorExit:
                self._steps.close()
                raise
            except BaseException as error:  # noqa: BLE001 -- given to the request, as `await` does
                thrown = error


class Guesses:
    """Refuses an address that sends too many wrong keys, logins and links."""

    def __init__(self, rate: int) -> None:
        self._buckets = _Buckets(rate, 10 * rate) if rate else None

    def take(self, address: str) -> None:
        """Count a try before it is looked up. 429 with the time after which to try again."""
        if self._buckets is None:
            return
        if wait := self._buckets.wait(address):
            raise _too_often(
                "too_many_guesses",
                "too many wrong keys or logins from this address",
                "Use a valid key, and wait for as long as `Retry-After` says.",
                wait,
            )
        self._buckets.take(address)

    def give_back(self, address: str) -> None:
        """The try was right: it does not count."""
        if self._buckets is not None:
            self._buckets.take(address, -1)


def _too_often(code: str, detail: str, remedy: str, wait: float) -> Exception:
    from towpath.web.problems import Refused  # noqa: PLC0415 -- an extra; limits are not

    headers = {"Retry-After": str(max(1, ceil(wait)))}
    return Refused(429, code, detail, remedy=remedy, headers=headers)
