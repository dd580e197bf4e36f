"""The headers of tus: parsed from requests, written for responses."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from towpath.apps.uploads.appending import ExpectedDigest, Hash
from towpath.apps.uploads.model import FINAL, PARTIAL, NewUpload, Upload, is_mime_type
from towpath.apps.uploads.stores.port import Piece
from towpath.web.problems import Refused

BODY_TYPE = "application/offset+octet-stream"
_NUMBER = re.compile(r"[0-9]{1,19}")
_KEY = re.compile(r"[!-+\--~]{1,255}")
_NAMES = ("filename", "name")
_TYPES = ("filetype", "type", "mime_type")
_OWN = ("drive", "connector_id", "parent_id", "path", "client_node_id")
"""Metadata that is also a field of the chunk API, under the same name."""


class _Crc32:
    """The CRC-32 of zlib, with the methods of hashlib's hashes."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Piece, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def _sha1() -> Hash:
    return hashlib.sha1(usedforsecurity=False)


def _md5() -> Hash:
    return hashlib.md5(usedforsecurity=False)


ALGORITHMS = {
    "sha1": _sha1,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
    "md5": _md5,
    "crc32": _Crc32,
}
"""The algorithms of Upload-Checksum; every client knows sha1."""


class Creation(msgspec.Struct, frozen=True):
    """What a request that creates an upload asks for."""

    length: int | None
    metadata: Mapping[str, str]
    partial: bool
    pieces: list[str]
    """The URLs of the uploads that a final upload is joined from."""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """Parse the headers. Raises Refused with 400 if they are invalid."""
        length = length_of(headers, "Upload-Length")
        deferred = headers.get("Upload-Defer-Length")
        concat = headers.get("Upload-Concat", "")
        kind, _, urls = concat.partition(";")
        if concat and kind not in (PARTIAL, FINAL):
            raise _invalid("Upload-Concat", "must be `partial`, or `final;` and URLs")
        if kind == FINAL:
            if not urls.split() or length is not None:
                rule = "must name at least one URL for a final upload, without Upload-Length"
                raise _invalid("Upload-Concat", rule)
        elif (length is None) == (deferred is None) or deferred not in (None, "1"):
            raise _invalid("Upload-Length", "or `Upload-Defer-Length: 1` is required")
        metadata = metadata_of(headers.get("Upload-Metadata", ""))
        return cls(length, metadata, kind == PARTIAL, urls.split())

    def new(self) -> NewUpload:
        """The upload to start. Raises InvalidInput."""
        given = self.metadata
        own: dict[str, Any] = {name: given[name] for name in _OWN if given.get(name)}
        kind = next((given[name] for name in _TYPES if given.get(name)), "")
        if is_mime_type(kind):  # a browser may send none, or an invalid one
            own["mime_type"] = kind
        return NewUpload(
            **own,
            name=next((given[name] for name in _NAMES if given.get(name)), "file"),
            size=self.length,
            custom_metadata=dict(given),
            concat=PARTIAL if self.partial else None,
        )


def length_of(headers: Mapping[str, str], name: str) -> int | None:
    """Parse a header with a number of bytes; None if it is missing. Raises Refused with 400."""
    text = headers.get(name)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise _invalid(name, "must be a number of bytes")
    return int(text)


def metadata_of(header: str) -> dict[str, str]:
    """Parse Upload-Metadata. Raises Refused with 400."""
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in header.split(","))):
        name, _, value = pair.partition(" ")
        try:
            text = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise _invalid("Upload-Metadata", "must have UTF-8 values in base64") from None
        if _KEY.fullmatch(name) is None or name in found:
            raise _invalid("Upload-Metadata", "must have ASCII keys, each once")
        found[name] = text
    return found


def metadata_header(upload: Upload) -> str:
    """The Upload-Metadata of an upload, as it was sent."""
    found = msgspec.json.decode(upload.custom_metadata, type=dict[str, object])
    return ",".join(
        f"{name} {base64.b64encode(str(value).encode()).decode()}".strip()
        for name, value in found.items()
        if _KEY.fullmatch(name)
    )


def checksum_of(headers: Mapping[str, str]) -> ExpectedDigest | None:
    """Parse Upload-Checksum; None if it is missing. Raises Refused with 400."""
    text = headers.get("Upload-Checksum")
    if text is None:
        return None
    name, _, value = text.partition(" ")
    if name not in ALGORITHMS:
        raise _invalid("Upload-Checksum", f"must be one of {', '.join(ALGORITHMS)}, and base64")
    try:
        found = base64.b64decode(value, validate=True)
    except binascii.Error:
        found = b""
    if len(found) != len(ALGORITHMS[name]().digest()):
        raise _invalid("Upload-Checksum", f"must be a {name} in base64")
    return ExpectedDigest(name, found, ALGORITHMS[name])


def _invalid(name: str, rule: str) -> Refused:
    return Refused(
        400,
        "header_invalid",
        f"{name} {rule}",
        remedy="See https://tus.io/protocols/resumable-upload.",
    )
