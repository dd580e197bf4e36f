"""The contract of an object store, on a real S3 server and in a directory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from towpath.apps.uploads.stores.checksums import Algorithm, Checksum, combined
from towpath.apps.uploads.stores.errors import (
    ChecksumDiffers,
    MultipartNotFound,
    ObjectNotFound,
    PartsDiffer,
    PartTooSmall,
    RangeBeyondEnd,
)
from towpath.apps.uploads.stores.port import LEAST_PART, UPLOAD, Multipart, ObjectStore, Part
from towpath.errors import InvalidInput, InvalidName, InvalidOption, PayloadTooLarge

KEY = "connectors/c-1/node_1.bin"
MIB = 1024 * 1024
LARGE = [bytes([n]) * MIB for n in range(5)]
"""The least that a part before the last can have, in pieces."""
METADATA = {"name": "Übung 漢字 50% & more.txt", "n": "1"}


async def content(store: ObjectStore, key: str, start: int = 0, length: int | None = None) -> bytes:
    async with store.get(key, start=start, length=length) as pieces:
        return b"".join([piece async for piece in pieces])


async def begun(store: ObjectStore, key: str = KEY, upload: str = "u-1") -> Multipart:
    return await store.begin_multipart(key, upload=upload)


async def two_parts(store: ObjectStore) -> tuple[Multipart, list[Part]]:
    multipart = await begun(store)
    first = await store.put_part(multipart, 1, LARGE)
    return multipart, [first, await store.put_part(multipart, 2, [b"the end"])]


def whole_of(parts: Sequence[Part]) -> Checksum:
    return combined((part.checksum, part.size) for part in parts if part.checksum)


class TestAnObject:
    @pytest.mark.parametrize("body", [[], [b""], [b"one"], [b"on", memoryview(b"e"), b"", b"!"]])
    async def test_a_put_object_is_read_back_whole(
        self, store: ObjectStore, body: list[bytes]
    ) -> None:
        given = {**METADATA, "empty": ""}
        put = await store.put(KEY, body, metadata=given, content_type="text/plain")
        meant = b"".join(body)
        assert put == await store.head(KEY)
        assert (put.key, put.size, put.content_type) == (KEY, len(meant), "text/plain")
        assert put.metadata == METADATA
        assert put.checksum == Checksum.of(Algorithm.CRC64NVME, body)
        assert put.etag == hashlib.md5(meant, usedforsecurity=False).hexdigest()
        assert await content(store, KEY) == meant

    async def test_another_put_of_a_key_replaces_the_object(self, store: ObjectStore) -> None:
        await store.put(KEY, [b"old"])
        await store.put(KEY, [b"new and longer"])
        assert await content(store, KEY) == b"new and longer"
        assert [found async for found in store.list_multiparts()] == []

    @pytest.mark.parametrize("algorithm", Algorithm)
    async def test_an_object_with_a_wrong_checksum_is_refused(
        self, store: ObjectStore, algorithm: Algorithm
    ) -> None:
        checksum = Checksum.of(algorithm, [b"meant"])
        with pytest.raises(ChecksumDiffers):
            await store.put(KEY, [b"changed"], checksum=checksum)
        with pytest.raises(ObjectNotFound):
            await store.head(KEY)
        put = await store.put(KEY, [b"me", b"ant"], checksum=checksum)
        assert put.checksum == checksum or algorithm is Algorithm.SHA256

    async def test_a_missing_object_raises_object_not_found(self, store: ObjectStore) -> None:
        await store.put("another", [b"1"])
        for asked in (store.head(KEY), content(store, KEY), content(store, KEY, 3, 4)):
            with pytest.raises(ObjectNotFound, match=KEY):
                await asked
        await store.delete(KEY)

    async def test_a_deleted_object_is_gone(self, store: ObjectStore) -> None:
        await store.put(KEY, [b"1"])
        await store.delete(KEY)
        await store.delete(KEY)
        with pytest.raises(ObjectNotFound):
            await store.head(KEY)

    async def test_the_key_of_one_object_may_begin_with_that_of_another(
        self, store: ObjectStore
    ) -> None:
        keys = ["a", "a/b", "a/b/c", "a.b", "a-", "connectors"]
        for key in keys:
            await store.put(key, [key.encode()])
        assert [await content(store, key) for key in keys] == [key.encode() for key in keys]

    async def test_buckets_do_not_share_objects(self, store: ObjectStore) -> None:
        other = store.at("names")
        await store.put(KEY, [b"here"])
        await other.put(KEY, [b"there"])
        assert (await content(store, KEY), await content(other, KEY)) == (b"here", b"there")
        await other.delete(KEY)
        assert await content(store.at(""), KEY) == b"here"


class TestARange:
    async def test_a_range_has_the_requested_bytes(self, store: ObjectStore) -> None:
        multipart, parts = await two_parts(store)
        await store.complete(multipart, parts)
        meant = b"".join(LARGE) + b"the end"
        size = len(meant)
        ranges = [(0, 1), (3, 4), (MIB - 1, 2), (LEAST_PART - 1, 3), (LEAST_PART, 3), (0, size)]
        ranges += [(size - 1, 1), (size - 3, 1000), (2, size)]
        for start, length in ranges:
            assert await content(store, KEY, start, length) == meant[start : start + length]
        assert await content(store, KEY, LEAST_PART + 4) == b"end"

    async def test_a_range_beyond_the_end_is_refused(self, store: ObjectStore) -> None:
        await store.put(KEY, [b"123"])
        await store.put("empty", [])
        for key, start, length in (
            (KEY, 3, None),
            (KEY, 4, 1),
            ("empty", 0, 1),
            ("empty", 1, None),
        ):
            with pytest.raises(RangeBeyondEnd):
                await content(store, key, start, length)


class TestAnObjectInParts:
    async def test_an_object_in_parts_exists_only_after_completion(
        self, store: ObjectStore
    ) -> None:
        multipart = await store.begin_multipart(
            KEY, upload="u-1", metadata=METADATA, content_type="image/png"
        )
        last = await store.put_part(multipart, 2, [b"the ", b"end"])
        first = await store.put_part(multipart, 1, LARGE)
        with pytest.raises(ObjectNotFound):
            await store.head(KEY)
        whole = whole_of([first, last])
        made = await store.complete(multipart, [first, last], checksum=whole)
        assert made == await store.head(KEY)
        assert made.size == LEAST_PART + 7
        assert made.checksum == Checksum.of(Algorithm.CRC64NVME, [*LARGE, b"the end"]) == whole
        assert made.metadata == {**METADATA, UPLOAD: "u-1"}
        assert made.content_type == "image/png"
        assert await content(store, KEY) == b"".join(LARGE) + b"the end"

    async def test_the_etag_of_an_object_is_made_from_those_of_its_parts(
        self, store: ObjectStore
    ) -> None:
        multipart, parts = await two_parts(store)
        hashes = b"".join(bytes.fromhex(part.etag) for part in parts)
        made = await store.complete(multipart, parts)
        assert made.etag == hashlib.md5(hashes, usedforsecurity=False).hexdigest() + "-2"

    async def test_an_object_in_parts_can_have_a_crc32c(self, store: ObjectStore) -> None:
        multipart = await store.begin_multipart(KEY, upload="u", algorithm=Algorithm.CRC32C)
        part = await store.put_part(multipart, 1, [b"some"])
        made = await store.complete(multipart, [part], checksum=part.checksum)
        assert made.checksum == part.checksum == Checksum.of(Algorithm.CRC32C, [b"some"])

    async def test_a_completion_with_a_wrong_checksum_is_refused(self, store: ObjectStore) -> None:
        """The parts stay: with the right checksum, the completion succeeds."""
        multipart, parts = await two_parts(store)
        other = Checksum.of(multipart.algorithm, [b"other"])
        with pytest.raises(ChecksumDiffers):
            await store.complete(multipart, parts, checksum=other)
        with pytest.raises(ObjectNotFound):
            await store.head(KEY)
        assert await numbers(store, multipart) == [1, 2]
        await store.complete(multipart, parts, checksum=whole_of(parts))

    async def test_a_repeated_completion_returns_the_same_object(self, store: ObjectStore) -> None:
        multipart, parts = await two_parts(store)
        made = await store.complete(multipart, parts, checksum=whole_of(parts))
        assert await store.complete(multipart, parts, checksum=whole_of(parts)) == made
        assert [found async for found in store.list_multiparts()] == []

    async def test_a_completion_does_not_find_the_object_of_another_upload(
        self, store: ObjectStore
    ) -> None:
        """The object has the same bytes, but it belongs to the other upload."""
        first, second = await begun(store), await begun(store, upload="u-2")
        part = await store.put_part(first, 1, [b"same"])
        await store.complete(first, [part])
        await store.complete(second, [await store.put_part(second, 1, [b"same"])])
        with pytest.raises(MultipartNotFound):
            await store.complete(first, [part])
        assert (await store.head(KEY)).metadata == {UPLOAD: "u-2"}

    async def test_a_completion_may_leave_parts_out(self, store: ObjectStore) -> None:
        multipart = await begun(store)
        await store.put_part(multipart, 3, [b"left out"])
        part = await store.put_part(multipart, 7, [b"taken"])
        await store.complete(multipart, [part])
        assert await content(store, KEY) == b"taken"
        assert [found async for found in store.list_multiparts()] == []


class TestAPart:
    async def test_parts_are_listed_with_size_and_etag(self, store: ObjectStore) -> None:
        multipart = await begun(store)
        assert await store.list_parts(multipart) == []
        sent = [await store.put_part(multipart, n, [b"x" * n]) for n in (30, 2, 10_000)]
        listed = await store.list_parts(multipart)
        assert [(part.number, part.size) for part in listed] == [(2, 2), (30, 30), (10_000, 10_000)]
        meant = {part.number: part for part in sent}
        for part in listed:
            assert part.etag == meant[part.number].etag
            assert part.checksum in (None, meant[part.number].checksum)

    async def test_a_part_with_the_same_bytes_has_the_same_etag(self, store: ObjectStore) -> None:
        multipart = await begun(store)
        first = await store.put_part(multipart, 1, [b"same"])
        assert await store.put_part(multipart, 1, [b"sa", b"me"]) == first
        assert [part.etag for part in await store.list_parts(multipart)] == [first.etag]
        await store.complete(multipart, [first])
        assert await content(store, KEY) == b"same"

    async def test_the_last_bytes_sent_for_a_part_count(self, store: ObjectStore) -> None:
        multipart = await begun(store)
        await store.put_part(multipart, 1, [b"first"])
        last = await store.put_part(multipart, 1, [b"last"])
        await store.complete(multipart, [last], checksum=last.checksum)
        assert await content(store, KEY) == b"last"

    async def test_a_completion_uses_the_parts_named_by_their_etags_or_fails(
        self, store: ObjectStore
    ) -> None:
        """The object has the bytes of the named parts, or the completion is refused."""
        multipart = await begun(store)
        stale = await store.put_part(multipart, 1, [b"first"])
        await store.put_part(multipart, 1, [b"last"])
        try:
            await store.complete(multipart, [stale], checksum=stale.checksum)
        except PartsDiffer:
            with pytest.raises(ObjectNotFound):
                await store.head(KEY)
        else:
            assert await content(store, KEY) == b"first"

    async def test_a_completion_with_a_missing_part_is_refused(self, store: ObjectStore) -> None:
        multipart, [first, last] = await two_parts(store)
        never = Part(3, last.size, last.etag)
        for wrong in ([first._replace(etag="0" * 32), last], [first, last, never]):
            with pytest.raises(PartsDiffer) as refusal:
                await store.complete(multipart, wrong)
            assert refusal.value.numbers == (1 if wrong[0] is not first else 3,)
        with pytest.raises(PartsDiffer):
            await store.complete(multipart, [first._replace(size=1), last])
        await store.complete(multipart, [first, last])

    async def test_a_part_that_is_too_small_is_refused(self, store: ObjectStore) -> None:
        multipart = await begun(store)
        parts = [await store.put_part(multipart, n, [b"small"]) for n in (1, 2)]
        with pytest.raises(PartTooSmall, match=rf"{KEY}.*\b1\b.*\b5\b"):
            await store.complete(multipart, parts)
        assert await numbers(store, multipart) == [1, 2]

    async def test_parts_must_be_named_once_and_in_order(self, store: ObjectStore) -> None:
        multipart, [first, last] = await two_parts(store)
        for wrong in ([], [last, first], [first, first]):
            with pytest.raises(InvalidInput):
                await store.complete(multipart, wrong)
        assert await numbers(store, multipart) == [1, 2]

    @pytest.mark.parametrize("number", [0, -1, 10_001])
    async def test_part_numbers_are_1_to_10000(self, store: ObjectStore, number: int) -> None:
        multipart = await begun(store)
        with pytest.raises(InvalidOption):
            await store.put_part(multipart, number, [b"x"])
        with pytest.raises(InvalidOption):
            await store.copy_part(multipart, number, KEY, start=0, length=1)


class TestACopiedPart:
    async def test_a_copied_part_has_a_range_of_another_object(self, store: ObjectStore) -> None:
        await store.put("source", [b"0123456789"])
        multipart = await begun(store)
        part = await store.copy_part(multipart, 1, "source", start=2, length=5)
        assert part.size == 5
        assert part.checksum in (None, Checksum.of(multipart.algorithm, [b"23456"]))
        await store.complete(multipart, [part])
        assert await content(store, KEY) == b"23456"

    async def test_a_part_is_not_copied_from_beyond_the_end_of_its_source(
        self, store: ObjectStore
    ) -> None:
        await store.put("source", [b"0123456789"])
        multipart = await begun(store)
        with pytest.raises(ObjectNotFound):
            await store.copy_part(multipart, 1, "nowhere", start=0, length=1)
        for start, length in ((10, 1), (5, 6), (0, 0)):
            with pytest.raises(RangeBeyondEnd):
                await store.copy_part(multipart, 1, "source", start=start, length=length)
        assert await numbers(store, multipart) == []


class TestAnAbortedUpload:
    async def test_an_aborted_multipart_upload_refuses_every_call(self, store: ObjectStore) -> None:
        multipart, parts = await two_parts(store)
        await store.put("source", [b"1"])
        await store.abort(multipart)
        await store.abort(multipart)
        for late in (
            store.put_part(multipart, 1, [b"late"]),
            store.copy_part(multipart, 1, "source", start=0, length=1),
            store.list_parts(multipart),
            store.complete(multipart, parts),
        ):
            with pytest.raises(MultipartNotFound):
                await late
        assert [found async for found in store.list_multiparts()] == []

    async def test_aborting_a_completed_upload_leaves_its_object(self, store: ObjectStore) -> None:
        multipart, parts = await two_parts(store)
        await store.complete(multipart, parts)
        await store.abort(multipart)
        assert len(await content(store, KEY)) == LEAST_PART + 7
        for late in (store.put_part(multipart, 1, [b"late"]), store.list_parts(multipart)):
            with pytest.raises(MultipartNotFound):
                await late


class TestWhatWasBegun:
    async def test_a_multipart_upload_is_listed_until_it_has_ended(
        self, store: ObjectStore
    ) -> None:
        await store.put("another", [b"1"])
        multiparts = [await begun(store, f"k/{n}", f"u-{n}") for n in range(3)]
        listed = [found async for found in store.list_multiparts()]
        assert {found[:2] for found in listed} == {made[:2] for made in multiparts}
        assert all(found.begun is not None and found.begun.tzinfo for found in listed)
        part = await store.put_part(multiparts[0], 1, [b"x"])
        await store.complete(multiparts[0], [part])
        for found in listed[1:]:
            await store.abort(found)
        for found in listed:
            await store.abort(found)
        assert [found async for found in store.list_multiparts()] == []

    async def test_multipart_uploads_are_listed_by_key(self, store: ObjectStore) -> None:
        keys = ["k/1", "k/1", "k/10", "k/1/a", "k"]
        multiparts = [await begun(store, key, "u") for key in keys]
        for key in ("k/1", "k/10", "k/1/a", "k", "k/", "other"):
            listed = {found[:2] async for found in store.list_multiparts(key)}
            assert listed == {made[:2] for made in multiparts if made.key == key}, key
        for made in multiparts:
            await store.abort(made)

    async def test_multipart_uploads_of_one_key_have_different_ids(
        self, store: ObjectStore
    ) -> None:
        one, other = await begun(store), await begun(store)
        await store.put_part(one, 1, [b"one"])
        part = await store.put_part(other, 1, [b"other"])
        await store.abort(one)
        await store.complete(other, [part])
        assert await content(store, KEY) == b"other"


class TestBadInput:
    @pytest.mark.parametrize(
        "key",
        ["", "/", "/etc/passwd", "a//b", "a/", "..", "a/../b", "a/.b", ".", "a\0b", "a\nb", "a b",
         "ä", "a~", "a%2f", "a\\b", "a" * 201, "a/" * 400 + "a"],
    )  # fmt: skip
    async def test_every_call_refuses_an_unsafe_key(self, store: ObjectStore, key: str) -> None:
        multipart = Multipart(key, "0" * 32)
        for call in (
            store.put(key, [b""]),
            store.begin_multipart(key, upload="u"),
            store.head(key),
            content(store, key),
            store.delete(key),
            store.put_part(multipart, 1, [b"x"]),
            store.complete(multipart, [Part(1, 1, "0" * 32)]),
            store.abort(multipart),
        ):
            with pytest.raises(InvalidName):
                await call

    async def test_metadata_is_limited_in_names_and_size(self, store: ObjectStore) -> None:
        for metadata in ({"Name": ""}, {"a b": ""}, {"": ""}, {"ä": ""}, {UPLOAD: "forged"}):
            with pytest.raises(InvalidName):
                await store.put(KEY, [b""], metadata=metadata)
        with pytest.raises(PayloadTooLarge):
            await store.begin_multipart(KEY, upload="u", metadata={"a": "ä" * 400})
        for wrong in ("text/html\r\nx: y", "", "ä", "a" * 256):
            with pytest.raises(InvalidOption):
                await store.put(KEY, [b""], content_type=wrong)

    async def test_parts_are_refused_checksums_that_do_not_combine(
        self, store: ObjectStore
    ) -> None:
        with pytest.raises(InvalidOption):
            await store.begin_multipart(KEY, upload="u", algorithm=Algorithm.SHA256)


async def numbers(store: ObjectStore, multipart: Multipart) -> list[int]:
    return [part.number for part in await store.list_parts(multipart)]
