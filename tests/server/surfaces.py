"""The four surfaces of a job, each with the same reads and changes."""

import html
import json
import re
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from tests.cli.command import Command
from tests.dashboard.sessions import SessionClient
from tests.server.serving import Api
from towpath.app.job import BlockingJob
from towpath.app.submitting import AppHandler
from towpath.engine.spelling import written
from towpath.errors import TowpathError

Facts = dict[str, Any]
FACTS = (
    "id", "state", "payload", "attempts", "max_attempts", "priority", "lane", "selector", "retry",
    "reason", "progress", "result",
)  # fmt: skip
"""What each surface says of a job. What a job does not have is None."""
TIMES = ("due_at", "next_try_at")
"""The same, as whether it has them."""


class Surface(Protocol):
    """One way to read the jobs of one queue, and to change them."""

    def read(self, id: str) -> Facts:
        """The facts that the surface shows: all, or those that it has room for."""
        ...

    def explain(self, id: str) -> str: ...

    def traceback(self, id: str) -> str:
        """The traceback of the newest failed attempt."""
        ...

    def listed(self, state: str) -> set[str]:
        """The ids of the jobs in a state."""
        ...

    def change(self, verb: str, id: str) -> str:
        """Cancels, moves by an hour, retries or deletes; returns the new state, or the code of the
        refusal.
        """
        ...


def _facts(told: dict[str, Any]) -> Facts:
    times = {name: told.get(name) is not None for name in TIMES}
    return {name: told.get(name) for name in FACTS} | times


class InPython:
    """`handler.blocking.job(id)`."""

    def __init__(self, handler: AppHandler[Any, Any, Any]) -> None:
        self._handler = handler

    def _job(self, id: str) -> BlockingJob[Any]:
        return self._handler.blocking.job(id)

    def read(self, id: str) -> Facts:
        info = self._job(id).info()
        facts = _facts({name: getattr(info, name) for name in (*FACTS, *TIMES)})
        facts["retry"] = None if info.retry is None else written(info.retry)
        return facts | {
            name: None if (body := facts[name]) is None else msgspec.json.decode(body)
            for name in ("payload", "progress", "result")
        }

    def explain(self, id: str) -> str:
        return self._job(id).explain().why

    def traceback(self, id: str) -> str:
        return self._job(id).info().failures[-1].traceback

    def listed(self, state: str) -> set[str]:
        raise NotImplementedError  # Python lists through the engine, which knows no records

    def change(self, verb: str, id: str) -> str:
        job = self._job(id)
        changes: dict[str, Callable[[], Any]] = {
            "cancel": job.cancel,
            "move": lambda: job.move(delay=3600),
            "retry": job.retry,
            "delete": job.delete,
        }
        try:
            return str(changes[verb]() or "gone")
        except TowpathError as error:
            return error.code


class OverHttp:
    """`/api/v1/queues/{queue}/…`"""

    def __init__(self, api: Api) -> None:
        self._api = api

    def read(self, id: str) -> Facts:
        return _facts(self._api.look(id))

    def explain(self, id: str) -> str:
        return self._api.get(f"/jobs/{id}/explain").json()["why"]

    def traceback(self, id: str) -> str:
        return self._api.look(id)["failures"][-1]["traceback"]

    def listed(self, state: str) -> set[str]:
        return {job["id"] for job in self._api.get("/jobs", state=state).json()["jobs"]}

    def change(self, verb: str, id: str) -> str:
        answer = {
            "cancel": lambda: self._api.post(f"/jobs/{id}/cancel"),
            "move": lambda: self._api.patch(f"/jobs/{id}", {"delay": 3600}),
            "retry": lambda: self._api.post(f"/dead/{id}/retry"),
            "delete": lambda: self._api.delete(f"/dead/{id}"),
        }[verb]()
        if answer.status_code == 204:
            return "gone"
        told = answer.json()
        return told["state"] if answer.is_success else _code_of(told)


