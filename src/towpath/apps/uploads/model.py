"""The model of an upload: its statuses, and the plan that assigns chunks to parts of the object.

The plan follows from sizes alone and is fixed when the upload starts. A part always has the same
chunks, whatever the order of their arrival, so storing it twice overwrites it with the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from towpath.apps.uploads.errors import PartTooLarge, UploadTooLarge
from towpath.apps.uploads.options import LARGEST_CHUNK, MIB, SMALLEST_CHUNK
from towpath.apps.uploads.stores.checksums import Checksum
from towpath.apps.uploads.stores.port import MOST_PARTS
from towpath.clock import minutes, seconds
from towpath.engine.check import integer
from towpath.engine.options import QueueOptions
from towpath.engine.retry import Exponential
from towpath.errors import InvalidOption
from towpath.ids import text_name

UPLOADS = "uploads"
ATTEMPTS = 8
"""Maximum attempts to store a part or to complete an upload: with RETRY, about ten minutes."""
RETRY = Exponential(first=seconds(1), factor=3, longest=minutes(5))
QUEUES = {UPLOADS: QueueOptions(max_attempts=ATTEMPTS, retry=RETRY)}
LEAST_PART = 8 * MIB
"""Bytes of the smallest planned part. S3 requires 5 MiB for all parts but the last."""
PARTIAL, FINAL = "partial", "final"
"""The kinds of `concat`: a piece of another upload, or an upload that is joined from pieces."""
MOST_AT_ONCE = 128
"""Maximum chunks in one request: a part of 8 MiB has so many of the smallest chunks."""
LARGEST_SIZE = 5 * 1024**4
"""Bytes: the largest object of S3."""
_NAME_LONGEST, _PATH_LONGEST, _METADATA_LONGEST = 1024, 4096, 16 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ID_RULE = "1 to 128 of A-Z, a-z, 0-9, '_', '-'"
_MIME_LONGEST = 255
_MIME = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(?: ?;(?: ?[!-~])*)?")
"""A media type with parameters that object stores and headers accept (see `content_type_of`)."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Status(StrEnum):
    """The status of an upload. In the database, COMPLETED is ACTIVE."""

    PENDING = "PENDING"
    UPLOADING = "UPLOADING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"
    ABORTED = "ABORTED"

    @property
    def open(self) -> bool:
        """Whether the upload is under way."""
        return self in _OPEN


_OPEN = frozenset({Status.PENDING, Status.UPLOADING, Status.COMPLETING})


# ── the plan ─────────────────────────────────────────────────────────────────────────────


