"""The benchmark of uploads compares two ways that both store the whole file."""

from pathlib import Path

from benchmarks.bench import Persistence
from benchmarks.objects.upload_bench import MIB, new_file, upload_bench
from tests.amounts import slow


@slow
async def test_both_ways_end_with_the_whole_file_in_the_object_store(tmp_path: Path) -> None:
    file = new_file(str(tmp_path), 9 * MIB)
    async with upload_bench(Persistence.MEMORY) as bench:
        assert await bench.uploaded(file, "1m") > 0
        assert await bench.direct(file) > 0
        page = await bench.s3.list_objects_v2(Bucket="bench")
        assert [found["Size"] for found in page["Contents"]] == [9 * MIB, 9 * MIB]
        await bench.clear()
        assert "Contents" not in await bench.s3.list_objects_v2(Bucket="bench")
