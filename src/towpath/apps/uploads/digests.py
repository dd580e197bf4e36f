"""Content-Digest (RFC 9530): the digest that a client sends with its bytes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from typing import Self

import msgspec

from towpath.apps.uploads.stores.checksums import Algorithm, Piece, RunningChecksum
from towpath.errors import InvalidOption

_ENTRY = re.compile(r"\s*([a-z0-9*_.-]+)=:([A-Za-z0-9+/=]*):\s*(?:;[^,]*)?")
_SIZES = {"sha-256": 32, "sha-512": 64}
_HASHES = {"sha-256": "sha256", "sha-512": "sha512"}


class ContentDigest(msgspec.Struct, frozen=True):
    """The strongest digest that a client gave."""

    algorithm: str
    value: bytes

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """Parse the header; None if it has no supported digest. Raises InvalidOption."""
        found: dict[str, bytes] = {}
        for part in header.split(","):
            match = _ENTRY.fullmatch(part)
            if match is None:
                rule = "must be like sha-256=:<base64>:"
                raise InvalidOption("Content-Digest", header[:80], rule=rule)
            if match[1] in _SIZES:
                found[match[1]] = _decode(match[1], match[2])
        name = max(found, default=None)
        return None if name is None else cls(name, found[name])


def _decode(algorithm: str, text: str) -> bytes:
    try:
        value = base64.b64decode(text, validate=True)
    except binascii.Error:
        value = b""
    if len(value) != _SIZES[algorithm]:
        rule = f"{algorithm} must be {_SIZES[algorithm]} bytes in base64"
        raise InvalidOption("Content-Digest", text[:100], rule=rule)
    return value


class Digesting:
    """Computes digests piece by piece: our own, and the client's if it announced one.

    Ours is CRC-64/NVME: it detects another chunk that is sent by mistake, takes a fortieth of the
    time of SHA-256, and object stores keep it for each part. If a client forges two chunks with the
    same CRC, the first one is stored, and that is all.
    """

    def __init__(self, wanted: ContentDigest | None) -> None:
        self._wanted = wanted
        self._own = RunningChecksum(Algorithm.CRC64NVME)
        self._hash = hashlib.new(_HASHES[wanted.algorithm]) if wanted else None

    async def update(self, piece: Piece) -> None:
        """Add *piece*; a client's digest is computed in a thread."""
        self._own.update(piece)
        if self._hash is not None:
            await asyncio.to_thread(self._hash.update, piece)

    @property
    def own(self) -> bytes:
        """The CRC-64/NVME."""
        return self._own.checksum.raw

    def fits(self) -> bool:
        """Whether the bytes match the client's digest, if it gave one."""
        if self._wanted is None or self._hash is None:
            return True
        return self._hash.digest() == self._wanted.value
