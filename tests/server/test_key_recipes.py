"""The keys that the how-to pages make allow what the page says, and no attack by their holders."""

import re
import shlex
from pathlib import Path

import httpx
import pytest

from tests.architecture.sources import ROOT
from tests.cli.command import Command
from tests.server.serving import RunningServer, code
from tests.waiting import eventually

HOW_TO = ROOT / "docs" / "how-to"
RECIPE = re.compile(r"towpath keys create ([^`\n)#>]+)")
PAGES = {
    "hand-out-issues.md": 1,
    "run-any-command-as-an-agent.md": 1,
    "give-issues-to-coding-agents.md": 1,
    "upload-files.md": 1,
    "be-called-when-a-timer-is-due.md": 1,
    "one-message-at-a-time-per-user.md": 2,
}


class Recipes:
    """Makes keys as the pages do."""

    def __init__(self, running: RunningServer, home: Path) -> None:
        self._running = running
        self._towpath = Command(running.said["store"], home)
        self._towpath.env["TOWPATH_DATABASE"] = running.database

    def key(self, page: str, name: str) -> httpx.Client:
        """A client with the key that *page* makes for *name*."""
        [words] = [one for one in recipes_in(page) if one[0] == name]
        ran = self._towpath("keys", "create", *words)
        assert ran.code == 0, ran
        return self._running.client(ran.out.strip())


def recipes_in(page: str) -> list[list[str]]:
    return [shlex.split(found) for found in RECIPE.findall((HOW_TO / page).read_text())]


@pytest.fixture
def recipes(running: RunningServer, tmp_path: Path) -> Recipes:
    return Recipes(running, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_make_keys_with_neither_raw_nor_manage_nor_admin(page: str) -> None:
    found = recipes_in(page)
    assert len(found) == PAGES[page]
    for words in found:
        assert "--queue" in words
        assert not {"raw", "manage", "admin", "*"} & set(words)


@pytest.mark.parametrize(
    "page",
    ["hand-out-issues.md", "run-any-command-as-an-agent.md", "give-issues-to-coding-agents.md"],
)
def test_an_agent_cannot_use_the_queue_to_take_the_task_of_another(
    running: RunningServer, recipes: Recipes, page: str
) -> None:
    repository = f"octo/{page.removesuffix('.md')}"
    issue = {"repository": repository, "number": 1, "title": "broken"}
    assert running.client().post("/api/v1/issues", json=issue).status_code == 200
    ann, mallory = recipes.key(page, "agents"), recipes.key(page, "agents")
    wish = {"agent_id": "ann", "repositories": [repository]}
    task = ann.post("/api/v1/request-task", json=wish).json()
    queue = "/api/v1/queues/issues"
    job = f"{queue}/jobs/{task['task_id']}"
    for path, body in (
        (f"{queue}/claim", {"worker": "mallory", "count": 100}),
        (f"{queue}/jobs", {"id": task["task_id"]}),
        (f"{job}/renew", {"token": 1}),
        (f"{job}/complete", {"token": task["token"]}),
        (f"{job}/fail", {"token": task["token"], "reason": "no"}),
        (f"{job}/release", {"token": task["token"]}),
        (f"{job}/cancel", {}),
    ):
        assert code(mallory.post(path, json=body), 403) == "scope-missing", path
    own = f"/api/v1/tasks/{task['task_id']}"
    stale = mallory.post(f"{own}/complete", json={"token": task["token"] - 1})
    assert (stale.status_code, stale.json()["holder"]) == (409, "ann")
    assert str(task["token"]) not in stale.text
    assert ann.post(f"{own}/heartbeat", json={"token": task["token"]}).status_code == 200
    assert ann.post(f"{own}/complete", json={"token": task["token"]}).status_code == 200


def test_an_uploader_cannot_occupy_the_internal_jobs_of_another(
    running: RunningServer, recipes: Recipes
) -> None:
    ann = recipes.key("upload-files.md", "uploader")
    mallory = recipes.key("upload-files.md", "uploader")
    wanted = {"name": "a.txt", "size": 5}
    begun = ann.post("/api/v1/uploads", json=wanted)
    assert begun.status_code == 201, begun.text
    id = begun.json()["upload_id"]
    jobs = "/api/v1/queues/uploads/jobs"
    for part in ("0/1.0", "complete/1", "0/0.0", "complete/0"):
        body = {"id": f"{id}/{part}", "payload": "mine"}
        assert code(mallory.post(jobs, json=body), 403) == "scope-missing"
        assert code(mallory.post(jobs, json=[body]), 403) == "scope-missing"
        place = f"{jobs}/{id}%2F{part.replace('/', '%2F')}"
        assert code(mallory.put(place, json={"payload": 1}), 403) == "scope-missing"
    sent = ann.put(f"/api/v1/uploads/{id}/chunks/0", content=b"hello")
    assert sent.is_success, sent.text
    eventually(lambda: ann.get(f"/api/v1/uploads/{id}").json()["status"] == "COMPLETED")


def test_a_chat_worker_claims_and_settles_messages_and_nothing_else(
    running: RunningServer, recipes: Recipes
) -> None:
    page = "one-message-at-a-time-per-user.md"
    chat, worker = recipes.key(page, "chat"), recipes.key(page, "chat-worker")
    message = {"user_id": "recipe", "org_id": "o", "message": "hi", "client_id": "web"}
    assert chat.post("/api/v1/message", json=message).status_code in (200, 202)
    queue = "/api/v1/queues/messages"
    claimed = worker.post(f"{queue}/claim", json={"worker": "w", "lane": "recipe", "lease": 60})
    [job] = claimed.json()["jobs"]
    for client in (chat, worker):
        answer = client.post(f"{queue}/jobs", json={"id": "planted"})
        assert code(answer, 403) == "scope-missing"
    cancelled = chat.post(f"{queue}/jobs/{job['id']}/cancel")
    assert code(cancelled, 403) == "scope-missing"
    done = worker.post(f"{queue}/jobs/{job['id']}/complete", json={"token": job["token"]})
    assert done.status_code == 200


def test_the_key_of_a_timers_application_cannot_claim_its_queues(recipes: Recipes) -> None:
    shop = recipes.key("be-called-when-a-timer-is-due.md", "shop")
    for queue in ("timers.shop--mails", "timers.order.timeout"):
        answer = shop.post(f"/api/v1/queues/{queue}/claim", json={"worker": "w"})
        assert code(answer, 403) == "scope-missing"
