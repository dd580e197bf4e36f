"""The figures about uploads are measured on the real thing; small here, to see that they work."""

from pathlib import Path

import pytest

from benchmarks.bench import Kept
from benchmarks.catalogue import BENCHMARKS, PARTS, claim_of
from benchmarks.objects.stage import MIB, new_file, stage
from benchmarks.peers.roster import ROOT
from benchmarks.report import UPLOADS


@pytest.mark.parametrize("name", PARTS[UPLOADS])
def test_is_in_the_catalogue_and_on_the_page(name: str) -> None:
    assert name in BENCHMARKS
    assert claim_of(name).endswith(".")
    assert f"| `{name}` |" in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


async def test_both_ways_end_with_the_whole_file_in_the_store(tmp_path: Path) -> None:
    file = new_file(str(tmp_path), 9 * MIB)
    async with stage(Kept.MEMORY) as it:
        assert await it.uploaded(file, "1m") > 0
        assert await it.direct(file) > 0
        page = await it.s3.list_objects_v2(Bucket="bench")
        assert [found["Size"] for found in page["Contents"]] == [9 * MIB, 9 * MIB]
        await it.clear()
        assert "Contents" not in await it.s3.list_objects_v2(Bucket="bench")
