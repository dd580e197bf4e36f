"""The figures about uploads are measured on the real thing; small here, to see that they work."""

from pathlib import Path

import pytest

from benchmarks.bench import Persistence
from benchmarks.catalogue import BENCHMARKS, PARTS, claim_of
from benchmarks.objects.upload_bench import MIB, new_file, upload_bench
from benchmarks.peers.peer_list import ROOT
from benchmarks.report import UPLOADS


@pytest.mark.parametrize("name", PARTS[UPLOADS])
def test_is_in_the_catalogue_and_on_the_page(name: str) -> None:
    assert name in BENCHMARKS
    assert claim_of(name).endswith(".")
    assert f"| `{name}` |" in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


async def test_both_ways_end_with_the_whole_file_in_the_store(tmp_path: Path) -> None:
    file = new_file(str(tmp_path), 9 * MIB)
    async with upload_bench(Persistence.MEMORY) as bench:
        assert await bench.uploaded(file, "1m") > 0
        assert await bench.direct(file) > 0
        page = await bench.s3.list_objects_v2(Bucket="bench")
        assert [found["Size"] for found in page["Contents"]] == [9 * MIB, 9 * MIB]
        await bench.clear()
        assert "Contents" not in await bench.s3.list_objects_v2(Bucket="bench")