def _code_of(problem: dict[str, Any]) -> str:
    return problem["type"].rpartition("/")[2].replace("-", "_")


class OnTheCommandLine:
    """`towpath jobs …`"""

    def __init__(self, towpath: Command, queue: str) -> None:
        self._towpath, self._queue = towpath, queue

    def _say(self, *words: str) -> list[dict[str, Any]]:
        ran = self._towpath("--json", *words, "--queue", self._queue)
        return [json.loads(line) for line in (ran.out + ran.err).splitlines()]

    def read(self, id: str) -> Facts:
        [told] = self._say("jobs", "show", id)
        return _facts(told)

    def explain(self, id: str) -> str:
        [told] = self._say("explain", id)
        return told["why"]

    def traceback(self, id: str) -> str:
        [told] = self._say("jobs", "show", id)
        return told["failures"][-1]["traceback"]

    def listed(self, state: str) -> set[str]:
        return {told["id"] for told in self._say("jobs", "list", "--state", state)}

    def change(self, verb: str, id: str) -> str:
        more = {"move": ["--delay", "1h"], "delete": ["--yes"]}.get(verb, [])
        [told] = self._say("jobs", verb, id, *more)
        return told.get("state") or cast("str", told["refused"])


class OnTheDashboard:
    """The pages, and the buttons on them."""

    def __init__(self, session: SessionClient, queue: str) -> None:
        self._session, self._queue = session, queue

    def _page(self, id: str) -> str:
        return self._session.look(f"/ui/queues/{self._queue}/jobs/{id}")

    def read(self, id: str) -> Facts:
        """The facts that the page has room for."""
        page = self._page(id)
        attempts, most = _detail(page, "Attempts").split(" of ")
        facts: Facts = {
            "id": html.unescape(_one(r"<h1><bdi>(.*?)</bdi></h1>", page)),
            "state": _one(r'</h1><span class="state \w+">(\w+)</span>', page),
            "attempts": int(attempts),
            "max_attempts": int(most),
            "priority": int(_detail(page, "Priority")),
            "payload": _body(page, "Payload"),
            "progress": _body(page, "Progress"),
            "result": _body(page, "Result"),
            "due_at": "<b>due</b>" in page,
            "next_try_at": "<b>next try</b>" in page,
        }
        return facts

    def explain(self, id: str) -> str:
        raise NotImplementedError  # the page has a sentence instead of the word

    def traceback(self, id: str) -> str:
        shown = re.findall(r'aria-label="Traceback"><bdi>(.*?)</bdi>', self._page(id), re.DOTALL)
        return html.unescape(shown[-1])

    def listed(self, state: str) -> set[str]:
        page = self._session.look(f"/ui/queues/{self._queue}", state=state)
        return set(re.findall(rf'href="/ui/queues/{self._queue}/jobs/([^"/]+)"', page))

    def change(self, verb: str, id: str) -> str:
        """Presses the button. Without a button, returns what the API answers."""
        found = re.search(
            r'data-method="(\w+)" data-path="([^"]+)"[^>]*>' + verb.capitalize(), self._page(id)
        )
        if found is None:
            return "no_button"
        body = {"json": {"delay": 3600}} if verb == "move" else {}
        answer = self._session.send(found[1], html.unescape(found[2]), **body)
        if answer.status_code == 204:
            return "gone"
        told = answer.json()
        return told["state"] if answer.is_success else _code_of(told)


def _one(pattern: str, page: str) -> str:
    found = re.search(pattern, page)
    assert found, (pattern, page)
    return found[1]


def _detail(page: str, name: str) -> str:
    return _one(rf"<dt>{name}</dt><dd>(.*?)</dd>", page)


def _body(page: str, name: str) -> Any:
    """What a card of the page shows."""
    found = re.search(rf'<pre tabindex="0" aria-label="{name}"><bdi>(.*?)</bdi>', page, re.DOTALL)
    return msgspec.json.decode(html.unescape(found[1])) if found else None
