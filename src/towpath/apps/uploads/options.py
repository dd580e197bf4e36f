"""The options of the application: what may be in Redis, for how long, and where files go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from towpath.apps.uploads.stores.options import StoreOptions
from towpath.clock import Duration, duration_ms, hours, seconds
from towpath.errors import InvalidOption
from towpath.options import Secret

KIB, MIB = 1024, 1024 * 1024
SMALLEST_CHUNK, LARGEST_CHUNK = 64 * KIB, 64 * MIB
"""Bytes of one chunk."""
_SUFFIX = re.compile(r"[A-Za-z0-9._-]{0,32}")
_DRIVE = re.compile(r"[A-Za-z0-9_-]{1,64}")
DRIVE_RULE = "1 to 64 of A-Z, a-z, 0-9, '_', '-'"


class UploadsOptions(StoreOptions, frozen=True, kw_only=True):
    """How files are received, and where they are stored."""

    budget: Annotated[int, Meta(ge=32 * MIB, le=1024**4)] = 256 * MIB
    """Maximum bytes of chunks in Redis. Plan for twice as much memory."""
    owner_share: Annotated[int, Meta(ge=1, le=100)] = 25
    """Percent of the budget that the uploads of one owner may use; at least 8 MiB."""
    slowest: Annotated[int, Meta(ge=0, le=1024**3)] = 64 * KIB
    """Bytes per second. A body that arrives more slowly is ended if others need its room."""
    chunk_size: Annotated[int, Meta(ge=SMALLEST_CHUNK, le=LARGEST_CHUNK)] = 8 * MIB
    """Bytes of a chunk, unless the client chooses."""
    open_per_key: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """Maximum number of unfinished uploads per key."""
    bytes_per_key: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Maximum bytes of all unfinished uploads per key; 0 = no limit. An upload that was started
    without a size counts as soon as its size is known."""
    chunk_expiry: Duration = hours(1)
    """How long a chunk stays in Redis after the last activity of its upload."""
    expiry: Duration = hours(24)
    """How long an upload may go without a chunk before it expires."""
    sweep_every: Duration = seconds(30)
    """How often a server looks for stalled and expired uploads and for leftovers."""
    suffix: str = ""
    """Suffix of object keys: connectors/{connector_id}/{node_id}{suffix}."""
    drives: Mapping[str, str] = {}
    """Bucket of each drive, as drive=bucket; none = one bucket for all drives."""
    parts_at_once: Annotated[int, Meta(ge=1, le=1000)] = 4
    """Parts that one process stores at once; it keeps their bytes in memory."""
    chunks_url: Secret | None = None
    """URL of another Redis for chunks; none = the one that has the jobs."""
    origins: tuple[str, ...] = ()
    """Origins whose web pages may upload (CORS); * = any."""

    def __post_init__(self) -> None:
        super().__post_init__()
        duration_ms("chunk_expiry", self.chunk_expiry, least=seconds(10))
        duration_ms("expiry", self.expiry, least=self.chunk_expiry)
        duration_ms("sweep_every", self.sweep_every, least=seconds(1))
        if _SUFFIX.fullmatch(self.suffix) is None:
            rule = "up to 32 of A-Z, a-z, 0-9, '.', '_', '-'"
            raise InvalidOption("suffix", self.suffix, rule=rule)
        if self.share < 8 * MIB:
            rule = "must be at least 8 MiB of the budget: one part"
            raise InvalidOption("owner_share", self.owner_share, rule=rule)
        for drive in self.drives:
            if _DRIVE.fullmatch(drive) is None:
                raise InvalidOption("drives", drive, rule=DRIVE_RULE)

    @property
    def share(self) -> int:
        """Bytes of the budget that one owner may use."""
        return self.budget * self.owner_share // 100

    @property
    def largest_part(self) -> int:
        """Bytes: a part above this could keep all others from ever being whole."""
        return min(self.budget // 4, self.share)

    @property
    def kept_for_begun(self) -> int:
        """Bytes of the budget that only parts which have begun may use: they can be finished."""
        return self.budget // 4

    def bucket_of(self, drive: str) -> str:
        """The bucket for the files of *drive*; empty = the usual one. Raises InvalidOption."""
        if _DRIVE.fullmatch(drive) is None:
            raise InvalidOption("drive", drive, rule=DRIVE_RULE)
        if self.drives and drive not in self.drives:
            raise InvalidOption("drive", drive, rule=f"must be one of {', '.join(self.drives)}")
        return self.drives.get(drive, "")
