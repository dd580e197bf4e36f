"""The GitHub double: it answers as GitHub does, keeps state, sends webhooks, and fails when asked
to.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.architecture.sources import ROOT
from tests.calls.receivers import Receiver
from tests.forges.github_description import MISSING, GitHubDescription, github_description
from tests.programs import Bounded
from tests.waiting import HANGS, eventually
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerRefused, CallFailed, RefusedForGood
from towpath.clock import ZERO, seconds
from towpath.forges import github as reading
from towpath.forges.client import ForgeClient
from towpath.forges.github import FORGE
from towpath.testing.github.double import TOKEN, GitHubDouble
from towpath.testing.github.exchange import ApiRequest
from towpath.testing.github.trouble import (
    HangUp,
    Trouble,
    answers,
    hangs_up,
    rate_limit,
    slow,
    too_many,
)

REPOSITORY = "octo/repo"
HERE = f"/repos/{REPOSITORY}"
SECRET = "a secret of the webhook"  # noqa: S105 -- of no forge


@pytest.fixture
def description() -> GitHubDescription:
    found = github_description()
    if found is None:
        pytest.skip(MISSING)
    return found


@pytest.fixture
async def client(github: GitHubDouble) -> AsyncIterator[ForgeClient]:
    async with Caller(allow=["127.0.0.0/8"], timeout=seconds(30)) as caller:
        yield ForgeClient(caller, FORGE, token=TOKEN, api=github.url)


@pytest.fixture
def quiet() -> Iterator[GitHubDouble]:
    """A GitHub whose webhooks the test sends by itself."""
    with GitHubDouble(live=False) as double:
        double.listen("http://127.0.0.1:9/nobody", secret=SECRET)
        yield double


def filled(github: GitHubDouble) -> None:
    people = github.at(REPOSITORY)
    people.open("Repair the lock", body="It sticks.", labels=["P1", "Needs Review"])
    people.assign(1, "hubot")
    people.comment(1, "I have seen it, too.")
    people.open_pull("Repair it", head="repair", labels=["P1"])
    people.review(2, "COMMENTED", body="Why?")


class TestAnswersOfTheDouble:
    @pytest.mark.parametrize(
        ("method", "path", "content"),
        [
            ("GET", "", None),
            ("GET", "/branches/main", None),
            ("GET", "/git/ref/heads/main", None),
            ("GET", "/git/ref/heads/none", None),
            ("POST", "/git/refs", {"ref": "refs/heads/new", "sha": "SHA"}),
            ("POST", "/git/refs", {"ref": "refs/heads/main", "sha": "SHA"}),
            ("DELETE", "/git/refs/heads/repair", None),
            ("GET", "/issues?state=all&per_page=1&sort=updated&direction=asc", None),
            ("GET", "/issues/1", None),
            ("GET", "/issues/99", None),
            ("PATCH", "/issues/1", {"state": "closed", "title": "Another", "labels": ["P2"]}),
            ("GET", "/issues/1/labels", None),
            ("POST", "/issues/1/labels", {"labels": ["in-progress"]}),
            ("PUT", "/issues/1/labels", {"labels": ["P0"]}),
            ("DELETE", "/issues/1/labels/needs%20review", None),
            ("DELETE", "/issues/1/labels/none", None),
            ("GET", "/issues/1/comments", None),
            ("POST", "/issues/1/comments", {"body": "Taken."}),
            ("GET", "/labels", None),
            ("GET", "/labels/p1", None),
            ("POST", "/labels", {"name": "new", "color": "ff0000"}),
            ("GET", "/pulls?state=open", None),
            ("GET", "/pulls/2", None),
            ("POST", "/pulls", {"title": "t", "head": "repair", "base": "main"}),
            ("GET", "/pulls/2/reviews", None),
            ("POST", "/pulls/2/reviews", {"event": "APPROVE", "body": "Good."}),
            ("POST", "/statuses/0123456789abcdef", {"state": "success"}),
        ],
    )
    def test_are_as_github_describes_them(
        self, description: GitHubDescription, method: str, path: str, content: Any
    ) -> None:
        github = GitHubDouble()
        filled(github)
        sha = github.at(REPOSITORY).repository.refs["refs/heads/main"]
        body = json.dumps(content).replace("SHA", sha).encode() if content else b""
        place, _, query = path.partition("?")
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        named = {
            name: [value] for name, _, value in (pair.partition("=") for pair in query.split("&"))
        }
        asked = ApiRequest(method, HERE + place, named if query else {}, headers, body)
        reply = github.answer_request(asked)
        github.stop()
        assert reply is not None
        assert reply.status != 501, reply.content
        assert description.misfits(asked) == []
        assert description.misfits_of_answer(asked, reply.status, reply.content) == []

    def test_are_refusals_without_the_token(self, github: GitHubDouble) -> None:
        reply = github.answer_request(ApiRequest("GET", HERE, {}, {}, b""))
        assert reply is not None
        assert reply.status == 401


class TestRequestsToTheDouble:
    @pytest.mark.parametrize(
        ("asked", "content", "fault"),
        [
            ("GET /isues", None, "no such operation"),
            ("DELETE /issues", None, "no such operation"),
            ("GET /issues?sorted=created", None, "no parameter sorted"),
            ("GET /issues?sort=size", None, "sort"),
            ("GET /issues?per_page=many", None, "per_page"),
            ("GET /issues/first", None, "issue_number"),
            ("POST /git/refs", {"ref": "refs/heads/a"}, "'sha' is a required property"),
            ("POST /git/refs", None, "the body is missing"),
            ("POST /issues/1/comments", {"body": 7}, "body"),
            ("PATCH /issues/1", {"labls": []}, "no field labls"),
            ("DELETE /issues/1/labels/a", {"why": "x"}, "takes no body"),
        ],
    )
    def test_that_github_does_not_describe_are_found(
        self, description: GitHubDescription, asked: str, content: Any, fault: str
    ) -> None:
        method, _, place = asked.partition(" ")
        path, _, query = place.partition("?")
        name, _, value = query.partition("=")
        named = {name: [value]} if query else {}
        body = json.dumps(content).encode() if content else b""
        request = ApiRequest(method, HERE + path, named, {"content-type": "application/json"}, body)
        [found] = description.misfits(request)
        assert fault in found

    async def test_that_do_not_match_the_description_are_refused_and_kept(
        self, description: GitHubDescription
    ) -> None:
        async with Caller(allow=["127.0.0.0/8"]) as caller:
            with GitHubDouble(check=description.misfits) as github:
                client = ForgeClient(caller, FORGE, token=TOKEN, api=github.url)
                with pytest.raises(AnswerRefused, match="no parameter sorted"):
                    await client.get(f"{HERE}/issues?sorted=created")
                assert len(github.misfits) == 1


class TestALongListOfIssues:
    async def test_is_read_page_by_page_and_not_again_while_unchanged(
        self, github: GitHubDouble, client: ForgeClient
    ) -> None:
        people = github.at(REPOSITORY)
        for number in range(1, 8):
            people.open(f"Issue {number}")
        people.close(3)
        path = f"{HERE}/issues?state=open&per_page=3"
        pages = [page async for page in client.pages(path)]
        assert [entry["number"] for page in pages for entry in page.entries] == [7, 6, 5, 4, 2, 1]
        used = github.used
        assert await client.page(path, etag=pages[0].etag) is None
        assert github.used == used
        people.label(7, "P0")
        changed = await client.page(path, etag=pages[0].etag)
        assert changed is not None
        assert changed.entries[0]["labels"][0]["name"] == "P0"


class TestTheStateOfTheDouble:
    async def test_has_the_changes_that_were_made(
        self, github: GitHubDouble, client: ForgeClient
    ) -> None:
        people = github.at(REPOSITORY)
        people.open("Repair the lock", labels=["P1"])
        await client.post(f"{HERE}/issues/1/labels", {"labels": ["In-Progress", "p1"]})
        assert people[1].labels == ["P1", "In-Progress"]
        sha = (await client.get(f"{HERE}/git/ref/heads/main")).body
        new = {"ref": "refs/heads/issue-1", "sha": json.loads(sha)["object"]["sha"]}
        assert (await client.post(f"{HERE}/git/refs", new)).status == 201
        again = await client.post(f"{HERE}/git/refs", new)
        assert (again.status, client.said(again)) == (422, "Reference already exists")
        assert people.repository.branches == ["main", "issue-1"]
        await client.post(f"{HERE}/issues/1/comments", {"body": "Taken."})
        assert [comment.body for comment in people[1].comments] == ["Taken."]

    async def test_stays_with_a_renamed_repository(
        self, github: GitHubDouble, client: ForgeClient
    ) -> None:
        github.at(REPOSITORY).open("Repair the lock")
        github.rename(REPOSITORY, "octo/renamed")
        with pytest.raises(AnswerRefused) as refusal:
            await client.get(f"{HERE}/issues/1")
        assert refusal.value.status == 301
        found = await client.get("/repos/octo/renamed/issues/1")
        assert json.loads(found.body)["title"] == "Repair the lock"
        github.delete("octo/renamed")
        with pytest.raises(RefusedForGood):
            await client.get("/repos/octo/renamed/issues/1")

    async def test_tells_that_an_issue_was_deleted_or_transferred(
        self, github: GitHubDouble, client: ForgeClient
    ) -> None:
        for title in ("one", "two"):
            github.at(REPOSITORY).open(title)
        github.at(REPOSITORY).delete(1)
        assert github.transfer(REPOSITORY, 2, "octo/other") == 1
        for number, status in ((1, 410), (2, 301)):
            with pytest.raises(AnswerRefused) as refusal:
                await client.get(f"{HERE}/issues/{number}")
            assert refusal.value.status == status
        assert json.loads((await client.get(f"{HERE}/issues?state=all")).body) == []


class TestTroubleOfTheDouble:
    @pytest.mark.parametrize(
        ("trouble", "waits"),
        [
            (rate_limit(reset_s=36_000), 5),
            (too_many(retry_after_s=7), 5),
            (answers(502), 0),
            (answers(404), 0),
        ],
    )
    async def test_may_be_an_answer(
        self, github: GitHubDouble, client: ForgeClient, trouble: Trouble, waits: int
    ) -> None:
        github.at(REPOSITORY)
        github.trouble(trouble)
        with pytest.raises(AnswerRefused) as refusal:
            await client.get(HERE)
        assert refusal.value.status == trouble.status
        assert refusal.value.after >= seconds(waits)

    async def test_ends_after_the_given_number_of_times(
        self, github: GitHubDouble, client: ForgeClient
    ) -> None:
        github.at(REPOSITORY)
        github.trouble(answers(502, method="GET", path="/octo/", times=2))
        for _ in range(2):
            with pytest.raises(AnswerRefused):
                await client.get(HERE)
        assert (await client.get(HERE)).status == 200

    async def test_may_close_the_connection_before_or_after_the_request_was_done(
        self, github: GitHubDouble, client: ForgeClient
    ) -> None:
        people = github.at(REPOSITORY)
        people.open("Repair the lock")
        for when, known in ((HangUp.BEFORE, 0), (HangUp.AFTER, 1)):
            github.trouble(hangs_up(when, method="POST"))
            with pytest.raises(CallFailed):
                await client.post(f"{HERE}/issues/1/comments", {"body": "Taken."})
            assert len(people[1].comments) == known

    async def test_may_hold_an_answer_back(self, github: GitHubDouble, client: ForgeClient) -> None:
        github.at(REPOSITORY)
        until = threading.Event()
        github.trouble(slow(until))
        async with Caller(allow=["127.0.0.0/8"], timeout=seconds(0.2)) as hurried:
            with pytest.raises(CallFailed):
                await ForgeClient(hurried, FORGE, token=TOKEN, api=github.url).get(HERE)
        until.set()
        assert (await client.get(HERE)).status == 200

    async def test_may_be_a_rate_limit_that_was_reached(
        self, client: ForgeClient, github: GitHubDouble
    ) -> None:
        github.at(REPOSITORY)
        github.limit = 1
        await client.get(HERE)
        with pytest.raises(AnswerRefused) as refusal:
            await client.get(HERE)
        assert refusal.value.status == 403
        assert refusal.value.after > ZERO


class TestWebhooksOfTheDouble:
    async def test_are_signed_and_sent_when_something_happens(
        self, github: GitHubDouble, receiver: Receiver
    ) -> None:
        github.listen(receiver.url(), secret=SECRET, events=["issues"])
        github.at(REPOSITORY).open("Repair the lock", labels=["P1"])
        github.at(REPOSITORY).comment(1, "Not for this hook.")
        [delivery] = github.deliveries
        await asyncio.to_thread(eventually, lambda: delivery.statuses)
        assert delivery.statuses == [200]
        [request] = receiver.requests
        read = reading.read(request.headers, request.body, secrets=[SECRET])
        assert (read.id, read.named) == (delivery.id, "issues")

    def test_are_as_github_describes_them(
        self, description: GitHubDescription, quiet: GitHubDouble
    ) -> None:
        filled(quiet)
        people = quiet.at(REPOSITORY)
        people.unlabel(1, "p1")
        people.unassign(1, "hubot")
        people.close(1)
        people.reopen(1)
        people.push(2)
        people.merge(2)
        people.delete(1)
        found = {(delivery.event, delivery.payload["action"]) for delivery in quiet.deliveries}
        assert len(found) == 12
        for delivery in quiet.deliveries:
            assert description.misfits_of_webhook(delivery.event, delivery.payload) == [], (
                delivery.payload["action"]
            )

    def test_may_wait_for_the_test_to_send_them(self, quiet: GitHubDouble) -> None:
        quiet.at(REPOSITORY).open("Repair the lock")
        [delivery] = quiet.deliveries
        assert delivery.statuses == []
        signature = hmac.digest(SECRET.encode(), delivery.body, "sha256").hex()
        assert delivery.headers["X-Hub-Signature-256"] == f"sha256={signature}"
        assert delivery.send() == 0


class TestTheGuideToTheDouble:
    def test_shows_code_that_works(self) -> None:
        guide = (ROOT / "docs" / "how-to" / "test-your-handlers.md").read_text()
        [block] = [
            part for part in guide.split("```python\n") if part.startswith("from towpath.testing.g")
        ]
        exec(block.partition("```")[0], {})  # noqa: S102 -- a page of ours


class TestTheProgramOfTheDouble:
    def test_prints_its_address_and_ends_on_sigterm(self) -> None:
        words = [sys.executable, "-m", "towpath.testing.github", "--fill", f"{REPOSITORY}=3"]
        with Bounded[str](words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            headers = {"Authorization": f"Bearer {said['token']}"}
            answer = httpx.get(f"{said['address']}{HERE}/issues", headers=headers)
            assert [issue["number"] for issue in answer.json()] == [3, 2, 1]
            process.terminate()
            assert process.wait(HANGS) == 0
