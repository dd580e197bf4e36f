"""A server is killed between its lock and GitHub, at every step: nothing stays locked."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.serving import RunningServer, serve
from tests.waiting import eventually
from towpath.embedded import EmbeddedServer
from towpath.testing.github.double import GitHubDouble
from towpath.testing.github.trouble import HangUp, Trouble

REPOSITORY = "octo/repo"
WITHIN = 90.0
"""Seconds: a job of a server that was killed waits for the end of its lease."""


@pytest.fixture
def double() -> Iterator[GitHubDouble]:
    with GitHubDouble() as github:
        yield github


def settings(github: GitHubDouble) -> dict[str, str]:
    return {
        "TOWPATH_ISSUES__REPOSITORIES": REPOSITORY,
        "TOWPATH_ISSUES__GITHUB_TOKEN": github.token,
        "TOWPATH_ISSUES__GITHUB_HOST": github.url,
        "TOWPATH_ISSUES__GITHUB_API": github.url,
        "TOWPATH_ISSUES__LEASE": "5s",
        "TOWPATH_ISSUES__LOOK": "200ms",
        "TOWPATH_ISSUES__SYNC": "5s",
    }


def take(client: httpx.Client, agent: str) -> Any:
    body = {"agent_id": agent, "wait": 60.0}
    answer = client.post("/api/v1/request-task", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(github: GitHubDouble, method: str, ending: str) -> bool:
    return any(
        request.startswith(method) and request.endswith(ending) for request in github.requests
    )


def ours(github: GitHubDouble, number: int) -> set[str]:
    labels = github.at(REPOSITORY)[number].labels
    return {label for label in labels if label == "in-progress" or label.startswith("agent:")}


def looked_at(serving: RunningServer) -> dict[int, Any]:
    listed = serving.client().get("/api/v1/issues").json()["issues"]
    return {issue["number"]: issue for issue in listed}


def stop_at_each_step(github: GitHubDouble, until: threading.Event) -> None:
    """Holds requests: the first read, the labels (set after the crash, or not), the branch, and the
    labels that are removed.
    """
    github.trouble(
        Trouble(until=until, path="/issues/1$", method="GET", times=None),
        Trouble(until=until, path="/issues/2/labels$", method="POST", hang_up=HangUp.BEFORE),
        Trouble(until=until, path="/issues/3/labels$", method="POST"),
        Trouble(until=until, path="/git/refs$", method="POST"),
        Trouble(until=until, path="/issues/5/labels/", method="DELETE"),
    )


def test_no_issue_stays_locked_or_labelled_after_a_crash(
    double: GitHubDouble, server: EmbeddedServer, tmp_path: Path
) -> None:
    people, until = double.at(REPOSITORY), threading.Event()
    for number in range(1, 6):
        people.open(f"Number {number}", labels=["P0"] if number == 5 else [])
    with serve(tmp_path, server.url, **settings(double)) as serving:
        client = serving.client()
        shown = take(client, "a5")
        assert shown["issue_number"] == 5
        eventually(lambda: asked(double, "POST", "/git/refs"))
        eventually(lambda: looked_at(serving)[5]["branch"])
        stop_at_each_step(double, until)
        path = f"/api/v1/tasks/{shown['task_id']}/complete"
        assert client.post(path, json={"token": shown["token"]}).status_code == 200
        tasks = [take(client, f"a{n}") for n in range(1, 5)]
        assert [task["issue_number"] for task in tasks] == [1, 2, 3, 4]
        for method, ending in [
            ("DELETE", "/issues/5/labels/in-progress"),
            ("GET", "/issues/1"),
            ("POST", "/issues/2/labels"),
            ("POST", "/issues/3/labels"),
            ("POST", "/issues/4/labels"),
        ]:
            eventually(lambda method=method, ending=ending: asked(double, method, ending))
        eventually(lambda: double.requests.count(f"POST /repos/{REPOSITORY}/git/refs") > 1)
        serving.kill()
    until.set()
    double.calm()
    with serve(tmp_path, server.url, **settings(double)) as serving:
        eventually(lambda: not any(ours(double, n) for n in range(1, 6)))
        eventually(lambda: all(not one["holder"] for one in looked_at(serving).values()))
        again = {take(serving.client(), f"b{n}")["issue_number"] for n in range(4)}
        assert again == {1, 2, 3, 4}
        eventually(lambda: ours(double, 1) != set())
