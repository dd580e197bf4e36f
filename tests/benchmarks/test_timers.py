"""The figures about timers are measured on the real thing; small here, to see that they work."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import timers_accuracy, timers_scale, timers_service, timers_storm
from benchmarks.bench import Plan
from benchmarks.catalogue import BENCHMARKS, PARTS, claim_of
from benchmarks.figure import Figure
from benchmarks.peers.peer_bench import peer_bench
from benchmarks.peers.peer_list import ROOT
from benchmarks.peers.side import handling
from benchmarks.peers.side.produce import PAYLOAD_BYTES, payload_of
from benchmarks.report import TIMERS


class Small(Plan, frozen=True):
    """Enough to see that it works."""

    @property
    def rounds(self) -> int:
        return 1

    def count(self, full: int, quick: int) -> int:
        return {2_000: 50, 200: 5, 1_000_000: 2_000, 7: 1, 4_000: 100, 1_000: 20, 10_000: 100}[full]


def by_name(figures: Sequence[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


@pytest.mark.parametrize("name", PARTS[TIMERS])
def test_is_in_the_catalogue_and_on_the_page(name: str) -> None:
    assert name in BENCHMARKS
    assert claim_of(name).endswith(".")
    assert f"| `{name}` |" in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


async def test_accuracy_is_that_of_every_timer() -> None:
    *_, ours = timers_accuracy.contenders()
    async with peer_bench() as bench:
        late = await timers_accuracy.late_by(bench, ours, count=20, span_ms=100, first_ms=1_000)
    assert len(late) == 20
    assert min(late) >= 0


async def test_a_storm_is_over_when_all_have_run() -> None:
    *_, ours = timers_accuracy.contenders()
    async with peer_bench() as bench:
        storm = await timers_storm.storm_of(bench, ours, 100, "storm", lead=2.0)
    assert (storm.behind, storm.early) == (0, 0)
    assert storm.seconds > 0.9
    assert storm.cpu_us > 0


class TestAStorm:
    def test_counts_who_comes_out_of_order_and_early(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = tmp_path / "report"
        monkeypatch.setenv(handling.REPORT, str(told))
        for due in (1, 3, 2, 4e12):
            handling.handled(payload_of("storm", run=str(tmp_path), of=4, at=due))
        [line] = map(json.loads, told.read_text().splitlines())
        assert (line["kind"], line["behind"], line["early"]) == ("storm", 1, 1)

    def test_has_jobs_of_106_bytes(self) -> None:
        payload = payload_of("storm", run="storm-1", of=50_000, at=1_794_000_000_123)
        assert len(json.dumps(payload)) == PAYLOAD_BYTES


async def test_scale_stands_beside_a_bare_set() -> None:
    figures = by_name(await timers_scale.run(Small(quick=True)))
    for verb in ("submit", "move", "cancel", "late"):
        figure = figures[f"timers_scale.{verb}"]
        assert figure.target == "<= 1.1 x bare"
        assert figure.beside_value is not None
        assert figure.beside_value > 0
    assert figures["timers_scale.memory"].value > 100


async def test_calls_stand_beside_httpx_alone() -> None:
    figures = by_name(await timers_service.run(Small(quick=True)))
    assert figures["timers_service"].value > 0
    assert (figures["timers_service"].beside_value or 0) > 0
