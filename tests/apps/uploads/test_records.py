"""The entries of uploads in Redis: what counts, what is refused, what is missing again."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.apps.uploads.uploading import digest_of, new_row, put_one
from towpath.apps.uploads.errors import (
    ChunkDiffers,
    ChunkInvalid,
    ChunkLost,
    LastChunkDiffers,
    UploadEnded,
    UploadFailed,
    UploadGone,
    UploadTooLarge,
)
from towpath.apps.uploads.hashes import PartEntry
from towpath.apps.uploads.model import Range, Status, Upload
from towpath.apps.uploads.options import UploadsOptions
from towpath.apps.uploads.records import UploadRecords
from towpath.apps.uploads.states import CountedChunk, KnownSize, PartStale, UploadUnknown
from towpath.clock import ManualClock, hours, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine

MOST = 30_000
PutChunk = Callable[..., Awaitable[CountedChunk]]


@pytest.fixture
async def upload(records: UploadRecords) -> Upload:
    """An upload of 50 bytes: thirteen chunks, the last of two bytes; five parts, the last of one
    chunk."""
    row = new_row()
    await records.state(row.upload_id).open(row, {})
    return row


@pytest.fixture
def put(records: UploadRecords) -> PutChunk:
    async def put(
        number: int, data: bytes | None = None, *, of: str = "u1", last: bool = False
    ) -> CountedChunk:
        data = bytes([number % 251]) * 4 if data is None else data
        token = f"t{number}-{digest_of(data).hex()[:6]}"
        chunks = records.chunks(of)
        await chunks.append(token, 0, data)
        found = await put_one(records.state(of), number, data, token, last=last, most=MOST)
        await chunks.place({number: found.token}, 1)
        return found

    return put


async def fill(put: PutChunk, numbers: range) -> CountedChunk:
    found = None
    for number in numbers:
        found = await put(number, b"zz" if number == 12 else None)
    assert found is not None
    return found


def time_left(server: EmbeddedServer, key: str) -> int:
    """Milliseconds."""
    left = server.ask("PTTL", f"upload:{{u1}}:{key}")
    assert isinstance(left, int)
    return left


class TestAnUploadThatWasOpened:
    async def test_an_opened_upload_has_every_published_field(
        self, records: UploadRecords, upload: Upload
    ) -> None:
        state, metadata = await records.state("u1").look()
        assert set(state) >= {
            "node_id", "s3_upload_id", "s3_key", "drive", "status", "expected_size",
            "received_chunks", "uploaded_chunks", "total_chunks", "is_last_received", "created_at",
            "updated_at", "mime_type", "final_etag", "final_size", "error_message",
        }  # fmt: skip
        assert (state["status"], state["total_chunks"]) == ("PENDING", "13")
        assert set(metadata) == {
            "name", "connector_id", "parent_id", "path", "custom_metadata", "client_node_id"
        }  # fmt: skip

    async def test_an_opened_upload_has_the_published_keys(
        self, upload: Upload, put: PutChunk, server: EmbeddedServer
    ) -> None:
        await put(0)
        for key, kind in {"state": b"hash", "metadata": b"hash", "chunks:0": b"string"}.items():
            assert server.ask("TYPE", f"upload:{{u1}}:{key}") == kind

    async def test_an_upload_is_opened_once(
        self, records: UploadRecords, upload: Upload, put: PutChunk
    ) -> None:
        await put(0)
        assert not await records.state("u1").open(upload, {})
        assert (await records.state("u1").look())[0]["received_chunks"] == "1"

    async def test_a_newer_generation_opens_the_upload_with_its_stored_parts(
        self, records: UploadRecords, upload: Upload, put: PutChunk
    ) -> None:
        await fill(put, range(3))
        assert await records.state("u1").open(new_row(generation=2), {1: PartEntry("e", 12)})
        chart = await records.sync("u1")
        assert chart.missing() == [Range(0, 2), Range(6, 12)]
        assert chart.fields["uploaded_chunks"] == "3"


class TestAChunk:
    async def test_a_repeated_chunk_counts_once(self, upload: Upload, put: PutChunk) -> None:
        assert (await put(0)).received == 1
        again = await put(0)
        assert (again.duplicate, again.received) == (True, 1)

    async def test_other_bytes_for_a_received_chunk_are_refused(
        self, upload: Upload, put: PutChunk
    ) -> None:
        await put(0, b"aaaa")
        with pytest.raises(ChunkDiffers):
            await put(0, b"bbbb")

    async def test_a_repeated_chunk_of_a_stored_part_counts_once(
        self, records: UploadRecords, upload: Upload, put: PutChunk
    ) -> None:
        await fill(put, range(3))
        await records.state("u1").note_part_stored(1, 0, 0, PartEntry("e", 12))
        await records.chunks("u1").delete(range(3))
        again = await put(1)
        assert (again.duplicate, again.received, again.turn) == (True, 3, None)
        with pytest.raises(ChunkDiffers):
            await put(1, b"bbbb")

    @pytest.mark.parametrize("data", [b"", b"aaa", b"aaaaa"])
    async def test_a_chunk_of_a_wrong_length_is_refused(
        self, upload: Upload, put: PutChunk, data: bytes
    ) -> None:
        with pytest.raises(ChunkInvalid):
            await put(0, data)

    async def test_a_chunk_after_the_last_one_is_refused(
        self, upload: Upload, put: PutChunk
    ) -> None:
        with pytest.raises(UploadTooLarge):
            await put(13)

    async def test_only_the_last_chunk_can_end_the_file(
        self, upload: Upload, put: PutChunk
    ) -> None:
        with pytest.raises(LastChunkDiffers):
            await put(3, last=True)

    @pytest.mark.parametrize(
        ("status", "error"),
        [
            (Status.COMPLETED, UploadEnded),
            (Status.FAILED, UploadFailed),
            (Status.ABORTED, UploadGone),
            (Status.EXPIRED, UploadGone),
        ],
    )
    async def test_a_chunk_of_an_ended_upload_is_refused(
        self,
        records: UploadRecords,
        upload: Upload,
        put: PutChunk,
        status: Status,
        error: type[Exception],
    ) -> None:
        await records.state("u1").end(1, status)
        with pytest.raises(error):
            await put(0)

    async def test_a_chunk_of_an_unknown_upload_raises_upload_unknown(self, put: PutChunk) -> None:
        with pytest.raises(UploadUnknown):
            await put(0, of="u2")

    async def test_of_two_concurrent_chunks_the_first_one_counts(
        self, records: UploadRecords, upload: Upload
    ) -> None:
        state, chunks = records.state("u1"), records.chunks("u1")
        for token, data in (("one", b"aaaa"), ("two", b"bbbb")):
            await chunks.append(token, 0, data)
        first = await put_one(state, 0, b"aaaa", "one")
        with pytest.raises(ChunkDiffers):
            await put_one(state, 0, b"bbbb", "two")
        # It was not put into its place yet, and is found all the same.
        assert await chunks.fetch({0: first.token}, 4) == {0: [b"aaaa"]}
        await chunks.place({0: first.token}, 1)
        assert await chunks.fetch({0: first.token}, 4) == {0: [b"aaaa"]}

    async def test_pieces_of_a_chunk_are_appended_in_order(
        self, records: UploadRecords, upload: Upload
    ) -> None:
        chunks = records.chunks("u1")
        await chunks.append("t", 0, b"aa")
        with pytest.raises(ChunkLost):
            await chunks.append("t", 0, b"aa")
        await chunks.append("t", 2, b"bb")
        assert await chunks.fetch({0: "t"}, 4) == {0: [b"aabb"]}


class TestAnUnknownSize:
    @pytest.fixture
    async def upload(self, records: UploadRecords) -> Upload:
        row = new_row(size=None)
        await records.state("u1").open(row, {})
        return row

    async def test_the_last_chunk_sets_an_unknown_size(
        self, records: UploadRecords, upload: Upload, put: PutChunk
    ) -> None:
        await put(0)
        await put(4, b"xy", last=True)
        closed = await records.state("u1").close(5)
        assert (closed.size, closed.part) == (18, None)
        assert (await records.sync("u1")).missing() == [Range(1, 3)]
        assert (await put(3)).turn == 0

    async def test_allows_no_second_last_chunk(
        self, records: UploadRecords, upload: Upload, put: PutChunk
    ) -> None:
        await put(4, b"xy", last=True)
        await records.state("u1").close(5)
        for number in (3, 5):
            with pytest.raises((LastChunkDiffers, UploadTooLarge, ChunkInvalid)):
                await put(number, b"z", last=True)

    async def test_allows_no_last_chunk_before_others(self, upload: Upload, put: PutChunk) -> None:
        await put(4)
        with pytest.raises(LastChunkDiffers):
            await put(3, last=True)
        with pytest.raises(LastChunkDiffers):
            await put(3, b"x")

    async def test_allows_nothing_after_a_shorter_chunk(
        self, upload: Upload, put: PutChunk
    ) -> None:
        await put(4, b"x")
        with pytest.raises(LastChunkDiffers):
            await put(5)
        with pytest.raises(LastChunkDiffers):
            await put(2, b"x")
        await put(2)

    async def test_allows_no_number_beyond_the_maximum(self, upload: Upload, put: PutChunk) -> None:
        with pytest.raises(UploadTooLarge):
            await put(MOST)

    async def test_an_upload_whose_parts_were_stored_before_its_size_was_known_is_completed(
        self, records: UploadRecords, upload: Upload, put: PutChunk
    ) -> None:
        assert (await fill(put, range(3))).turn == 0
        assert not await records.state("u1").note_part_stored(1, 0, 0, PartEntry("e", 12))
        closed = await records.state("u1").close(3)
        assert (closed.last, closed.size) == (True, 12)
        assert (await records.state("u1").close(3)).last

    async def test_an_upload_of_unknown_size_may_end_without_bytes(
        self, records: UploadRecords, upload: Upload
    ) -> None:
        assert await records.state("u1").close(0) == KnownSize(0, 1, None, 0, last=True)


class TestAPart:
    async def test_a_part_is_whole_with_its_last_chunk_in_any_order(
        self, upload: Upload, put: PutChunk
    ) -> None:
        assert [(await put(number)).turn for number in (5, 3, 4)] == [None, None, 0]
        assert (await put(12, b"zz")).turn == 0

    async def test_a_repeated_chunk_returns_the_turn_of_its_whole_part(
        self, upload: Upload, put: PutChunk
    ) -> None:
        await fill(put, range(3))
        assert (await put(1)).turn == 0

    async def test_exactly_one_commit_reports_the_last_part(
        self, records: UploadRecords, upload: Upload, put: PutChunk
    ) -> None:
        await fill(put, range(13))
        state = records.state("u1")
        sizes = [12, 12, 12, 12, 2]
        last = [
            await state.note_part_stored(1, part, 0, PartEntry("same", size))
            for part, size in enumerate(sizes)
        ]
        assert last == [False] * 4 + [True]
        # Parts may have equal ETags; a repeated commit gets the same answer.
        assert len((await state.chart()).parts) == 5
        assert await state.note_part_stored(1, 4, 0, PartEntry("same", 2))
        fields, _ = await state.look()
        assert (fields["status"], fields["uploaded_chunks"]) == ("COMPLETING", "13")

    async def test_a_part_of_an_older_generation_is_stale(
        self, records: UploadRecords, upload: Upload, put: PutChunk
    ) -> None:
        await fill(put, range(3))
        with pytest.raises(PartStale):
            await records.state("u1").take(0, 0, 0)
        with pytest.raises(PartStale):
            await records.state("u1").note_part_stored(0, 0, 0, PartEntry("e", 12))

    async def test_a_part_whose_bytes_expired_is_missing_and_gets_a_new_turn(
        self, records: UploadRecords, upload: Upload, put: PutChunk, server: EmbeddedServer
    ) -> None:
        await fill(put, range(3))
        server.ask("DEL", "upload:{u1}:chunks:1")
        chart = await records.sync("u1")
        assert chart.missing()[0] == Range(1, 1)
        assert chart.fields["received_chunks"] == "2"
        with pytest.raises(PartStale):
            await records.state("u1").take(1, 0, 0)
        with pytest.raises(ChunkDiffers):
            await put(1, b"abcd")
        assert (await put(1)).turn == 1
        taken = await records.state("u1").take(1, 0, 1)
        assert taken.chunks == 3


class TestTheBytes:
    async def test_bytes_of_a_chunk_stay_while_other_chunks_arrive(
        self,
        records: UploadRecords,
        upload: Upload,
        put: PutChunk,
        server: EmbeddedServer,
        clock: ManualClock,
    ) -> None:
        await put(0)
        server.ask("PEXPIRE", "upload:{u1}:chunks:0", "1000")
        clock.advance(minutes(10))
        await put(4)
        assert time_left(server, "chunks:0") > 3_000_000

    async def test_bytes_expire_after_an_hour_and_the_state_after_a_day(
        self, upload: Upload, put: PutChunk, server: EmbeddedServer
    ) -> None:
        await put(0)
        hour, day = (int(hours(n).total_seconds() * 1000) for n in (1, 24))
        longest = hour + 62_000  # their times to live are renewed once a minute
        for key in ("chunks:0", "held"):
            assert 0 < time_left(server, key) <= longest
        for key in ("state", "metadata", "received", "digests", "pending", "fill"):
            assert hour < time_left(server, key) <= day


class TestChunksOnAnotherServer:
    @pytest.fixture
    async def records(
        self, engine: Engine, oldest_server: EmbeddedServer, clock: ManualClock
    ) -> AsyncIterator[UploadRecords]:
        async with Engine(oldest_server.url, clock=clock) as other:
            yield UploadRecords(engine, other, UploadsOptions())

    async def test_chunks_are_only_on_their_own_redis(
        self,
        upload: Upload,
        put: PutChunk,
        server: EmbeddedServer,
        oldest_server: EmbeddedServer,
    ) -> None:
        assert (await fill(put, range(3))).turn == 0
        assert server.ask("EXISTS", "upload:{u1}:chunks:0") == 0
        assert oldest_server.ask("GET", "upload:{u1}:chunks:2") == b"\x02" * 4
        assert oldest_server.ask("EXISTS", "upload:{u1}:state") == 0
