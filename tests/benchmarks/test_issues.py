"""The benchmark of racing agents notices an issue that has two holders."""

import pytest

from benchmarks.web.account import Violation
from benchmarks.web.agents import IssueHolders


class TestIssueHolders:
    """Violations are noticed."""

    def test_refuse_two_holders_of_one_issue(self) -> None:
        holders = IssueHolders([1, 2])
        holders.given(1, "a", 7)
        with pytest.raises(Violation, match=r"\b1\b.*\bb\b.*\ba\b"):
            holders.given(1, "b", 8)

    def test_refuse_an_old_token(self) -> None:
        holders = IssueHolders([1])
        holders.given(1, "a", 7)
        holders.ending(1)
        with pytest.raises(Violation, match=r"\b1\b.*\bb\b"):
            holders.given(1, "b", 7)

    def test_refuse_a_completed_issue(self) -> None:
        holders = IssueHolders([1])
        holders.given(1, "a", 7)
        holders.ending(1)
        holders.completed(1)
        assert holders.all_done
        with pytest.raises(Violation, match=r"\b1\b.*\bb\b"):
            holders.given(1, "b", 8)
