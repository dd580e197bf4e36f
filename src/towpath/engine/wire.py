"""MessagePack as the scripts read it: their decoder knows texts of any bytes, but no binaries."""

from __future__ import annotations

from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs] -- it ships none


def pack(value: Any) -> bytes:
    """*value* for a script. Bytes and text arrive there as the same thing."""
    return cast("bytes", msgpack.packb(value, use_bin_type=False))  # pyright: ignore[reportUnknownMemberType]


def unpack_raw(packed: bytes) -> Any:
    """What a script packed, its texts as bytes."""
    return cast("Any", msgpack.unpackb(packed, raw=True))  # pyright: ignore[reportUnknownMemberType]
