"""Join uploads: make one object from their objects, by copies inside the object store.

All parts of an object but the last need at least 5 MiB. So bytes of smaller pieces are read here
and sent together; all other bytes are copied by the object store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from towpath.apps.uploads.model import Upload
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.stores.port import (
    LEAST_PART,
    MOST_PARTS,
    Multipart,
    Object,
    ObjectStore,
    Part,
)

_COPIED = 64 * MIB
"""Bytes of a part that the object store copies; more if there would be too many parts."""
_AT_ONCE = 4


class ByteSpan(NamedTuple):
    """Some bytes of one piece."""

    piece: int
    start: int
    length: int


def parts_of(
    sizes: Sequence[int], *, copied: int = _COPIED, least: int = LEAST_PART
) -> list[list[ByteSpan]]:
    """Plan the parts: for each part, the spans of bytes of pieces of these *sizes*.

    All parts but the last have at least *least* bytes. A part of one span is copied if it has so
    many bytes; all others are read and sent.
    """
    copied = max(copied, -(-sum(sizes) // (MOST_PARTS // 2)), 2 * least)
    made: list[list[ByteSpan]] = []
    small: list[ByteSpan] = []  # spans that are too small together for a part
    for piece, size in enumerate(sizes):
        start = 0
        while start < size:
            rest, held = size - start, sum(span.length for span in small)
            if small or rest < least:
                length = min(rest, least - held)
                small.append(ByteSpan(piece, start, length))
                if held + length >= least:
                    made.append(small)
                    small = []
            else:
                # If the rest would be too small for a part of its own, this part includes it.
                length = rest if rest < copied + least else copied
                made.append([ByteSpan(piece, start, length)])
            start += length
    return [*made, small] if small else made


async def joined(store: ObjectStore, multipart: Multipart, pieces: Sequence[Upload]) -> Object:
    """Join the objects of *pieces*. A repeat continues with the parts that exist.

    Raises StoreError.
    """
    there = {part.number: part for part in await store.list_parts(multipart)}
    sizes = [piece.final_size or 0 for piece in pieces]
    room = asyncio.Semaphore(_AT_ONCE)

    async def made(number: int, spans: list[ByteSpan]) -> Part:
        before = there.get(number)
        if before is not None and before.size == sum(span.length for span in spans):
            return before
        async with room:
            if len(spans) == 1 and spans[0].length >= LEAST_PART:
                [(piece, start, length)] = spans
                key = pieces[piece].s3_key
                return await store.copy_part(multipart, number, key, start=start, length=length)
            return await store.put_part(multipart, number, await _read(store, pieces, spans))

    planned = enumerate(parts_of(sizes), start=1)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(made(number, spans)) for number, spans in planned]
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    return await store.complete(multipart, [task.result() for task in tasks])


async def _read(
    store: ObjectStore, pieces: Sequence[Upload], spans: Sequence[ByteSpan]
) -> list[bytes]:
    """Read the bytes of some spans: less than two parts of the smallest size."""
    found: list[bytes] = []
    for piece, start, length in spans:
        async with store.get(pieces[piece].s3_key, start=start, length=length) as come:
            found += [some async for some in come]
    return found
