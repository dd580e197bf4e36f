"""The comparison with peers reports who took part, with what results, and why a peer is missing."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.bench import Plan
from benchmarks.peers import chart, comparison, crash, environments, page
from benchmarks.peers.environments import NotInstalled, node_environment
from benchmarks.peers.peer_bench import peer_bench
from benchmarks.peers.peer_list import OURS, ROOT, Peer, all_peers, ours, read_row
from benchmarks.peers.row_round import RowCounts, RowRound, measure_defaults, measure_row
from benchmarks.peers.run_results import Comparison, Recoveries, Recovery, RowIdentity, RowResults
from benchmarks.peers.side import handling
from benchmarks.peers.side.process_tree import process_tree
from benchmarks.peers.side.produce import PAYLOAD_BYTES, payload_of
from tests.programs import Bounded
from tests.waiting import HANGS, eventually

rows = pytest.mark.parametrize("peer", all_peers(), ids=lambda peer: peer.name)


class TestARowOfTheComparison:
    @rows
    def test_names_its_settings_and_its_worker(self, peer: Peer) -> None:
        assert peer.label
        assert len(peer.settings.split()) > 1
        assert peer.worker
        assert peer.producer

    @rows
    def test_names_the_versions_of_its_packages(self, peer: Peer) -> None:
        """Towpath runs from this checkout, so its row needs none."""
        sign = "@" if peer.on_node else "=="
        assert all(len(need.rpartition(sign)[2].split(".")) == 3 for need in peer.requires)
        assert (peer.version == "") == (peer.name == OURS)

    def test_without_settings_is_refused(self, tmp_path: Path) -> None:
        row = tmp_path / "lazy_row.py"
        row.write_text('LABEL = "Lazy"\nWORKER = "lazy"\n')
        with pytest.raises(msgspec.ValidationError, match="settings"):
            read_row(row, root=tmp_path)

    def test_exists_for_every_peer(self) -> None:
        assert {peer.name for peer in all_peers()} == {
            *("arq", "bullmq", "celery", "dramatiq", "huey", "rq", "saq", "streaq"),
            *("taskiq_list", "taskiq_stream", OURS),
        }


def test_chosen_rows_can_be_measured_but_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    for words, why in (
        (["peers", "--only", "nobody"], "no such row: nobody; there are arq,"),
        (["pickup", "--only", "huey"], "--only is about the rows of peers"),
        (["peers", "--only", "huey", "--write"], "--write needs whole parts"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert why in capsys.readouterr().err


class TestAJobOfTheComparison:
    @pytest.mark.parametrize("kind", ["drain", "pickup", "delayed", "long"])
    def test_has_106_bytes(self, kind: str) -> None:
        payload = payload_of(kind, run="r", of=20_000, at=1_794_000_000_123.456)
        assert len(json.dumps(payload)) == PAYLOAD_BYTES

    def test_is_reported_if_it_is_the_last_or_a_repeat(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = tmp_path / "report"
        monkeypatch.setenv(handling.REPORT, str(told))
        job = payload_of("drain", run=str(tmp_path), of=3)

        handling.handled(job)
        handling.handled(job)
        assert not told.exists()

        handling.handled(job)
        handling.handled(job)
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        assert [line["kind"] for line in lines] == ["drain", "excess"]
        assert lines[0]["jobs"] == 3


class TestAPeerThatCannotBeInstalled:
    @pytest.fixture(autouse=True)
    def bare_machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environments, "PLACE", tmp_path)
        monkeypatch.setenv("PATH", "")

    async def test_is_shown_with_the_reason(self) -> None:
        [node] = [peer for peer in all_peers() if peer.on_node]
        compared = await comparison.compare(Plan(quick=True), [node])
        text = "\n".join(page.comparison_blocks(compared))
        [row] = compared.rows
        assert row.not_measured
        assert f"BullMQ (Node): not measured: {row.not_measured}" in text

    def test_is_not_installed_again_once_it_is_there(self, tmp_path: Path) -> None:
        needs = ("bullmq@6.7.0",)
        with pytest.raises(NotInstalled):
            node_environment("here", needs)
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / ".installed").write_text(needs[0])
        assert node_environment("here", needs) == tmp_path / "here"

    def test_is_installed_again_for_another_version(self, tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / ".installed").write_text("bullmq@6.7.0")
        with pytest.raises(NotInstalled):
            node_environment("here", ("bullmq@6.7.1",))


async def test_a_row_whose_producer_ends_is_shown_with_the_last_line_of_the_producer() -> None:
    broken = Peer(
        name="broken",
        module="broken",
        label="Broken",
        settings="none",
        worker="python -c pass",
        producer="python -m benchmarks.peers.side.produce no_such_row",
    )
    async with peer_bench() as bench:
        seen = await measure_row(bench, broken, RowCounts.of(Plan(quick=True)), seed=1)
    assert "No module named 'no_such_row'" in seen.stopped


FEW = RowCounts(jobs=60, one_by_one=10, samples=2, wire=10, last_due_ms=1_600, defaults=20)


async def test_the_row_of_towpath_also_submits_without_a_loop_and_drains_with_defaults() -> None:
    async with peer_bench() as bench:
        seen = await measure_row(bench, ours(), FEW, seed=1)
        await measure_defaults(bench, ours(), FEW, seen)
    assert seen.stopped == ""
    assert seen.submit_blocking
    assert seen.drain_defaults


def test_a_worker_ends_with_the_bench_even_if_that_is_killed() -> None:
    """A killed process closes its end of the pipe, which is enough for the worker's keeper."""
    keeper = Bounded[bytes](
        [sys.executable, "-m", "benchmarks.peers.side.lifeline", "sleep", "60"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    eventually(lambda: len(process_tree(keeper.pid)) == 2)
    assert keeper.stdin is not None
    keeper.stdin.close()
    keeper.wait(HANGS)
    eventually(lambda: process_tree(keeper.pid) == [keeper.pid])


# -- what is shown ---------------------------------------------------------------------------------


def row_results(
    name: str, *drains: float, ours: bool = False, in_python: bool = True
) -> RowResults:
    """A row that drained at these rates, round by round."""
    who = RowIdentity(name, name.title(), "1.2.3", "its best", in_python=in_python, ours=ours)
    measured = [
        RowRound(jobs=20_000, drain=drain, worker_us=20, run_cpu_us=30, pickup_ms=[1.0, 2.0, 9.0])
        for drain in drains
    ]
    return RowResults(who, measured)


def compared(*rows: RowResults) -> Comparison:
    return Comparison("2026-11-15", "Towpath 0.1.0", quick=False, rows=list(rows))


class TestTheTableOfPeers:
    def test_marks_targets_as_reached_by_the_ratios_of_the_rounds(self) -> None:
        run = compared(
            row_results("slow", 100, 100, 100),
            row_results("quick", 1_000, 2_000, 4_000),
            row_results("node", 5_000, 5_000, 5_000, in_python=False),
            row_results("towpath", 6_000, 12_000, 24_000, ours=True),
        )
        python, node, *_ = comparison.figures(run)
        assert (python.ratio, python.reached) == (6, True)
        assert (node.ratio, node.reached) == (2.4, False)
        text = "\n".join(page.comparison_blocks(run))
        assert "6 x 2,000 jobs/s, Quick" in text
        assert "2.4 x 5,000 jobs/s, Node" in text
        [reason] = [line for line in text.splitlines() if "83 µs" in line]
        assert reason.startswith("- peers.node ")

    def test_compares_each_other_target_with_its_own_peer(self) -> None:
        ours_row = row_results("towpath", 10_000, ours=True)
        ours_row.measured[0].drain_defaults = 8_400
        ours_row.measured[0].submit_one = 3_000
        ours_row.measured[0].submit_blocking = 4_000
        ours_row.measured[0].bytes_per_job = 310
        huey, celery = row_results("huey", 100), row_results("celery", 100)
        huey.measured[0].submit_one, huey.measured[0].pickup_ms = 4_000, [0.5, 3.0, 99.0]
        celery.measured[0].late_ms, ours_row.measured[0].late_ms = [2.0], [1.0]
        run = compared(huey, celery, ours_row)
        reached = {figure.name: figure.reached for figure in comparison.figures(run)}
        assert reached["peers.defaults"] is False  # 0.84
        assert reached["peers.submit_async"] is False  # no peer to compare with
        assert reached["peers.submit_blocking"] is True
        assert reached["peers.pickup_p50"] is False  # Celery's 2 ms are as good
        assert reached["peers.late_p50"] is True
        assert reached["peers.bytes"] is True

    def test_has_the_fastest_first_and_gaps_without_measurements(self) -> None:
        run = compared(row_results("slow", 100), row_results("towpath", 6_000, ours=True))
        rows = page.comparison_blocks(run)[1].splitlines()[2:]
        assert [row.split(" | ")[0] for row in rows] == ["| **Towpath**", "| Slow"]
        assert rows[0].split(" | ")[7:9] == ["2", "9"]
        assert "not measured" in rows[0]

    def test_names_a_peer_that_handled_jobs_twice(self) -> None:
        careless = row_results("careless", 100, 100)
        careless.measured[1].twice = 3
        text = "\n".join(page.comparison_blocks(compared(careless, row_results("careful", 90, 90))))
        assert "Careless: 3 " in text
        assert "Careful: " not in text

    def test_does_not_mark_an_unmeasured_target_as_reached(self) -> None:
        unseen = row_results("towpath", ours=True)
        unseen.not_measured = "it is away"
        for figure in comparison.figures(compared(row_results("slow", 100), unseen))[:2]:
            assert figure.reached is False
        text = "\n".join(page.comparison_blocks(compared(row_results("slow", 100), unseen)))
        [missed] = [line for line in text.splitlines() if "peers.python" in line]
        assert "it is away" in missed


def recoveries(seconds: float | None, *, not_measured: str = "") -> Recoveries:
    who = RowIdentity("towpath", "Towpath", "0.1.0", "its best", ours=True)
    one = Recovery(who, seconds, not_measured)
    return Recoveries("2026-11-15", "Towpath 0.1.0", quick=False, watched=30, recoveries=[one])


@pytest.mark.parametrize(
    ("seconds", "shown"), [(14.2, "14.2 s"), (15.3, "15.3 s"), (None, "not within 30 s")]
)
def test_a_crash_is_shown_with_what_was_observed(seconds: float | None, shown: str) -> None:
    run = recoveries(seconds)
    [figure] = crash.figures(run)
    assert figure.reached == (seconds == 14.2)
    assert f"| Towpath | 0.1.0 | {shown} |" in page.recovery_blocks(run)[1]


def test_the_page_has_marks_for_all_parts_and_keeps_the_text_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "page.md"
    before = report.PAGE.read_text("utf-8")
    copy.write_text(before, "utf-8")
    monkeypatch.setattr(report, "PAGE", copy)

    for marks in (page.PEERS, page.CRASH, report.FIGURES, report.REVIEWS):
        report.put(marks, ["something new"])
        report.put(marks, ["something newer"])

    after = copy.read_text("utf-8")
    assert after.count("something newer") == 4
    assert "something new\n" not in after
    assert after.partition(report.FIGURES.begin)[0] == before.partition(report.FIGURES.begin)[0]
    assert after.partition(page.CRASH.end)[2] == before.partition(page.CRASH.end)[2]


class TestTheChartOfPeers:
    def test_shows_every_column_of_the_page_and_every_peer(self) -> None:
        """It leaves out the rounds, and early jobs, which have no bar."""
        text = chart.PAGE.read_text()
        drawn = chart.panels(text)
        table = text.partition("<!-- peers:")[2].partition("<!-- /peers -->")[0]
        head = next(line for line in table.splitlines() if line.startswith("|"))
        columns = [column.strip() for column in head.strip("|").split("|")][1:]
        assert len(drawn) == len(columns) - 2 + 1  # the other table, after a crash, adds one
        for panel in drawn:
            assert panel["bars"][0]["label"] == "Towpath"
            assert len(panel["bars"]) == len(all_peers())
            assert any(bar["value"] for bar in panel["bars"])

    def test_shows_the_figures_of_the_page(self) -> None:
        page = (
            "<!-- peers: -->\n"
            "|  | drain, jobs/s | pick-up p50, ms | p99 | server CPU, µs/job |\n| --- | --: |\n"
            "| **Towpath** | 19,254 | 2.07 | 6.3 | 202 + 27 = 229 |\n"
            "| Huey | 1,607 | 1.44 | 4.6 | not measured |\n<!-- /peers -->\n"
            "<!-- crash: -->\n|  | version | its job runs again |\n| --- | --- | --- |\n"
            "| Towpath | 0.1.0 | 11.9 s |\n| Huey | 3 | not within 110 s |\n<!-- /crash -->\n"
        )
        drawn = {
            panel["title"]: [bar["value"] for bar in panel["bars"]] for panel in chart.panels(page)
        }
        assert drawn["Drain by one worker process, jobs/s"] == [19254, 1607]
        assert drawn["Pick-up, p99, ms"] == [6.3, 4.6]
        assert drawn["Server CPU, µs per job"] == [229, None]
        assert drawn["Worker killed: its job runs again, s"] == [11.9, None]
        assert "| Huey | 1,607 |" in chart.short_table(page)
        assert "| **1.44** | not in 110 s |" in chart.short_table(page)

    def test_in_the_readme_has_the_figures_of_the_page(self) -> None:
        table = chart.short_table(chart.PAGE.read_text())
        assert [path for path in chart.SHORT_TABLES if table not in path.read_text()] == []
        assert f"](docs/images/{chart.CHART.name})" in (ROOT / "README.md").read_text()
