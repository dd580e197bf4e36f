"""Objects that are joined from others inside the object store, in a directory and on a real S3."""

import random

import msgspec

from tests.apps.uploads.uploading import new_row
from towpath.apps.uploads.concatenation import joined
from towpath.apps.uploads.model import Upload
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.stores.port import ObjectStore

SIZES = [3, 6 * MIB, 4, 0, MIB]
"""Also below what a part of S3 may have, before and behind one that is copied."""


async def piece(store: ObjectStore, name: str, body: bytes) -> Upload:
    await store.put(f"pieces/{name}", [body])
    return msgspec.structs.replace(new_row(name), s3_key=f"pieces/{name}", final_size=len(body))


async def test_a_joined_object_has_all_bytes_in_order_also_when_repeated(
    store: ObjectStore,
) -> None:
    bodies = [random.Random(size).randbytes(size) for size in SIZES]
    pieces = [await piece(store, f"p{at}", body) for at, body in enumerate(bodies)]
    begun = await store.begin_multipart("whole", upload="u1")
    made = await joined(store, begun, pieces)
    assert made.size == sum(SIZES)
    async with store.get("whole") as come:
        assert b"".join([some async for some in come]) == b"".join(bodies)


async def test_a_repeated_join_copies_only_the_missing_parts(store: ObjectStore) -> None:
    """A worker died before the completion: copied parts are not copied again."""
    bodies = [random.Random(7).randbytes(6 * MIB), b"end"]
    pieces = [await piece(store, f"p{at}", body) for at, body in enumerate(bodies)]
    begun = await store.begin_multipart("whole", upload="u1")
    before = await store.copy_part(begun, 1, "pieces/p0", start=0, length=6 * MIB)
    made = await joined(store, begun, pieces)
    assert made.size == 6 * MIB + 3
    assert before.etag
    async with store.get("whole") as come:
        assert b"".join([some async for some in come]) == b"".join(bodies)
