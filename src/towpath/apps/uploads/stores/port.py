"""The interface of an object store: twelve calls, the same for S3 and for a directory.

Every call can be repeated after a temporary error: storing the same bytes under the same name
changes nothing. The errors are in `errors.py`; all calls raise StoreUnreachable and StoreRefused.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol, Self
from urllib.parse import quote, unquote

from towpath.apps.uploads.stores.checksums import Algorithm, Checksum, Piece
from towpath.apps.uploads.stores.errors import PartsDiffer, PartTooSmall
from towpath.engine.check import integer
from towpath.errors import InvalidInput, InvalidName, InvalidOption, PayloadTooLarge

LEAST_PART = 5 * 1024 * 1024
MOST_PARTS = 10_000
PIECE = 1024 * 1024
"""Bytes that are handed over at a time."""
UPLOAD = "towpath-upload"
"""The name of the upload's id in the metadata of its object."""
NONE: Mapping[str, str] = MappingProxyType({})
BINARY = "application/octet-stream"

_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")
_KEY_LONGEST, _SEGMENT_LONGEST = 768, 200
_KEY_RULE = (
    f"1 to {_KEY_LONGEST} of A-Z, a-z, 0-9, '_', '.', '=', '-', in segments of at most"
    f" {_SEGMENT_LONGEST} between '/', none of which begins with '.'"
)
_METADATA = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_METADATA_MOST = 2048
_TYPE = re.compile(r"[!-~]+(?:[ ]?[!-~]+)*")

Body = Sequence[Piece]
"""The bytes to send, as pieces in order. They are never joined in memory."""


class Object(NamedTuple):
    """A whole object, as the object store has it."""

    key: str
    size: int
    etag: str
    checksum: Checksum | None
    """The checksum of the whole object, if the object store keeps one."""
    metadata: Mapping[str, str]
    content_type: str


class Multipart(NamedTuple):
    """A multipart upload that was begun; every process that has this value can continue it."""

    key: str
    id: str
    upload: str = ""
    """The id of its upload; empty if this comes from a listing."""
    algorithm: Algorithm = Algorithm.CRC64NVME
    """The algorithm of the parts' checksums."""
    begun: datetime | None = None
    """When it was begun, by the clock of the object store; only from a listing."""


class Part(NamedTuple):
    """A part as the object store has it. Its ETag identifies its bytes."""

    number: int
    size: int
    etag: str
    checksum: Checksum | None = None
    """Known after the part was sent; not every store lists it."""


class ObjectStore(Protocol):
    """An object store. It is entered before its first use; leaving it closes its connections.

    A process makes several from the same options (its server one, its handlers another), and other
    processes do too: all of them must find the same objects and multipart uploads.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def at(self, bucket: str) -> ObjectStore:
        """The same store for another bucket, with the same connections; it is never entered.

        In a directory, a bucket is a folder. Empty = the bucket of the options.
        """
        ...

    async def check(self) -> None:
        """Check that the object store works.

        Raises StoreUnreachable, StoreRefused, BucketNotFound.
        """
        ...

    async def put(
        self,
        key: str,
        body: Body,
        *,
        checksum: Checksum | None = None,
        metadata: Mapping[str, str] = NONE,
        content_type: str = BINARY,
    ) -> Object:
        """Make or replace a whole object. Raises ChecksumDiffers, and stores nothing then."""
        ...

    async def begin_multipart(
        self,
        key: str,
        *,
        upload: str,
        algorithm: Algorithm = Algorithm.CRC64NVME,
        metadata: Mapping[str, str] = NONE,
        content_type: str = BINARY,
    ) -> Multipart:
        """Begin an object in parts; it is not visible before it is completed.

        *upload* is kept in its metadata. *algorithm* must be one that combines.
        """
        ...

    async def put_part(self, multipart: Multipart, number: int, body: Body) -> Part:
        """Send part *number*, counted from 1; sending it again replaces it.

        The store checks the bytes by a checksum that is computed here. Raises MultipartNotFound,
        ChecksumDiffers.
        """
        ...

    async def copy_part(
        self, multipart: Multipart, number: int, source: str, *, start: int, length: int
    ) -> Part:
        """Copy *length* bytes of another object as part *number*, inside the object store.

        Raises MultipartNotFound, ObjectNotFound, RangeBeyondEnd.
        """
        ...

    async def list_parts(self, multipart: Multipart) -> list[Part]:
        """The stored parts, by number. Raises MultipartNotFound.

        A part is left out if the store has several versions of it and does not say which is last.
        """
        ...

    async def complete(
        self, multipart: Multipart, parts: Sequence[Part], *, checksum: Checksum | None = None
    ) -> Object:
        """Make the object from exactly *parts*; parts of other numbers are deleted.

        A repeat returns the same object. With *checksum*, the store compares it if it can. Raises
        PartsDiffer, PartTooSmall, ChecksumDiffers (the parts stay), and MultipartNotFound if there
        is an object of another upload.
        """
        ...

    async def abort(self, multipart: Multipart) -> None:
        """Delete all parts; not an error if there are none. A completed object stays."""
        ...

    async def head(self, key: str) -> Object:
        """Size, ETag and metadata of an object. Raises ObjectNotFound."""
        ...

    def get(
        self, key: str, *, start: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of an object, piece by piece, from *start* on.

        Raises ObjectNotFound, RangeBeyondEnd when entered; StoreUnreachable also in the middle.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete an object; not an error if there is none."""
        ...

    def list_multiparts(self, key: str | None = None) -> AsyncIterator[Multipart]:
        """All multipart uploads that are neither completed nor aborted, or those of the object
        *key* only. `abort` accepts each.
        """
        ...


