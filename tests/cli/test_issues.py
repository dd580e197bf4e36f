"""`towpath issues`, on its own database and Redis: without a server, and beside one."""

import asyncio
import json
import re
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
    """The command, with a migrated database."""

    async def migrate() -> None:
        async with Ledger(prepared_file_url, tables=[TABLES]) as ledger:
            await ledger.migrate()

    asyncio.run(migrate())
    towpath.env["DATABASE_URL"] = prepared_file_url
    return towpath


def refused(issues: Command, code: int, *words: str) -> str:
    """Returns the error of a command that must end with this exit code."""
    ran = issues("issues", *words)
    assert ran.code == code, ran.err
    return ran.err


def told(issues: Command, *words: str) -> list[Any]:
    """Returns the JSON that a command prints."""
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
    assert re.search(
        r"^why .*\bepic\b", issues("issues", "show", "octo/repo", "8").out, re.MULTILINE
    )
    [withheld] = told(issues, "show", "octo/repo", "8")
    assert (withheld["withheld"], withheld["assignable"]) == ("never", False)
    [found] = told(issues, "show", "octo/repo", "7")
    assert (found["priority"], found["assignable"], found["explanation"]) == (80, True, "ready")


def test_add_with_closed_closes_an_issue(issues: Command) -> None:
    add(issues, 7)
    assert issues("issues", "add", "octo/repo", "7", "--closed").out.startswith("octo/repo#7  ")
    [closed] = told(issues, "show", "octo/repo", "7")
    assert (closed["state"], closed["withheld"]) == ("closed", "closed")


def test_an_unknown_issue_and_invalid_arguments_are_refused(issues: Command) -> None:
    assert "issue_not_found" in refused(issues, 5, "show", "octo/repo", "7")
    assert "owner/name" in refused(issues, 2, "add", "nothing", "7")
    assert "state = 'ajar'" in refused(issues, 2, "list", "--state", "ajar")


def test_an_issue_without_a_holder_is_not_released(issues: Command) -> None:
    add(issues, 7)
    assert "issue_not_held" in refused(issues, 4, "release", "octo/repo", "7")


class TestAPolicy:
    def test_a_policy_file_is_checked_and_compared(self, issues: Command, tmp_path: Path) -> None:
        add(issues, 7, "P1", title="It breaks")
        add(issues, 8, "wontfix")
        add(issues, 9)
        file = tmp_path / "policy.toml"
        file.write_text('never = ["wontfix"]\n[priorities]\nP1 = 90\n')
        first, second = told(issues, "policy", str(file))
        assert (first["issue"], second["issue"]) == ("octo/repo#7", "octo/repo#8")
        for judged, facts in (
            (first["now"], ("development", "developer", "80")),
            (first["then"], ("development", "developer", "90")),
            (second["now"], ("development", "developer", "40")),
            (second["then"], ("wontfix",)),
        ):
            assert all(fact in judged for fact in facts), judged
        note = issues("issues", "policy", str(file)).err
        # 3 issues are open, 2 are offered with the new policy, 2 differ from now.
        assert sorted(re.findall(r"\d+", note)) == ["2", "2", "3"]
        [still] = told(issues, "show", "octo/repo", "8")
        assert still["assignable"] is True

    def test_the_policy_without_a_file_is_the_built_in_one(self, issues: Command) -> None:
        add(issues, 7)
        ran = issues("issues", "policy")
        assert ran.code == 0
        # 1 issue is open, 1 is offered, none differs from now.
        assert sorted(re.findall(r"\d+", ran.err)) == ["0", "1", "1"]

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("never = [", "TOML"),
            ("nevre = []", "nevre"),
            ("[limits]\nagent = -1", "limits.agent"),
            ("[review]\ndelay = 'soon'", "review.delay"),
            ("[show]\nbranch = 'fix'", "{number}"),
            ("[roles]\ndefault = 'a b'", "roles.default"),
        ],
    )
    def test_an_invalid_policy_is_refused(
        self, issues: Command, tmp_path: Path, text: str, what: str
    ) -> None:
        file = tmp_path / "policy.toml"
        file.write_text(text)
        said = refused(issues, 2, "policy", str(file))
        assert "policy_invalid" in said
        assert what in said


def test_a_sync_without_a_server_ends_as_still_open(issues: Command) -> None:
    assert "still_open" in refused(issues, 75, "sync", "octo/repo", "--wait", "10ms")


class TestBesideAServerAndAGitHub:
    """The server has GitHub's token; the command has the database and Redis."""

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
        assert re.search(
            r"^why .*\bann\b", towpath("issues", "show", "octo/repo", "3").out, re.MULTILINE
        )

        released = towpath("issues", "release", "octo/repo", "3", "--reason", "it hangs")
        assert released.out.startswith("octo/repo#3  ")
        [shown] = told(towpath, "show", "octo/repo", "3")
        assert (shown["outcome"], shown.get("holder")) == ("it hangs", None)
        assert shown["assignable"] is True
        # at once, before the next sync
        people.close(1)
        people.label(2, "epic")
        [again] = told(towpath, "sync", "octo/repo")
        assert (again["issues"], again["changed"] >= 2) == (2, True)
        words = {issue["number"]: issue.get("withheld", "") for issue in told(towpath, "list")}
        assert words == {1: "closed", 2: "never", 3: ""}
        eventually(lambda: people[3].labels == ["P0"])  # what the agent had set is gone
        every = towpath("issues", "sync")
        assert (every.code, every.out) == (0, "")

    def test_an_issue_that_was_closed_on_both_sides_has_no_holder_after_a_sync(
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
        ran = towpath("issues", "sync", "octo/other", "--json")
        assert (ran.code, ran.refusal["refused"]) == (4, "job_unfinished")
        assert "octo/other" in ran.refusal["message"]
