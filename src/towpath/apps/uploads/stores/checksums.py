"""Checksums of objects and their parts, as S3 writes them; CRCs of parts combine to the whole's.

awscrt computes CRC-32C and CRC-64/NVME with processor instructions (5 GB/s and more), and combines
them. google-crc32c and crc32c have no CRC-64, and anycrc is slow at it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from towpath.errors import InvalidOption

Piece = bytes | bytearray | memoryview
"""Bytes that are handed on; at most 1 MiB, so that nothing waits long for one piece."""


class Algorithm(StrEnum):
    """How a checksum is computed."""

    CRC32C = "crc32c"
    CRC64NVME = "crc64nvme"
    SHA256 = "sha256"

    @property
    def size(self) -> int:
        """Bytes of a value."""
        return {"crc32c": 4, "crc64nvme": 8, "sha256": 32}[self]

    @property
    def combines(self) -> bool:
        """Whether the values of parts can be combined to the value of the whole."""
        return self is not Algorithm.SHA256


class _Crc(NamedTuple):
    update: Callable[[bytes, int], int]
    combine: Callable[[int, int, int], int]


@cache
def _crc(algorithm: Algorithm) -> _Crc:
    from awscrt import checksums as crt  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs] -- of an extra; it has none

    if algorithm is Algorithm.CRC32C:
        return _Crc(crt.crc32c, crt.combine_crc32c)
    return _Crc(crt.crc64nvme, crt.combine_crc64nvme)


class Checksum(NamedTuple):
    """A checksum: its value is base64 of the bytes, the highest first."""

    algorithm: Algorithm
    value: str

    @classmethod
    def of(cls, algorithm: Algorithm, pieces: Iterable[Piece]) -> Checksum:
        """The checksum of *pieces*, in order."""
        running = RunningChecksum(algorithm)
        for piece in pieces:
            running.update(piece)
        return running.checksum

    @classmethod
    def parse(cls, algorithm: str, value: str) -> Checksum:
        """Parse a checksum in base64 or hex. Raises InvalidOption."""
        if algorithm not in tuple(Algorithm):
            rule = f"must be one of {', '.join(Algorithm)}"
            raise InvalidOption("checksum.algorithm", algorithm, rule=rule)
        kind = Algorithm(algorithm)
        try:
            # A CRC-32C is as long in base64 as in hex, but its base64 ends with `==`.
            hexadecimal = len(value) == kind.size * 2 and "=" not in value
            raw = bytes.fromhex(value) if hexadecimal else base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        if len(raw) != kind.size:
            rule = f"must be {kind.size} bytes in base64 or hex"
            raise InvalidOption("checksum.value", value[:80], rule=rule)
        return cls(kind, base64.b64encode(raw).decode())

    @property
    def raw(self) -> bytes:
        """The bytes of its value."""
        return base64.b64decode(self.value)


class RunningChecksum:
    """A checksum of bytes that come piece by piece."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm, self._crc = algorithm, 0
        self._hash = None if algorithm.combines else hashlib.sha256()

    def update(self, piece: Piece) -> None:
        if self._hash is not None:
            self._hash.update(piece)
        else:
            # It accepts every bytes-like object, although its stub says `bytes`.
            self._crc = _crc(self._algorithm).update(piece, self._crc)  # pyright: ignore[reportArgumentType]

    @property
    def checksum(self) -> Checksum:
        """The checksum of the pieces so far."""
        if self._hash is not None:
            return _encode(self._algorithm, self._hash.digest())
        return _encode(self._algorithm, self._crc.to_bytes(self._algorithm.size))


def combined(parts: Iterable[tuple[Checksum, int]]) -> Checksum:
    """The checksum of the whole, from the checksums and sizes of its parts in order.

    Raises ValueError without parts, for different algorithms, and for sha256.
    """
    found = list(parts)
    kinds = {checksum.algorithm for checksum, _ in found}
    if len(kinds) != 1 or not (kind := kinds.pop()).combines:
        raise ValueError("only checksums of the same kind can be combined")
    whole = 0
    for checksum, size in found:
        whole = _crc(kind).combine(whole, int.from_bytes(checksum.raw), size)
    return _encode(kind, whole.to_bytes(kind.size))


def _encode(algorithm: Algorithm, raw: bytes) -> Checksum:
    return Checksum(algorithm, base64.b64encode(raw).decode())
