"""The plan of an upload assigns chunks to parts by sizes alone."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.apps.uploads.errors import PartTooLarge, UploadTooLarge
from towpath.apps.uploads.model import (
    LARGEST_SIZE,
    LEAST_PART,
    NewUpload,
    Range,
    UploadPlan,
    gaps,
    ranges,
)
from towpath.apps.uploads.options import LARGEST_CHUNK, MIB, SMALLEST_CHUNK, UploadsOptions
from towpath.apps.uploads.stores.port import MOST_PARTS, content_type_of
from towpath.errors import InvalidInput, InvalidOption
from towpath.testing import drift

ANY = 2**60
sizes = st.one_of(st.integers(0, 64 * MIB), st.integers(0, LARGEST_SIZE))
chunk_sizes = st.integers(SMALLEST_CHUNK, LARGEST_CHUNK)


class TestThePlanOfAnUpload:
    @given(size=sizes, chunk_size=chunk_sizes)
    def test_parts_are_whole_chunks_large_enough_and_few_enough(
        self, size: int, chunk_size: int
    ) -> None:
        plan = UploadPlan.of(size, chunk_size, largest_part=ANY)
        assert plan.part_size % chunk_size == 0
        assert plan.part_size >= LEAST_PART
        assert plan.part_size - chunk_size < max(LEAST_PART, -(-size // MOST_PARTS))
        assert (plan.total_parts or 0) <= MOST_PARTS

    @given(size=st.integers(0, 40 * MIB), chunk_size=st.integers(SMALLEST_CHUNK, 9 * MIB))
    def test_chunks_and_parts_add_up_to_the_file(self, size: int, chunk_size: int) -> None:
        plan = UploadPlan.of(size, chunk_size, largest_part=ANY)
        parts, chunks = range(plan.total_parts or 0), range(plan.total_chunks or 0)
        lengths = [plan.chunk_length(number) or 0 for number in chunks]
        assert sum(lengths) == size
        assert all(0 < length <= chunk_size for length in lengths)
        assert sum(map(plan.part_length, parts)) == size
        assert list(chain.from_iterable(map(plan.chunks_of, parts))) == list(chunks)
        for part in parts:
            own = plan.chunks_of(part)
            assert sum(lengths[number] for number in own) == plan.part_length(part)
            assert {plan.part_of(number) for number in own} == {part}

    @given(chunk_size=chunk_sizes)
    def test_without_a_size_parts_have_eight_mebibytes_or_one_chunk(self, chunk_size: int) -> None:
        plan = UploadPlan.of(None, chunk_size, largest_part=ANY)
        assert LEAST_PART <= plan.part_size < LEAST_PART + chunk_size
        assert plan.total_chunks is None
        assert plan.total_parts is None
        assert plan.most_chunks == MOST_PARTS * plan.chunks_per_part
        assert plan.part_length(7) == plan.part_size
        assert plan.chunk_length(0) is None

    def test_an_empty_file_has_no_chunks(self) -> None:
        plan = UploadPlan.of(0, MIB, largest_part=ANY)
        assert (plan.total_chunks, plan.total_parts, plan.most_chunks) == (0, 0, 0)

    def test_a_part_above_the_share_of_an_owner_is_refused_at_the_start(self) -> None:
        options = UploadsOptions(budget=128 * MIB, owner_share=10)
        with pytest.raises(PartTooLarge):
            UploadPlan.of(100 * MIB, 13 * MIB, largest_part=options.largest_part)
        UploadPlan.of(100 * MIB, 12 * MIB, largest_part=options.largest_part)

    def test_the_share_of_an_owner_has_room_for_a_part(self) -> None:
        with pytest.raises(InvalidOption):
            UploadsOptions(budget=128 * MIB, owner_share=6)
        assert UploadsOptions(budget=128 * MIB, owner_share=7).share >= 8 * MIB

    def test_a_part_above_a_quarter_of_the_budget_is_refused_at_the_start(self) -> None:
        options = UploadsOptions(budget=64 * MIB)
        with pytest.raises(PartTooLarge, match=rf"\b{17 * MIB}\b.*\b{16 * MIB}\b"):
            UploadPlan.of(None, 17 * MIB, largest_part=options.largest_part)
        assert (
            UploadPlan.of(None, 16 * MIB, largest_part=options.largest_part).part_size == 16 * MIB
        )

    def test_a_file_that_no_object_can_hold_is_refused(self) -> None:
        with pytest.raises(UploadTooLarge):
            UploadPlan.of(LARGEST_SIZE + 1, MIB, largest_part=ANY)

    @pytest.mark.parametrize("chunk_size", [0, -1, SMALLEST_CHUNK - 1, LARGEST_CHUNK + 1, True])
    def test_chunks_have_64_kib_to_64_mib(self, chunk_size: int) -> None:
        with pytest.raises(InvalidOption):
            UploadPlan.of(1, chunk_size, largest_part=ANY)


class TestRangesOfMissingChunks:
    @given(numbers=st.sets(st.integers(0, 200)), total=st.integers(0, 210))
    def test_are_the_numbers_whose_bits_are_not_set(self, numbers: set[int], total: int) -> None:
        bitmap = bytearray(1 + max(numbers, default=0) // 8)
        for number in numbers:
            bitmap[number // 8] |= 0x80 >> number % 8
        wanted = ranges(number for number in range(total) if number not in numbers)
        assert gaps(bytes(bitmap), total, most=1000) == wanted

    def test_ranges_are_limited_in_number(self) -> None:
        assert gaps(b"\xaa" * 100, 800, most=2) == [Range(1, 1), Range(3, 3)]


class TestANewUpload:
    @pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 1025, "ü" * 513, "\ud800"])
    def test_an_upload_with_an_invalid_name_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidInput):
            NewUpload(name=name)

    @pytest.mark.parametrize("name", ["../../etc/passwd", "ü" * 512, "a b.pdf", "🦆"])
    def test_an_upload_may_have_any_other_name(self, name: str) -> None:
        assert NewUpload(name=name).name == name

    @pytest.mark.parametrize("connector", ["", "a/b", "..", "a.b", "ü", "x" * 129, "a b"])
    def test_a_connector_that_could_leave_its_folder_is_refused(self, connector: str) -> None:
        with pytest.raises(InvalidInput):
            NewUpload(name="a", connector_id=connector)

    @pytest.mark.parametrize(
        "mime",
        [
            "", "text", "text/html\r\nX: 1", "a/b/c", "a/b\r\n\r\n;c", "a/b\n;c", "a/b;\tc",
            "a/b;  c", "a/b; ", f"a/b;{'c' * 252}",
        ],
    )  # fmt: skip
    def test_a_type_that_could_inject_a_header_is_refused(self, mime: str) -> None:
        with pytest.raises(InvalidInput):
            NewUpload(name="a", mime_type=mime)

    @pytest.mark.parametrize(
        "mime", ["text/csv", "text/csv;charset=utf-8", 'a/b ; c="d e"', f"a/b;{'c' * 251}"]
    )
    def test_accepted_types_are_valid_for_every_store(self, mime: str) -> None:
        assert content_type_of(NewUpload(name="a", mime_type=mime).mime_type) == mime


class TestTheTables:
    async def test_the_tables_equal_what_the_migrations_make(self) -> None:
        from towpath.apps.uploads.tables import TABLES  # noqa: PLC0415

        assert await drift(TABLES) == []
