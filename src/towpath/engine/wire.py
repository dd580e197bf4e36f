"""MessagePack as the scripts read it: their decoder knows texts of any bytes, but no binaries."""

from __future__ import annotations

from typing import Any

import msgpack


def pack(value: Any) -> bytes:
    """*value* for a script. Bytes and text arrive there as the same thing."""
    packed: bytes = msgpack.packb(value, use_bin_type=False)
    return packed


def unpack(packed: bytes) -> Any:
    """What `pack` was given; its texts must be UTF-8."""
    return msgpack.unpackb(packed)


def unpack_raw(packed: bytes) -> Any:
    """What a script packed, its texts as bytes."""
    return msgpack.unpackb(packed, raw=True)
