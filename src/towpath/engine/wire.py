"""MessagePack as the scripts read it: their decoder knows texts of any bytes, but no binaries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs] -- it ships none

pack = cast("Callable[[Any], bytes]", partial(msgpack.packb, use_bin_type=False))  # pyright: ignore[reportUnknownMemberType]
"""A value for a script. Bytes and text arrive there as the same thing."""


def unpack_raw(packed: bytes) -> Any:
    """What a script packed, its texts as bytes."""
    return cast("Any", msgpack.unpackb(packed, raw=True))  # pyright: ignore[reportUnknownMemberType]
