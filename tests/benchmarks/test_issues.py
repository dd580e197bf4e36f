"""The figures about issues are measured on the real thing; small here, to see that they work."""

import pytest

from benchmarks import issues_race, issues_sync
from benchmarks.bench import Plan
from benchmarks.catalogue import BENCHMARKS, PARTS, claim_of
from benchmarks.peers.peer_list import ROOT
from benchmarks.report import ISSUES
from benchmarks.web.account import Violation
from benchmarks.web.agents import IssueHolders


class Small(Plan, frozen=True):
    """Enough to see that it works."""

    @property
    def rounds(self) -> int:
        return 1

    def count(self, full: int, quick: int) -> int:
        return {200: 24, 100: 12, 20: 2, 50_000: 200, 500: 5}[full]


@pytest.mark.parametrize("name", PARTS[ISSUES])
def test_is_in_the_catalogue_and_on_the_page(name: str) -> None:
    assert name in BENCHMARKS
    assert claim_of(name).endswith(".")
    assert f"| `{name}` |" in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


async def test_agents_race_and_no_issue_has_two_holders() -> None:
    figures = {figure.name: figure for figure in await issues_race.run(Small())}
    assert figures["issues_race.broken"].reached
    assert figures["issues_race.handed_out"].low >= 12
    assert figures["issues_race"].value > 0


async def test_all_issues_of_a_github_are_known_after_the_start() -> None:
    figures = {figure.name: figure for figure in await issues_sync.run(Small())}
    assert figures["issues_sync.requests"].value >= 20
    assert figures["issues_sync"].value > 0


class TestHolders:
    """What must not happen is seen."""

    def test_see_that_two_hold_one_issue(self) -> None:
        holders = IssueHolders([1, 2])
        holders.given(1, "a", 7)
        with pytest.raises(Violation, match="issue 1 was given to b while a held it"):
            holders.given(1, "b", 8)

    def test_see_that_a_token_is_old(self) -> None:
        holders = IssueHolders([1])
        holders.given(1, "a", 7)
        holders.ending(1)
        with pytest.raises(Violation, match="older token"):
            holders.given(1, "b", 7)

    def test_see_that_what_was_completed_comes_again(self) -> None:
        holders = IssueHolders([1])
        holders.given(1, "a", 7)
        holders.ending(1)
        holders.completed(1)
        assert holders.all_done
        with pytest.raises(Violation, match="after it was completed"):
            holders.given(1, "b", 8)
