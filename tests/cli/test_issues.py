"""`towpath issues`, on a database and a store of its own; no server runs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command
from towpath.apps.issues.tables import TABLES
from towpath.ledger.ledger import Ledger


@pytest.fixture
def issues(towpath: Command, prepared_file_url: str) -> Command:
    """The command, with a database that is up to date."""

    async def migrate() -> None:
        async with Ledger(prepared_file_url, tables=[TABLES]) as ledger:
            await ledger.migrate()

    asyncio.run(migrate())
    towpath.env["DATABASE_URL"] = prepared_file_url
    return towpath


def refused(issues: Command, code: int, *words: str) -> str:
    """What is said about a refusal with that exit code."""
    ran = issues("issues", *words)
    assert ran.code == code, ran.err
    return ran.err


def told(issues: Command, *words: str) -> list[Any]:
    """What programs are told."""
    return [json.loads(line) for line in issues("--json", "issues", *words).out.splitlines()]


def add(issues: Command, number: int, *labels: str, **more: str) -> None:
    words = [word for it in labels for word in ("--label", it)]
    words += [word for name, value in more.items() for word in (f"--{name}", value)]
    issues("issues", "add", "octo/repo", str(number), *words)


def test_an_issue_is_added_listed_and_shown(issues: Command) -> None:
    add(issues, 7, "P1", title="It breaks")
    add(issues, 8, "epic")
    listed = issues("issues", "list", "--assignable")
    assert "octo/repo#7" in listed.out
    assert "octo/repo#8" not in listed.out
    shown = issues("issues", "show", "octo/repo", "8")
    assert "issues with the label epic are never handed out" in shown.out
    [found] = told(issues, "show", "octo/repo", "7")
    assert (found["priority"], found["assignable"], found["explanation"]) == (80, True, "ready")


def test_an_issue_is_closed(issues: Command) -> None:
    add(issues, 7)
    assert (
        issues("issues", "add", "octo/repo", "7", "--closed").out
        == "octo/repo#7  withheld: the issue is closed\n"
    )


def test_what_is_not_there_is_told(issues: Command) -> None:
    assert "issue_not_found" in refused(issues, 5, "show", "octo/repo", "7")
    assert "owner/name" in refused(issues, 2, "add", "nothing", "7")
    assert "must be one of" in refused(issues, 2, "list", "--state", "ajar")


def test_nothing_is_released_that_nobody_holds(issues: Command) -> None:
    add(issues, 7)
    assert "issue_not_held" in refused(issues, 4, "release", "octo/repo", "7")


class TestAPolicy:
    def test_is_checked_and_compared(self, issues: Command, tmp_path: Path) -> None:
        add(issues, 7, "P1", title="It breaks")
        add(issues, 8, "wontfix")
        add(issues, 9)
        file = tmp_path / "policy.toml"
        file.write_text('never = ["wontfix"]\n[priorities]\nP1 = 90\n')
        assert told(issues, "policy", str(file)) == [
            {
                "issue": "octo/repo#7",
                "now": "development for developer, priority 80",
                "then": "development for developer, priority 90",
            },
            {
                "issue": "octo/repo#8",
                "now": "development for developer, priority 40",
                "then": "withheld: issues with the label wontfix are never handed out",
            },
        ]
        said = issues("issues", "policy", str(file)).err
        assert "of 3 open issues 2 are handed out with it" in said
        [still] = told(issues, "show", "octo/repo", "8")
        assert still["assignable"] is True

    def test_without_a_file_is_the_built_in_one(self, issues: Command) -> None:
        add(issues, 7)
        assert "the policy is valid" in issues("issues", "policy").err

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("never = [", "is no TOML"),
            ("nevre = []", "nevre"),
            ("[limits]\nagent = -1", "limits.agent"),
            ("[review]\ndelay = 'soon'", "review.delay"),
            ("[show]\nbranch = 'fix'", "{number}"),
            ("[roles]\ndefault = 'a b'", "roles.default"),
        ],
    )
    def test_that_is_none_is_refused(
        self, issues: Command, tmp_path: Path, text: str, what: str
    ) -> None:
        file = tmp_path / "policy.toml"
        file.write_text(text)
        said = refused(issues, 2, "policy", str(file))
        assert "policy_invalid" in said
        assert what in said


def test_a_comparison_that_nobody_makes_is_told(issues: Command) -> None:
    assert "still_open" in refused(issues, 75, "sync", "octo/repo", "--wait", "10ms")
