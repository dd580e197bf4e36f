"""Content-Digest (RFC 9530): what a client says that its bytes come to."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Self

import msgspec

from towpath.errors import InvalidOption

_ENTRY = re.compile(r"\s*([a-z0-9*_.-]+)=:([A-Za-z0-9+/=]*):\s*(?:;[^,]*)?")
_SIZES = {"sha-256": 32, "sha-512": 64}


class ContentDigest(msgspec.Struct, frozen=True):
    """The strongest digest that a client gave."""

    algorithm: str
    value: bytes

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """What the header says; None if it has no digest that is known. Raises InvalidOption."""
        found: dict[str, bytes] = {}
        for part in header.split(","):
            match = _ENTRY.fullmatch(part)
            if match is None:
                rule = "must be like sha-256=:<base64>:"
                raise InvalidOption("Content-Digest", header[:80], rule=rule)
            if match[1] in _SIZES:
                found[match[1]] = _decoded(match[1], match[2])
        name = max(found, default=None)
        return None if name is None else cls(name, found[name])


def _decoded(algorithm: str, text: str) -> bytes:
    try:
        value = base64.b64decode(text, validate=True)
    except binascii.Error:
        value = b""
    if len(value) != _SIZES[algorithm]:
        rule = f"{algorithm} must be {_SIZES[algorithm]} bytes in base64"
        raise InvalidOption("Content-Digest", text[:100], rule=rule)
    return value


class Digesting:
    """The digests of bytes that come piece by piece: our own, and the client's if it is another."""

    def __init__(self, wanted: ContentDigest | None) -> None:
        self._wanted = wanted
        self._own = hashlib.sha256()
        self._other = hashlib.sha512() if wanted and wanted.algorithm == "sha-512" else None

    def update(self, piece: bytes) -> None:
        self._own.update(piece)
        if self._other is not None:
            self._other.update(piece)

    @property
    def own(self) -> bytes:
        """The SHA-256."""
        return self._own.digest()

    def fits(self) -> bool:
        """Whether they are what the client said."""
        if self._wanted is None:
            return True
        found = self._own.digest() if self._other is None else self._other.digest()
        return found == self._wanted.value