class UploadPlan(msgspec.Struct, frozen=True):
    """Which chunks belong to which part. Chunks and parts are counted from 0."""

    chunk_size: int
    part_size: int
    size: int | None = None
    """None = not known yet."""

    @classmethod
    def of(cls, size: int | None, chunk_size: int, *, largest_part: int) -> UploadPlan:
        """The plan for a file. Raises InvalidOption, UploadTooLarge, PartTooLarge."""
        integer("chunk_size", chunk_size, SMALLEST_CHUNK, LARGEST_CHUNK)
        least = LEAST_PART
        if size is not None:
            integer("size", size, 0, 2**53)
            if size > LARGEST_SIZE:
                raise UploadTooLarge(f"{size} bytes: an object has at most {LARGEST_SIZE}")
            least = max(least, -(-size // MOST_PARTS))
        part_size = -(-least // chunk_size) * chunk_size
        if part_size > largest_part:
            raise PartTooLarge(part_size, largest_part)
        return cls(chunk_size, part_size, size)

    @property
    def chunks_per_part(self) -> int:
        return self.part_size // self.chunk_size

    @property
    def total_chunks(self) -> int | None:
        return None if self.size is None else -(-self.size // self.chunk_size)

    @property
    def total_parts(self) -> int | None:
        return None if self.size is None else -(-self.size // self.part_size)

    @property
    def most_chunks(self) -> int:
        """Chunk numbers are below this."""
        total = self.total_chunks
        return MOST_PARTS * self.chunks_per_part if total is None else total

    def part_of(self, number: int) -> int:
        """The part that chunk *number* belongs to."""
        return number // self.chunks_per_part

    def chunks_of(self, part: int) -> range:
        """The chunks of a part."""
        first = part * self.chunks_per_part
        return range(first, min(first + self.chunks_per_part, self.most_chunks))

    def chunk_length(self, number: int) -> int | None:
        """The bytes of a chunk; None without a known size: then it has up to `chunk_size`."""
        if self.size is None:
            return None
        return min(self.chunk_size, self.size - number * self.chunk_size)

    def part_length(self, part: int) -> int:
        """The bytes of a part; without a known size, its maximum."""
        rest = self.part_size if self.size is None else self.size - part * self.part_size
        return min(self.part_size, rest)


class Range(msgspec.Struct, frozen=True):
    """Numbers from *first* to *last*, both included."""

    first: int
    last: int


def ranges(numbers: Iterable[int]) -> list[Range]:
    """Ascending *numbers* as ranges."""
    found: list[Range] = []
    for number in numbers:
        if found and found[-1].last == number - 1:
            found[-1] = Range(found[-1].first, number)
        else:
            found.append(Range(number, number))
    return found


def gaps(bitmap: bytes, total: int, *, most: int) -> list[Range]:
    """The numbers below *total* whose bits are not set; up to *most* ranges."""
    found: list[Range] = []
    number = 0
    while number < total and len(found) < most:
        byte = bitmap[number >> 3] if number >> 3 < len(bitmap) else 0
        if byte == 0xFF and not number & 7:
            number += 8
        elif byte & (0x80 >> (number & 7)):
            number += 1
        else:
            first = number
            number = _next_set(bitmap, number, total)
            found.append(Range(first, number - 1))
    return found


def _next_set(bitmap: bytes, number: int, total: int) -> int:
    """The first number from *number* on whose bit is set, or *total*."""
    while number < total:
        if number >> 3 >= len(bitmap):
            return total
        byte = bitmap[number >> 3]
        if not byte and not number & 7:
            number += 8
        elif byte & (0x80 >> (number & 7)):
            return number
        else:
            number += 1
    return total


# ── what is uploaded ─────────────────────────────────────────────────────────────────────


def is_mime_type(text: str) -> bool:
    """Whether *text* is a type such as `text/csv` or `text/csv; charset=utf-8`."""
    return len(text) <= _MIME_LONGEST and _MIME.fullmatch(text) is not None


class NewUpload(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants to upload. Raises InvalidOption, InvalidName.

    Of the client's texts, only `connector_id` becomes part of a path or of the object's key.
    """

    name: str
    size: int | None = None
    chunk_size: int | None = None
    mime_type: str = "application/octet-stream"
    drive: str = "default"
    connector_id: str = "default"
    parent_id: str | None = None
    path: str = ""
    custom_metadata: Mapping[str, Any] = {}
    client_node_id: str | None = None
    checksum: Checksum | None = None
    concat: str | None = None
    """`partial` = a piece of another upload; `final;` and ids = joined from those uploads."""

    def __post_init__(self) -> None:
        text_name("name", self.name, longest=_NAME_LONGEST)
        if _ID.fullmatch(self.connector_id) is None:
            raise InvalidOption("connector_id", self.connector_id[:130], rule=_ID_RULE)
        for what, value in (("parent_id", self.parent_id), ("client_node_id", self.client_node_id)):
            if value is not None:
                text_name(what, value, longest=_NAME_LONGEST)
        if len(self.path.encode()) > _PATH_LONGEST or _CONTROL.search(self.path):
            rule = f"up to {_PATH_LONGEST} bytes without control characters"
            raise InvalidOption("path", self.path[:80], rule=rule)
        if not is_mime_type(self.mime_type):
            raise InvalidOption(
                "mime_type", self.mime_type[:80], rule="must be a type such as text/plain"
            )
        if len(msgspec.json.encode(self.custom_metadata)) > _METADATA_LONGEST:
            rule = f"up to {_METADATA_LONGEST} bytes as JSON"
            raise InvalidOption("custom_metadata", "…", rule=rule)


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload, as its row in the database has it."""

    upload_id: str
    node_id: str
    owner: str
    """The owner of the API key that started it; empty = it was started without a key."""
    status: Status
    generation: int
    """Grows with each resume and each rebuild; jobs of an older generation have no effect."""
    name: str
    size: int | None
    chunk_size: int
    part_size: int
    mime_type: str
    drive: str
    connector_id: str
    parent_id: str | None
    path: str
    custom_metadata: str
    """JSON."""
    client_node_id: str | None
    checksum: Checksum | None
    bucket: str
    s3_key: str
    s3_upload_id: str | None
    etag: str | None
    final_size: int | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    deadline: datetime
    """When it expires, unless it is active before."""
    concat: str | None = None
    """`partial` = a piece of another upload; `final;` and ids = joined from those uploads."""

    @property
    def partial(self) -> bool:
        """Whether it is a piece of another upload, and not a document of its own."""
        return self.concat == PARTIAL

    @property
    def sources(self) -> list[str]:
        """The ids of the uploads that it is joined from, in order; empty = clients send bytes."""
        kind, _, ids = (self.concat or "").partition(";")
        return ids.split() if kind == FINAL else []

    @property
    def plan(self) -> UploadPlan:
        return UploadPlan(self.chunk_size, self.part_size, self.size)
