"""The load of the demo: users chat, set timers, send files and webhooks; agents take issues.

A request that is answered with "later", or not at all because Redis is unreachable, is repeated
with the same id. Accepted requests are kept, and compared with the results at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from towpath.calls.answer import CallAnswer
from towpath.calls.errors import CallError
from towpath.clock import steady, wall_ms
from towpath.console.exits import DemoFailed
from towpath.console.remote import Remote
from towpath.demo import results
from towpath.demo.handlers import REMINDER
from towpath.demo.programs import Programs, upload_files
from towpath.engine.engine import Engine
from towpath.testing.github.people import People

REPOSITORY = "demo/shop"
_PATIENCE = 120.0
"""Seconds for which a request is repeated while the answer is "later"."""
_PAUSE, _LOOK = 0.2, 0.05
_OPEN = {"PENDING", "RUNNING", "FAILED"}
"""States of a review that has not ended."""


class DemoLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the load."""

    users: int = 20
    messages: int = 6
    """Messages per user."""
    timers: int = 30
    reviews: int = 12
    files: tuple[int, ...] = (7 << 20, 3 << 20, 200_000)
    """Sizes in bytes."""
    agents: int = 6
    issues: int = 18
    over: float = 12.0
    """Seconds over which the load is spread."""


class Users:
    """The users and agents of the five applications. `progress` and `rows` count their results."""

    def __init__(self, programs: Programs, load: DemoLoad, engine: Engine) -> None:
        self._programs, self._load, self._engine = programs, load, engine
        self._chance = random.Random(7)  # noqa: S311 -- the same load each time
        self._messages: dict[tuple[str, int], str] = {}
        self._timers: list[int] = []
        self._heads: list[str] = []
        self._files: dict[str, str] = {}
        self._uploads: list[dict[str, Any]] = []
        self._issues: list[int] = []
        self._taken = 0
        self._completed: list[int] = []
        self._people: People = programs.github.at(REPOSITORY)

    async def run(self) -> None:
        """Send everything; return when all of it was accepted, and the files are stored."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._load.users):
                group.create_task(self._chat(f"user-{number + 1}"))
            for work in (self._set_timers, self._open_pulls, self._send_files, self._open_issues):
                group.create_task(work())

    # ── the load ─────────────────────────────────────────────────────────────────────────

    async def _chat(self, user: str) -> None:
        for number in range(1, self._load.messages + 1):
            await self._pause(self._load.messages)
            answer = await self._request("POST", "/api/v1/message", {
                "user_id": user, "org_id": "demo", "client_id": "web", "message": f"No. {number}",
                "client_message_id": str(number),
                "metadata": {"number": number, "takes": self._chance.uniform(0.05, 0.3)},
            })  # fmt: skip
            self._messages[user, number] = answer["message_id"]

    async def _set_timers(self) -> None:
        began = wall_ms()
        for number in range(1, self._load.timers + 1):
            due = began + int(self._chance.uniform(0.1, 1.2) * self._load.over * 1000)
            await self._request("POST", "/api/v1/timers", {
                "task_type": REMINDER, "task_id": f"r-{number}", "delay_time": due,
                "params": {"number": number, "due": due},
            })  # fmt: skip
            self._timers.append(number)

    async def lose_a_timer(self) -> None:
        """Create a timer and cancel it, but count it as sent: the count must report it as lost."""
        due = wall_ms() + 3_600_000
        body = {"task_type": REMINDER, "task_id": "r-lost", "delay_time": due}
        await self._request("POST", "/api/v1/timers", body)
        self._timers.append(0)
        await self._request("POST", f"/api/v1/timers/{REMINDER}/r-lost/cancel")

    async def _open_pulls(self) -> None:
        for number in range(1, self._load.reviews + 1):
            await self._pause(self._load.reviews)
            self._people.open_pull(f"Change no. {number}", head=f"change-{number}")

    async def send_webhooks(self) -> None:
        """Send the webhooks of all events on GitHub, in order, until cancelled. Repeats one that is
        not accepted, and sends the webhooks of some pull requests twice.
        """
        sent = 0
        while True:
            for delivery in self._programs.github.deliveries[sent:]:
                sent += 1
                opened = delivery.payload["action"] == "opened"
                if pull := opened and delivery.event == "pull_request":
                    self._heads.append(delivery.payload["pull_request"]["head"]["sha"])
                elif opened and delivery.event == "issues":
                    self._issues.append(delivery.payload["issue"]["number"])
                for _ in range(1 + bool(pull and len(self._heads) % 4 == 0)):
                    await self._repeat_until_accepted(
                        lambda delivery=delivery: _deliver(delivery.send)
                    )
            await asyncio.sleep(_LOOK)

    async def _send_files(self) -> None:
        files: list[Path] = []
        for number, size in enumerate(self._load.files, 1):
            content = self._chance.randbytes(size)
            file = self._programs.folder / f"file-{number}.bin"
            await asyncio.to_thread(file.write_bytes, content)
            files.append(file)
            self._files[file.name] = hashlib.sha256(content).hexdigest()
        self._uploads = await upload_files(self._programs, files)

    async def _open_issues(self) -> None:
        for number in range(1, self._load.issues + 1):
            await self._pause(self._load.issues)
            self._people.open(f"Issue no. {number}", labels=[f"P{number % 5}"])

    async def work_as_agents(self) -> None:
        """Take issues, work on them and complete them, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._load.agents):
                group.create_task(self._agent(f"agent-{number + 1}"))

    async def _agent(self, name: str) -> None:
        while True:
            body = {"agent_id": name, "wait": 1}
            task = await self._request("POST", "/api/v1/request-task", body)
            if task is None:
                continue
            self._taken += 1
            await asyncio.sleep(self._chance.uniform(0.1, 0.4))
            path = f"/api/v1/tasks/{quote(task['task_id'], safe='')}/complete"
            answer = await self._answer("POST", path, {"token": task["token"], "agent_id": name})
            if answer.status < 300:
                self._completed.append(task["issue_number"])

    # ── requests ─────────────────────────────────────────────────────────────────────────

    async def _pause(self, times: int) -> None:
        await asyncio.sleep(self._chance.uniform(0.2, 1.0) * self._load.over / times)

    async def _request(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded body of the response. Raises DemoFailed if the request was refused."""
        answer = await self._answer(method, path, body)
        if answer.status >= 300:
            raise DemoFailed(f"{method} {path} was answered {answer.status}: {answer.body[:200]!r}")
        return msgspec.json.decode(answer.body) if answer.body else None

    async def _answer(self, method: str, path: str, body: Any = None) -> CallAnswer:
        sent = b"" if body is None else msgspec.json.encode(body)
        # With the same key, a repeat gets the same task if the first response was lost.
        headers = {"idempotency-key": f"{self._chance.getrandbits(64):x}"}
        return await self._repeat_until_accepted(
            lambda: self._remote_for(path).answer(method, path, sent, headers)
        )

    def _remote_for(self, path: str) -> Remote:
        """The client for *path*: agents have their own connections, because they wait."""
        return self._programs.agents if "task" in path else self._programs.remote

    async def _repeat_until_accepted(self, ask: Callable[[], Awaitable[CallAnswer]]) -> CallAnswer:
        end = steady() + _PATIENCE
        while True:
            try:
                answer = await ask()
                if answer.status not in (429, 502, 503, 504):
                    return answer
                trouble = str(answer.status)
            except CallError as error:
                trouble = str(error)
            if steady() > end:
                raise DemoFailed(f"no success within {_PATIENCE:g} s; the last answer: {trouble}")
            await asyncio.sleep(_PAUSE)

    # ── results ──────────────────────────────────────────────────────────────────────────

    def progress(self) -> dict[str, tuple[int, int]]:
        """The numbers of things done and of all things, by application, without any request."""
        notes, load = results.read_notes(self._programs.notes), self._load
        ended = {
            (note["user"], note["number"]) for note in results.notes_of(notes, "message.ended")
        }
        fired = {note["number"] for note in results.notes_of(notes, "timer")}
        reviewed = {note["head"] for note in results.notes_of(notes, "review")}
        return {
            "reviews": (len(reviewed), load.reviews),
            "messages": (len(ended), load.users * load.messages),
            "timers": (len(fired), load.timers),
            "uploads": (len(self._uploads), len(load.files)),
            "issues": (len(set(self._completed)), load.issues),
        }

    async def rows(self) -> list[results.Row]:
        """The rows of all applications, counted now."""
        notes = await asyncio.to_thread(results.read_notes, self._programs.notes)
        return [
            await self._reviews_row(),
            await self._messages_row(notes),
            results.count_timers(
                notes, self._timers, completed=await self._total(f"timers.{REMINDER}")
            ),
            await self._uploads_row(),
            results.count_issues(
                self._issues, self._completed, agents=self._load.agents, taken=self._taken
            ),
        ]  # fmt: skip

    async def _total(self, queue: str) -> int:
        """The number of completions that Redis has accepted."""
        return (await self._engine.inspect.counts(queue)).totals["completed"]

    async def _messages_row(self, notes: list[results.Note]) -> results.Row:
        answered = [
            which
            for which, id in self._messages.items()
            if (await self._request("GET", f"/api/v1/message/{id}"))["state"] == "answered"
        ]
        completed = await self._total("messages")
        return results.count_messages(notes, self._messages, answered, completed=completed)

    async def _reviews_row(self) -> results.Row:
        page = await self._request("GET", "/api/v1/reviews?state=COMPLETED&size=200")
        completed = [review["task"]["head"] for review in page["reviews"]]
        pulls = [issue.pull for issue in self._people.repository.issues.values() if issue.pull]
        posted = [review.commit for pull in pulls for review in pull.reviews]
        return results.count_reviews(self._heads, completed, posted)

    async def open_reviews(self) -> int:
        """The number of reviews that have not ended, or are not posted yet."""
        page = await self._request("GET", "/api/v1/reviews?size=200")
        states = [
            [review["state"], (review["posting"] or review)["state"]] for review in page["reviews"]
        ]
        return sum(bool(_OPEN & set(both)) for both in states)

    async def _uploads_row(self) -> results.Row:
        page = await self._request("GET", "/api/v1/uploads")
        names = [upload["name"] for upload in page["uploads"] if upload["status"] == "COMPLETED"]
        intact: list[str] = []
        for upload in self._uploads:
            answer = await self._answer("GET", f"/api/v1/uploads/{upload['upload_id']}/content")
            name = Path(upload["file"]).name
            if hashlib.sha256(answer.body).hexdigest() == self._files[name]:
                intact.append(name)
        return results.count_uploads(self._files, names, intact)


async def _deliver(send: Callable[[], int]) -> CallAnswer:
    status = await asyncio.to_thread(send)
    return CallAnswer(status or 503, {}, b"")
