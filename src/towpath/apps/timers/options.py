"""The options of the application: how many types there may be, and what is kept of firings."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from towpath.calls.guard import Guard
from towpath.calls.signature import check_secret
from towpath.clock import Duration, days, duration_ms, minutes, seconds
from towpath.options import Options, Signing


class TimersOptions(Options, frozen=True, kw_only=True):
    """How timers are kept."""

    types: Annotated[int, Meta(ge=1, le=1000)] = 1000
    """Maximum number of timer types; a type counts once per app."""
    unused: Duration = days(1)
    """How long a type is kept while it has no timers and nobody serves it."""
    owner_keeps: Duration = minutes(5)
    """How long a type without an app stays reserved for its owner after the last heartbeat."""
    log_age: Duration = days(7)
    """How long a firing stays in the log."""
    log_entries: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    """How many firings the log of a type keeps; 0 = none."""
    log_bytes: Annotated[int, Meta(ge=4096, le=1024**3)] = 4 * 1024 * 1024
    """About how many bytes the log of a type keeps."""
    secrets: Signing = ()
    allow: tuple[str, ...] = ()
    """Private networks, addresses and hosts at which instances of applications may be called
    (`10.0.0.0/8,shop.internal`). It applies to timers only."""
    call_within: Duration = seconds(10)
    """How long an instance may take to answer a call; for longer work it answers 202."""
    calls_per_type: Annotated[int, Meta(ge=1, le=1000)] = 20
    """How many timers of a type one scheduler calls at once."""
    instances: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    """Maximum number of live instances of all apps together."""
    instances_per_owner: Annotated[int, Meta(ge=1, le=10_000)] = 250
    """Maximum number of live instances that the keys of one owner register, of all its apps."""
    shared: bool = False
    """Whether all keys may use each other's timers and instances. If not, a timer or an instance
    belongs to the owner of the key that made it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        duration_ms("unused", self.unused, least=minutes(1))
        duration_ms("owner_keeps", self.owner_keeps)
        duration_ms("log_age", self.log_age, least=seconds(1))
        duration_ms("call_within", self.call_within, least=seconds(0.001))
        Guard(self.allow)
        for secret in self.secrets:
            check_secret(secret)
