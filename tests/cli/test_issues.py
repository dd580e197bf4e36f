"""`towpath issues`, on a database and a store of its own: without a server, and beside one."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command
from tests.server.serving import RunningServer, serve
from tests.waiting import eventually
from towpath.apps.issues.tables import TABLES
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger
from towpath.testing.github.double import GitHubDouble


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
    words = [word for label in labels for word in ("--label", label)]
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
            ("never = [", "is not valid TOML"),
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


class TestBesideAServerAndAGitHub:
    """The server has the token; whoever is at the terminal has database and store."""

    @pytest.fixture
    def github(self) -> Iterator[GitHubDouble]:
        with GitHubDouble(live=False) as double:
            yield double

    @pytest.fixture
    def serving(
        self, server: EmbeddedServer, github: GitHubDouble, tmp_path: Path
    ) -> Iterator[RunningServer]:
        settings = {
            "TOWPATH_ISSUES__REPOSITORIES": "octo/repo",
            "TOWPATH_ISSUES__GITHUB_TOKEN": github.token,
            "TOWPATH_ISSUES__GITHUB_HOST": github.url,
            "TOWPATH_ISSUES__GITHUB_API": github.url,
        }
        for number in range(1, 4):
            github.at("octo/repo").open(f"Number {number}", labels=["P0"] if number == 3 else [])
        with serve(tmp_path, server.url, **settings) as served:
            yield served

    def test_issues_are_compared_listed_shown_and_released(
        self, towpath: Command, serving: RunningServer, github: GitHubDouble
    ) -> None:
        towpath.env["DATABASE_URL"] = serving.database
        people = github.at("octo/repo")
        [synced] = told(towpath, "sync", "octo/repo")
        assert (synced["repository"], synced["issues"]) == ("octo/repo", 3)
        body = {"agent_id": "ann"}
        task = serving.client().post("/api/v1/request-task", json=body).json()
        assert task["issue_number"] == 3
        eventually(lambda: "agent:ann" in people[3].labels)
        [held] = told(towpath, "list", "--agent", "ann")
        assert (held["number"], held["holder"]) == (3, "ann")
        assert "ann holds it until" in towpath("issues", "show", "octo/repo", "3").out

        released = towpath("issues", "release", "octo/repo", "3", "--reason", "it hangs")
        assert released.out == "octo/repo#3  handed out\n"
        [shown] = told(towpath, "show", "octo/repo", "3")
        assert shown["outcome"] == "it hangs"
        # At once, and not what the comparison of a moment ago came to.
        people.close(1)
        people.label(2, "epic")
        [again] = told(towpath, "sync", "octo/repo")
        assert (again["issues"], again["changed"] >= 2) == (2, True)
        words = {issue["number"]: issue.get("withheld", "") for issue in told(towpath, "list")}
        assert words == {1: "closed", 2: "never", 3: ""}
        eventually(lambda: people[3].labels == ["P0"])  # what the agent had set is gone
        assert "the server now compares" in towpath("issues", "sync").err

    def test_what_was_closed_on_both_sides_while_nobody_looked_is_held_by_nobody(
        self, towpath: Command, serving: RunningServer, github: GitHubDouble
    ) -> None:
        towpath.env["DATABASE_URL"] = serving.database
        told(towpath, "sync", "octo/repo")
        client, people = serving.client(), github.at("octo/repo")
        asked = [{"agent_id": f"a{n}"} for n in "123"]
        tasks = [client.post("/api/v1/request-task", json=wish).json() for wish in asked]
        eventually(lambda: all("in-progress" in people[n].labels for n in (1, 2, 3)))
        for number in (1, 2, 3):
            people.close(number)
        towpath("issues", "add", "octo/repo", "1", "--closed")
        done = f"/api/v1/tasks/{tasks[1]['task_id']}/complete"
        assert client.post(done, json={"token": tasks[1]["token"]}).status_code == 200
        told(towpath, "sync", "octo/repo")
        for task in (tasks[0], tasks[2]):
            path = f"/api/v1/tasks/{task['task_id']}"
            beat = client.post(f"{path}/heartbeat", json={"token": task["token"]}).json()
            assert "closed" in beat["withdrawn"]
            assert client.post(f"{path}/release", json={"token": task["token"]}).status_code == 200
        assert [issue for issue in told(towpath, "list") if "holder" in issue] == []
        assert {issue["withheld"] for issue in told(towpath, "list")} == {"closed"}
        eventually(lambda: not any("in-progress" in people[n].labels for n in (1, 2, 3)))

    def test_a_repository_that_is_not_handed_out_is_not_compared(
        self, towpath: Command, serving: RunningServer
    ) -> None:
        towpath.env["DATABASE_URL"] = serving.database
        said = towpath("issues", "sync", "octo/other")
        assert said.code != 0
        assert "issues of octo/other are not handed out" in said.err
