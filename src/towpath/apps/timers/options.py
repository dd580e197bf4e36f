"""The options of the application: how many types there may be, and what is kept of firings."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from towpath.clock import Duration, days, duration_ms, minutes, seconds
from towpath.options import Options


class TimersOptions(Options, frozen=True, kw_only=True):
    """How timers are kept."""

    types: Annotated[int, Meta(ge=1, le=1000)] = 1000
    """Types of timers that there may be at once, apps counted apart."""
    unused: Duration = days(1)
    """After how long a type without timers and without anybody who serves it is removed."""
    owner_keeps: Duration = minutes(5)
    """How long a type without an app stays its owner's after the owner was last alive."""
    log_age: Duration = days(7)
    """How long a firing stays in the log."""
    log_entries: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    """At most so many firings stay in the log of a type; 0 = none are logged."""
    log_bytes: Annotated[int, Meta(ge=4096, le=1024**3)] = 4 * 1024 * 1024
    """At most so many bytes of them, about."""

    def __post_init__(self) -> None:
        super().__post_init__()
        duration_ms("unused", self.unused, least=minutes(1))
        duration_ms("owner_keeps", self.owner_keeps)
        duration_ms("log_age", self.log_age, least=seconds(1))
