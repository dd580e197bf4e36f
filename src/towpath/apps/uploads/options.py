"""The options of the application: what may be in Redis, for how long, and where files go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from towpath.apps.uploads.stores.options import StoreOptions
from towpath.calls.signature import check_secret
from towpath.clock import Duration, duration_ms, hours, seconds
from towpath.errors import InvalidOption
from towpath.options import Secret, Signing

KIB, MIB = 1024, 1024 * 1024
SMALLEST_CHUNK, LARGEST_CHUNK = 64 * KIB, 64 * MIB
"""Bytes of one chunk."""
_LONGEST_TTL = 3_600_000
"""Milliseconds that a credential is valid at most."""
_SUFFIX = re.compile(r"[A-Za-z0-9._-]{0,32}")
_DRIVE = re.compile(r"[A-Za-z0-9_-]{1,64}")
AUTHORITY = re.compile(r"([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
"""A host as a URL can have it, with its port."""
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
DRIVE_RULE = "1 to 64 of A-Z, a-z, 0-9, '_', '-'"


class UploadsOptions(StoreOptions, frozen=True, kw_only=True):
    """How files are received, and where they are stored."""

    budget: Annotated[int, Meta(ge=32 * MIB, le=1024**4)] = 256 * MIB
    """Maximum bytes of chunks in Redis. Plan for twice as much memory."""
    owner_share: Annotated[int, Meta(ge=1, le=100)] = 25
    """Percent of the budget that the uploads of one owner may use; at least 8 MiB."""
    slowest: Annotated[int, Meta(ge=0, le=1024**3)] = 64 * KIB
    """Bytes per second. A body that arrives more slowly is ended if others need its room."""
    body_lease: Duration = seconds(30)
    """How long a body keeps its room if its server dies."""
    chunk_size: Annotated[int, Meta(ge=SMALLEST_CHUNK, le=LARGEST_CHUNK)] = 8 * MIB
    """Bytes of a chunk, unless the client chooses."""
    open_per_key: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """Maximum number of unfinished uploads per owner: a key, or the keys that share an owner."""
    bytes_per_key: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Maximum bytes of all unfinished uploads per owner; 0 = no limit. An upload that was started
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
    public_url: str = ""
    """The server's URL as clients know it, for the `Location` of a new upload; empty = that of the
    request. Needed behind a proxy that changes scheme, Host or path."""
    shared: bool = False
    """Whether every key with the scope may use every upload; no = only keys of the upload's owner,
    and admins."""
    credential_ttl: Duration = hours(1)
    """How long a credential for a web page is valid at most: up to 1 h."""
    secrets: Signing = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        duration_ms("chunk_expiry", self.chunk_expiry, least=seconds(10))
        duration_ms("expiry", self.expiry, least=self.chunk_expiry)
        duration_ms("body_lease", self.body_lease, least=seconds(1))
        duration_ms("sweep_every", self.sweep_every, least=seconds(1))
        if duration_ms("credential_ttl", self.credential_ttl, least=seconds(1)) > _LONGEST_TTL:
            shown = f"{self.credential_ttl.total_seconds():g}s"
            raise InvalidOption("credential_ttl", shown, rule="must be at most 1 h")
        for secret in self.secrets:
            check_secret(secret)
        if _SUFFIX.fullmatch(self.suffix) is None:
            rule = "up to 32 of A-Z, a-z, 0-9, '.', '_', '-'"
            raise InvalidOption("suffix", self.suffix, rule=rule)
        _check_public_url(self.public_url)
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
        """Bytes of the largest part: larger ones could keep other parts from being finished."""
        return min(self.budget // 4, self.share)

    @property
    def staged_for(self) -> Duration:
        """How long staged bytes stay that don't count yet, unless their body still arrives."""
        return self.body_lease * 2 / 3  # shorter than their reservation

    @property
    def kept_for_begun(self) -> int:
        """Bytes of the budget for parts that have begun only, so that they can be finished."""
        return self.budget // 4

    def bucket_of(self, drive: str) -> str:
        """The bucket for the files of *drive*; empty = the usual one. Raises InvalidOption."""
        if _DRIVE.fullmatch(drive) is None:
            raise InvalidOption("drive", drive, rule=DRIVE_RULE)
        if self.drives and drive not in self.drives:
            raise InvalidOption("drive", drive, rule=f"must be one of {', '.join(self.drives)}")
        return self.drives.get(drive, "")


def _check_public_url(url: str) -> None:
    """Raises InvalidOption; a password in it is not shown."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and AUTHORITY.fullmatch(parts.netloc)
        fine = fine and _PATH.fullmatch(parts.path) and not (parts.query or parts.fragment)
    except ValueError:
        fine = False
    if url and not fine:
        rule = "must be an http or https URL without user, query or fragment"
        raise InvalidOption("public_url", "…" if "@" in url else url[:200], rule=rule)
