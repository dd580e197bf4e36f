"""What uploads need of a store of objects: twelve calls, the same for S3 and for a directory.

Every call may be made again after trouble that passes: the same bytes under the same name change
nothing. What each refuses is in `errors.py`; StoreUnreachable and StoreRefused come from all.
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
from towpath.engine.check import whole
from towpath.errors import InvalidInput, InvalidName, InvalidOption, PayloadTooLarge

LEAST_PART = 5 * 1024 * 1024
MOST_PARTS = 10_000
PIECE = 1024 * 1024
"""Bytes that are handed over at a time."""
UPLOAD = "towpath-upload"
"""The name in an object's metadata of the upload that made it."""
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
"""What is sent: its pieces one behind the other. They are never joined."""


class Object(NamedTuple):
    """A whole object, as the store has it."""

    key: str
    size: int
    etag: str
    checksum: Checksum | None
    """That of the whole object, if the store keeps one."""
    metadata: Mapping[str, str]
    content_type: str


class Multipart(NamedTuple):
    """A multipart upload that was started; with it, anybody can continue."""

    key: str
    id: str
    upload: str = ""
    """Whose it is; empty where the store only listed it."""
    algorithm: Algorithm = Algorithm.CRC64NVME
    """How the parts' checksums are reckoned."""
    begun: datetime | None = None
    """When, by the store's clock, where the store listed it."""


class Part(NamedTuple):
    """A part as the store has it. Its ETag names its bytes."""

    number: int
    size: int
    etag: str
    checksum: Checksum | None = None
    """Known to who sent it; not every store lists it."""


class ObjectStore(Protocol):
    """A store of objects. Entered before its first use; left, it closes its connections."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def at(self, bucket: str) -> ObjectStore:
        """The same store, with the objects of another bucket; its connections are shared.

        Never entered by itself; in a directory, a folder. Empty = the bucket of the options.
        """
        ...

    async def check(self) -> None:
        """Raises what keeps it from being used: StoreUnreachable, StoreRefused, BucketNotFound."""
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
        """Make or replace an object, whole. Raises ChecksumDiffers, and then nothing was stored."""
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
        """Begin an object in parts; nobody sees it before it is complete.

        *upload* is kept in its metadata. *algorithm* must be one that combines.
        """
        ...

    async def put_part(self, multipart: Multipart, number: int, body: Body) -> Part:
        """Send part *number*, from 1; of one sent twice the last counts.

        The store checks the bytes by the checksum that is reckoned here. Raises MultipartNotFound,
        ChecksumDiffers.
        """
        ...

    async def copy_part(
        self, multipart: Multipart, number: int, source: str, *, start: int, length: int
    ) -> Part:
        """Part *number* is *length* bytes of another object; they don't come here.

        Raises MultipartNotFound, ObjectNotFound, RangeBeyondEnd.
        """
        ...

    async def list_parts(self, multipart: Multipart) -> list[Part]:
        """The parts that are there, by number. Raises MultipartNotFound.

        A number of which the store has several versions and can't tell the last is left out.
        """
        ...

    async def complete(
        self, multipart: Multipart, parts: Sequence[Part], *, checksum: Checksum | None = None
    ) -> Object:
        """Make the object of exactly *parts*; parts of other numbers are dropped.

        Done again, it answers with the same object. With *checksum*, the store compares it where
        it can. Raises PartsDiffer, PartTooSmall, ChecksumDiffers (the parts stay), and
        MultipartNotFound if the object that is there is not that of this upload.
        """
        ...

    async def abort(self, multipart: Multipart) -> None:
        """Remove all parts. What is not there is no error; a completed object stays."""
        ...

    async def head(self, key: str) -> Object:
        """What is known of an object. Raises ObjectNotFound."""
        ...

    def get(
        self, key: str, *, start: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of an object, piece by piece, from *start* on.

        Raises ObjectNotFound, RangeBeyondEnd when entered; StoreUnreachable also in the middle.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object; what is not there is no error."""
        ...

    def list_multiparts(self, key: str | None = None) -> AsyncIterator[Multipart]:
        """All that was begun and neither completed nor aborted, or of that only what is to become
        the object *key*; `abort` takes each.
        """
        ...


# ── what every store checks ──────────────────────────────────────────────────────────────


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
    return whole("part", value, 1, MOST_PARTS)


def size_of(body: Body) -> int:
    return sum(len(piece) for piece in body)


def spelled(metadata: Mapping[str, str], *, upload: str | None = None) -> dict[str, str]:
    """*metadata* as headers can have it: any text, percent-encoded. Raises InvalidInput.

    A value that is empty is the same as none: not every server keeps it.
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
    """Metadata as it was meant, from how it is `spelled`."""
    return {name: unquote(value) for name, value in found.items()}


_PLAIN = " !#$&'()*+,/:;=?@[]^`{|}<>\\"
"""What stands for itself in metadata, beside letters and digits."""


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
    """Raises PartsDiffer and PartTooSmall, if *parts* can't be completed with what is *there*.

    Also where a server would take them: some accept what they were not asked for.
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
