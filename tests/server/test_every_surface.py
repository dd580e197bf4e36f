"""A job reads and changes the same in Python, over HTTP, on the command line and on the dashboard,
whether it has a record in the database or not. `make test` tries jobs with a record: jobs without
one have tests of their own on every surface.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.amounts import slow
from tests.cli.command import Command
from tests.dashboard.sessions import log_in
from tests.server.serving import RunningServer
from tests.server.surfaces import (
    Facts,
    InPython,
    OnTheCommandLine,
    OnTheDashboard,
    OverHttp,
    Surface,
)
from tests.waiting import HANGS, eventually
from towpath import Context, Fixed
from towpath.app.app import Towpath
from towpath.app.submitting import AppHandler
from towpath.clock import hours, seconds
from towpath.embedded.process import ask
from towpath.engine.states import State
from towpath.worker.worker import Worker

KINDS = ("with a record", "without a record")
SURFACES = ("python", "http", "command line", "dashboard")
ID = "invoice-7"
OPTIONS: dict[str, Any] = {
    "id": ID,
    "priority": 70,
    "max_attempts": 2,
    "retry": Fixed(hours(1)),
    "selector": "paper",
    "keep": hours(1),
}
AS_SUBMITTED: Facts = {
    "id": ID,
    "payload": {"amount": 12},
    "attempts": 0,
    "max_attempts": 2,
    "priority": 70,
    "lane": None,
    "selector": "paper",
    "retry": "fixed:1h",
    "reason": None,
    "progress": None,
    "result": None,
    "due_at": False,
    "next_try_at": False,
}


class Invoices(NamedTuple):
    """A queue with one handler, and what the handler does and has seen."""

    app: Towpath
    handler: AppHandler[Any, Any, Any]
    mood: dict[str, str]
    """`fail`, `hold` or `work`."""
    ids: list[str]
    """The `ctx.id` of each attempt."""
    released: threading.Event

    def submit(self, **more: Any) -> None:
        self.handler.blocking.submit({"amount": 12}, **OPTIONS | more)

    def drain(self) -> None:
        async def drain() -> None:
            async with self.app:
                await Worker(self.app, signals=()).drain()

        asyncio.run(drain())

    def state(self, id: str = ID) -> State:
        return self.handler.blocking.job(id).state()


@pytest.fixture(params=[KINDS[0], pytest.param(KINDS[1], marks=slow)])
def invoices(
    request: pytest.FixtureRequest, running: RunningServer, queue: str
) -> Iterator[Invoices]:
    mood, ids, released = {"now": "work"}, list[str](), threading.Event()
    app = Towpath(running.said["store"], ledger=running.database)

    @app.handler(queue, record=request.param == KINDS[0], max_attempts=2, time_limit=hours(1))
    async def charge(invoice: dict[str, int], ctx: Context) -> str:
        ids.append(ctx.id)
        if mood["now"] == "fail":
            raise ConnectionError("no printer")
        if mood["now"] == "hold":
            ctx.progress({"step": 1})
            await asyncio.to_thread(released.wait, HANGS)
        return f"charged {invoice['amount']}"

    yield Invoices(app, charge, mood, ids, released)
    released.set()
    charge.backend.leave_blocking()


@pytest.fixture
def surface(
    request: pytest.FixtureRequest,
    running: RunningServer,
    invoices: Invoices,
    queue: str,
    tmp_path: Path,
) -> Surface:
    match request.param:
        case "python":
            return InPython(invoices.handler)
        case "http":
            return OverHttp(running.api(queue))
        case "dashboard":
            return OnTheDashboard(log_in(running, running.key), queue)
        case _:
            towpath = Command(running.said["store"], tmp_path)
            towpath.env["TOWPATH_DATABASE"] = running.database
            return OnTheCommandLine(towpath, queue)


# ── the states that a job can be in ──────────────────────────────────────────────────────


def ready(invoices: Invoices) -> Facts:
    invoices.submit()
    return {"state": "ready"}


def delayed(invoices: Invoices) -> Facts:
    invoices.submit(delay=hours(1))
    return {"state": "delayed", "due_at": True}


def waiting(invoices: Invoices) -> Facts:
    invoices.submit(id="before", lane="anna")
    invoices.submit(lane="anna")
    return {"state": "waiting", "lane": "anna"}


def tried_again(invoices: Invoices) -> Facts:
    invoices.mood["now"] = "fail"
    invoices.submit()
    invoices.drain()
    return {"state": "delayed", "attempts": 1, "reason": "no printer", "next_try_at": True}


def dead(invoices: Invoices) -> Facts:
    invoices.mood["now"] = "fail"
    invoices.submit(max_attempts=1)
    invoices.drain()
    invoices.mood["now"] = "work"
    return {"state": "dead", "attempts": 1, "max_attempts": 1, "reason": "no printer"}


def done(invoices: Invoices) -> Facts:
    invoices.submit()
    invoices.drain()
    return {"state": "done", "attempts": 1, "result": "charged 12"}


def cancelled(invoices: Invoices) -> Facts:
    invoices.submit()
    invoices.handler.blocking.job(ID).cancel()
    return {"state": "cancelled"}


def moved(invoices: Invoices) -> Facts:
    """A record that was moved has another id in Redis."""
    invoices.submit(delay=hours(2))
    invoices.handler.blocking.job(ID).move(delay=hours(1))
    return {"state": "delayed", "due_at": True}


def retried(invoices: Invoices) -> Facts:
    dead(invoices)
    invoices.handler.blocking.job(ID).retry()
    return {"state": "ready", "max_attempts": 1, "reason": "no printer"}


WAYS: dict[str, Callable[[Invoices], Facts]] = {
    way.__name__: way
    for way in (ready, delayed, waiting, tried_again, dead, done, cancelled, moved, retried)
}
WHY = {
    "delayed": "not_due", "waiting": "behind_lane", "tried_again": "not_due", "moved": "not_due",
    "dead": "ended", "done": "ended", "cancelled": "ended",
}  # fmt: skip


def on_surfaces(cases: Iterable[Any], often: Iterable[Any] = ()) -> list[Any]:
    """Each case on each surface. A command takes a second of CPU: `make test` tries the command
    line with *often*, and `make test-all` with everything.
    """
    return [
        pytest.param(
            surface,
            case,
            marks=[slow] if surface == "command line" and case not in often else [],
            id=f"{surface}-{_name(case)}",
        )
        for surface in SURFACES
        for case in cases
    ]


def _name(case: Any) -> str:
    return case if isinstance(case, str) else "-".join((case[0].__name__, *case[1:]))


@pytest.mark.parametrize(
    ("surface", "way"), on_surfaces(WAYS, ["dead", "retried"]), indirect=["surface"]
)
def test_a_job_reads_the_same_on_every_surface(
    surface: Surface, invoices: Invoices, way: str
) -> None:
    expected, found = AS_SUBMITTED | WAYS[way](invoices), Facts()

    def is_there() -> bool:
        found.update(surface.read(ID))
        return found["state"] == expected["state"]

    eventually(is_there)
    reason = found.get("reason")
    if reason is not None:
        assert expected["reason"] in reason
        found["reason"] = expected["reason"]
    assert found == {name: expected[name] for name in found}
    if not isinstance(surface, OnTheDashboard) and way in WHY:
        eventually(lambda: surface.explain(ID) == WHY[way])  # once Redis has the changes of the row
    if not isinstance(surface, InPython):
        eventually(lambda: ID in surface.listed(expected["state"]))


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_a_running_job_reads_the_same_on_every_surface(
    surface: Surface, invoices: Invoices
) -> None:
    invoices.mood["now"] = "hold"
    invoices.submit()
    running = threading.Thread(target=invoices.drain)
    running.start()
    try:
        eventually(lambda: surface.read(ID)["progress"] == {"step": 1})
        found = surface.read(ID)
        expected = AS_SUBMITTED | {"state": "leased", "attempts": 1, "progress": {"step": 1}}
        assert found == {name: expected[name] for name in found}
    finally:
        invoices.released.set()
        running.join()
    assert invoices.state() is State.DONE


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_the_traceback_of_a_failed_attempt_is_shown_on_every_surface(
    surface: Surface, invoices: Invoices
) -> None:
    dead(invoices)
    eventually(lambda: surface.read(ID)["state"] == "dead")
    frames, error = surface.traceback(ID).rstrip().rsplit("\n", 1)
    assert error == "ConnectionError: no printer"
    assert "in charge" in frames
    assert "towpath/worker" not in frames


def test_a_job_between_two_attempts_explains_which_failed_why_and_when_the_next_begins(
    invoices: Invoices,
) -> None:
    tried_again(invoices)
    job = invoices.handler.blocking.job(ID)
    eventually(lambda: job.explain().why == "not_due")
    text, info = job.explain().text, job.info()
    assert "1 of 2" in text
    assert "no printer" in text
    assert str(info.next_try_at) in text


@pytest.mark.parametrize("surface", ["python"], indirect=True)
def test_a_failed_attempt_is_still_shown_after_a_retry_and_a_loss_of_redis(
    surface: Surface, invoices: Invoices, running: RunningServer
) -> None:
    """With a record, the row has it. A plain job keeps it through the retry, in Redis."""
    dead(invoices)
    before = surface.traceback(ID)
    assert surface.change("retry", ID) == "ready"
    assert surface.traceback(ID) == before
    if invoices.handler.options.record:
        ask(running.store, "FLUSHALL")
        assert surface.traceback(ID) == before


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_a_running_job_that_is_cancelled_is_leased_until_it_stops_and_keeps_its_attempt(
    surface: Surface, invoices: Invoices
) -> None:
    invoices.mood["now"] = "hold"
    invoices.submit()
    running = threading.Thread(target=invoices.drain)
    running.start()
    try:
        eventually(lambda: surface.read(ID)["progress"] == {"step": 1})
        assert surface.change("cancel", ID) == "leased"
        eventually(lambda: surface.read(ID)["state"] == "cancelled")
        assert surface.read(ID)["attempts"] == 1
    finally:
        invoices.released.set()
        running.join()


# ── changes ──────────────────────────────────────────────────────────────────────────────

CHANGES = [
    (ready, "cancel", "cancelled"),
    (ready, "move", "delayed"),
    (delayed, "cancel", "cancelled"),
    (moved, "move", "delayed"),
    (moved, "cancel", "cancelled"),
    (waiting, "cancel", "cancelled"),
    (tried_again, "move", "delayed"),
    (dead, "delete", "gone"),
    (done, "delete", "gone"),
    (cancelled, "delete", "gone"),
]


@pytest.mark.parametrize(
    ("surface", "change"), on_surfaces(CHANGES, CHANGES[3:5]), indirect=["surface"]
)
def test_a_change_does_the_same_on_every_surface(
    surface: Surface, invoices: Invoices, change: tuple[Callable[[Invoices], Facts], str, str]
) -> None:
    way, verb, state = change
    way(invoices)
    assert surface.change(verb, ID) == state
    assert invoices.state() == state
    invoices.drain()
    assert invoices.state() == state


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_a_dead_job_that_is_retried_runs_again(surface: Surface, invoices: Invoices) -> None:
    dead(invoices)
    assert surface.change("retry", ID) == "ready"
    eventually(lambda: invoices.drain() or invoices.state() is State.DONE)
    expected = {"state": "done", "attempts": 1, "max_attempts": 1, "result": "charged 12"}
    assert surface.read(ID).items() >= expected.items()
    assert invoices.ids == [ID, ID]


REFUSED = [
    (dead, "cancel", "job_dead"),
    (done, "cancel", "job_done"),
    (done, "move", "job_not_waiting"),
    (dead, "move", "job_not_waiting"),
    (ready, "retry", "job_not_dead"),
    (done, "retry", "job_not_dead"),
    (ready, "delete", "job_open"),
    (moved, "delete", "job_open"),
]


@pytest.mark.parametrize(
    ("surface", "refusal"), on_surfaces(REFUSED, REFUSED[:1]), indirect=["surface"]
)
def test_a_refusal_is_the_same_on_every_surface(
    surface: Surface, invoices: Invoices, refusal: tuple[Callable[[Invoices], Facts], str, str]
) -> None:
    way, verb, code = refusal
    way(invoices)
    before = invoices.state()
    expected = "no_button" if isinstance(surface, OnTheDashboard) else code
    assert surface.change(verb, ID) == expected
    assert invoices.state() == before


@pytest.mark.parametrize("surface", ["python", "http", "dashboard"], indirect=True)
def test_a_job_that_never_existed_is_not_found(surface: Surface, invoices: Invoices) -> None:
    invoices.submit(id="another")
    if isinstance(surface, OnTheDashboard):
        with pytest.raises(AssertionError, match="not found"):
            surface.read(ID)
        return
    verbs = ("cancel", "move", "retry", "delete")
    assert {surface.change(verb, ID) for verb in verbs} == {"job_not_found"}


def test_a_handler_sees_the_id_that_the_caller_gave(invoices: Invoices) -> None:
    """Whatever Redis calls the job by then: a key for a payment must not change."""
    invoices.submit(delay=hours(2))
    job = invoices.handler.blocking.job(ID)
    job.move(delay=hours(1))
    job.move(delay=seconds(0))
    eventually(lambda: invoices.drain() or invoices.state() is State.DONE)
    assert invoices.ids == [ID]


def test_dead_jobs_are_retried_and_deleted_by_their_error(
    running: RunningServer, invoices: Invoices, queue: str
) -> None:
    """The dashboard's page of dead jobs does this."""
    dead(invoices)
    api = running.api(queue)
    [group] = api.get("/dead/groups").json()["groups"]
    assert api.post("/dead/retry", {"group": group["group"]}).json()["retried"] == 1
    eventually(lambda: invoices.drain() or invoices.state() is State.DONE)
    invoices.mood["now"] = "fail"
    invoices.submit(id="another", max_attempts=1)
    invoices.drain()
    assert api.delete("/dead", text="no printer").json()["deleted"] == 1
    assert invoices.state("another") is State.GONE