# ── checks of every store ────────────────────────────────────────────────────────────────


def object_key(value: str) -> str:
    """*value* as the key of an object, or InvalidName. Keys are made by the server."""
    text = isinstance(value, str)  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
    if not text or len(value) > _KEY_LONGEST or not _KEY.fullmatch(value):
        raise InvalidName("object key", value, rule=_KEY_RULE)
    if any(len(segment) > _SEGMENT_LONGEST for segment in value.split("/")):
        raise InvalidName("object key", value, rule=_KEY_RULE)
    return value


def part_number(value: int) -> int:
    """*value* if a part can have that number, or InvalidOption."""
    return integer("part", value, 1, MOST_PARTS)


def size_of(body: Body) -> int:
    return sum(len(piece) for piece in body)


def spelled(metadata: Mapping[str, str], *, upload: str | None = None) -> dict[str, str]:
    """*metadata* for headers: any text, percent-encoded. Raises InvalidInput.

    Empty values are left out, as not every server keeps them.
    """
    for name in metadata:
        if not _METADATA.fullmatch(name) or name == UPLOAD:
            rule = f"1 to 64 of a-z, 0-9, '-', beginning with a letter or digit; not {UPLOAD}"
            raise InvalidName("metadata", name, rule=rule)
    own = {} if upload is None else {UPLOAD: upload}
    given = {**metadata, **own}
    found = {name: quote(value, safe=_PLAIN) for name, value in given.items() if value}
    size = sum(len(name) + len(value) for name, value in found.items())
    if size > _METADATA_MOST:
        raise PayloadTooLarge("metadata", size, limit=_METADATA_MOST)
    return found


def read_back(found: Mapping[str, str]) -> dict[str, str]:
    """Decode metadata that was `spelled`."""
    return {name: unquote(value) for name, value in found.items()}


_PLAIN = " !#$&'()*+,/:;=?@[]^`{|}<>\\"
"""Characters of metadata that are not encoded, besides letters and digits."""


def content_type_of(value: str) -> str:
    """*value* if a header can have it, or InvalidOption."""
    if len(value) > 255 or not _TYPE.fullmatch(value):
        raise InvalidOption("content_type", value[:80], rule="must be a type such as image/png")
    return value


def combining(algorithm: Algorithm) -> Algorithm:
    """*algorithm* if parts can have it, or InvalidOption."""
    if not algorithm.combines:
        raise InvalidOption("algorithm", algorithm, rule="must be crc32c or crc64nvme")
    return algorithm


def check_parts(
    multipart: Multipart, parts: Sequence[Part], there: Mapping[int, set[tuple[str, int]]]
) -> None:
    """Raises PartsDiffer or PartTooSmall if *parts* can't be completed with the parts *there*.

    Some servers accept wrong parts, so this is checked here.
    """
    numbers = [part.number for part in parts]
    if not parts or numbers != sorted(set(numbers)):
        raise InvalidInput("parts must be named once each, in the order of their numbers")
    wrong = [one.number for one in parts if (one.etag, one.size) not in there.get(one.number, ())]
    if wrong:
        raise PartsDiffer(multipart.key, wrong)
    for part in parts[:-1]:
        if part.size < LEAST_PART:
            raise PartTooSmall(f"object {multipart.key}: part {part.number} has {part.size} bytes")
