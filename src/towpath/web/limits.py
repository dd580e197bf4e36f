"""Limits: how much a server process accepts, and how many requests a key may send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable
from math import ceil
from time import thread_time
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from towpath.clock import Duration, seconds, steady
from towpath.options import Options
from towpath.recent import RecentCache

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
    credential_share: Annotated[int, Meta(ge=1, le=100)] = 10
    """Percent of the limits of a key (rate, requests, streams, waits) that one upload credential
    gets. All credentials of a key together get as much as the key has itself, beside it."""
    logins_per_key: Many = 50
    """Maximum number of logins of the dashboard per key; another one ends the oldest."""
    mcp_hosts: tuple[str, ...] = ()
    """Host names under which /mcp may be called; IP addresses and localhost are always allowed."""
    mcp_origins: tuple[str, ...] = ()
    """Origins whose web pages may call /mcp, such as https://tools.example.com."""
    grace: Duration = seconds(10)
    """How long open requests may continue after SIGTERM."""


DEFAULTS = ServerLimits()
_ALL = "*"


class Account(NamedTuple):
    """Whose limits a request counts for: those of a key, or of a credential that the key issued.

    A credential is in the hands of a stranger. So it has a small share of a key's limits, and all
    credentials of a key together have limits of their own, apart from the key's: a client that
    uses up one credential blocks neither the key nor the holders of other credentials.
    """

    key: str
    credential: str = ""
    """Empty = the key itself."""

    @property
    def is_share(self) -> bool:
        """Whether this is the account of one credential."""
        return self.credential not in ("", _ALL)

    @property
    def named(self) -> str:
        """The account's name in error texts."""
        if self.credential == _ALL:
            return "all credentials of the key"
        return "this credential" if self.credential else "this key"

    def counted(self) -> tuple[Account, ...]:
        """The accounts that a request counts for: also that of all credentials, for one of them."""
        return (self, Account(self.key, _ALL)) if self.is_share else (self,)

    def limit(self, of_key: int, share: int) -> int:
        """The limit of this account, where a key has *of_key* and a credential *share* percent."""
        return max(1, of_key * share // 100) if self.is_share else of_key


class _Buckets:
    """Token buckets by name: each gains *rate* tokens a second, up to *full*. Drops those that were
    used least recently.

    A bucket may go below zero: then it takes longer until it has tokens again.
    """

    def __init__(self, rate: float, full: float) -> None:
        self._rate, self._full = rate, full
        self._buckets = RecentCache[Hashable, tuple[float, float]](_NAMES_MOST)

    def wait(self, name: Hashable, amount: float = 1) -> float:
        """Seconds until there are *amount* tokens; 0 = there are enough now."""
        return max(0.0, (amount - self._tokens_left(name)) / self._rate)

    def take(self, name: Hashable, amount: float = 1) -> None:
        """Take tokens, whether there are enough or not; a negative *amount* gives some back."""
        self._buckets.put(name, (min(self._full, self._tokens_left(name) - amount), steady()))

    def _tokens_left(self, name: Hashable) -> float:
        left, at = self._buckets.get(name) or (self._full, 0.0)
        return min(self._full, left + (steady() - at) * self._rate)


_SHARE = 0.5
"""The part of the server's processor time that expensive requests of one key may take."""
_TIME_MOST = 4.0
"""Seconds of processor time that one key may use at once."""
_EACH = 40e-6
"""Seconds of processor time that an item of a page usually takes."""
_EXPENSIVE = 0.005
"""Seconds of processor time. A request that costs less counts only as one request."""


class _Allowance:
    """The requests and the processor time that accounts may use; *part* = 1 for a key, less for a
    credential.
    """

    def __init__(self, rate: float, part: float = 1) -> None:
        self.rate = rate * part
        self.requests = _Buckets(rate * part, max(1, 2 * rate * part))
        self.time = _Buckets(_SHARE * part, _TIME_MOST * part)

    def wait(self, account: Account) -> float:
        """Seconds until the account may send another request."""
        return max(self.requests.wait(account), self.time.wait(account, 0))


class Rates:
    """Refuses a key, or a credential of one, that asks too often, or for too much.

    The cost of a request is known when it is answered. Until then it counts as much as the last
    requests of its account did, or as much as a page of that size usually costs, so that a key
    can't run many expensive requests at once.
    """

    def __init__(self, rate: int, share: int = DEFAULTS.credential_share) -> None:
        self._of_key = _Allowance(rate) if rate else None
        self._of_credential = _Allowance(rate, share / 100) if rate else None
        self._expected = RecentCache[Account, float](_NAMES_MOST)

    def _allowances(self, account: Account) -> list[tuple[Account, _Allowance]]:
        """The accounts that a request counts for, its own first, each with its allowance; empty if
        there is no limit.
        """
        return [
            (each, allowance)
            for each in account.counted()
            if (allowance := self._of_credential if each.is_share else self._of_key)
        ]

    def take(self, account: Account, *, size: int = 0) -> float:
        """Count one request for a page of that *size*. Returns the seconds it is expected to cost.

        Raises Refused (429) with the time to wait.
        """
        allowances = self._allowances(account)
        if not allowances:
            return 0
        expected = max(self._expected.get(account) or 0, size * _EACH)
        if expected <= _EXPENSIVE:
            expected = 0
        for each, allowance in allowances:
            if wait := allowance.wait(each):
                raise _too_often(
                    "rate_limited",
                    f"more than {allowance.rate:g} requests a second with {each.named},"
                    " or too expensive ones",
                    "Send fewer, larger requests: most paths take lists. Ask for smaller pages.",
                    wait,
                )
        for each, allowance in allowances:
            allowance.requests.take(each)
            if expected:
                allowance.time.take(each, expected)
        return expected

    def charge(self, account: Account, charged: float, seconds: float) -> float:
        """Charge a request while it runs. It was *charged* so much before, and has used *seconds*
        of processor time. Returns what is charged for it now.
        """
        if seconds - charged < _EXPENSIVE:
            return charged
        for each, allowance in self._allowances(account):
            allowance.time.take(each, seconds - charged)
        return seconds

    def settle(self, account: Account, charged: float, seconds: float) -> None:
        """Correct the charge of a request that has ended: it was *charged* so much before, and has
        used *seconds* of processor time.
        """
        allowances = self._allowances(account)
        if not allowances:
            return
        cost = seconds if seconds > _EXPENSIVE else 0.0
        if cost != charged:
            for each, allowance in allowances:
                allowance.time.take(each, cost - charged)
        before = self._expected.pop(account) or 0.0
        # One unusual request changes the mean little, and the cap lets some through always.
        mean = min(before + (cost - before) / 4, _TIME_MOST / 16)
        if mean > _EXPENSIVE / 4:
            self._expected.put(account, mean)


class Metered:
    """Awaits *answering*, and adds up the processor time of its steps in `seconds`.

    Other requests run between the steps, so the time from begin to end would say nothing. Each time
    the steps have used another expensive amount, *charge* is called with their sum.
    """

    __slots__ = ("_charge", "_charge_at", "_steps", "seconds")

    def __init__(
        self, answering: Awaitable[None], charge: Callable[[float], object] | None = None
    ) -> None:
        self._steps = answering.__await__()
        self._charge, self._charge_at = charge, _EXPENSIVE
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
            if self.seconds > self._charge_at and self._charge is not None:
                self._charge_at = self.seconds + _EXPENSIVE
                self._charge(self.seconds)
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
        """Count a try before it is checked. Raises Refused (429) with the time to wait."""
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
        """Uncount a try that was right."""
        if self._buckets is not None:
            self._buckets.take(address, -1)


def _too_often(code: str, detail: str, remedy: str, wait: float) -> Exception:
    from towpath.web.problems import Refused  # noqa: PLC0415 -- an extra; limits are not

    headers = {"Retry-After": str(max(1, ceil(wait)))}
    return Refused(429, code, detail, remedy=remedy, headers=headers)
