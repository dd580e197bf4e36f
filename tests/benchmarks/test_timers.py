"""The benchmark of many timers at once notices timers that are early or out of order."""

import json
from pathlib import Path

import pytest

from benchmarks.peers.side import handling
from benchmarks.peers.side.produce import PAYLOAD_BYTES, payload_of


class TestAStormOfTimers:
    def test_counts_timers_that_are_out_of_order_and_early(
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
