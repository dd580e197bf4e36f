"""Background tasks: one that ends by itself is restarted, and readiness reports it meanwhile."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.waiting import HANGS, eventually_async
from towpath import supervise
from towpath.apps.uploads.stores.errors import StoreUnreachable
from towpath.clock import seconds
from towpath.engine.channel import Channel
from towpath.engine.node import Node
from towpath.engine.time_limit import Deadline, SharedTimeLimit
from towpath.errors import InvalidOption, ScriptDefect, ServerRefused, ServerUnreachable
from towpath.ledger.errors import LedgerUnreachable
from towpath.supervise import Background, detached, retrieve_error, troubles
from towpath.telemetry.logs import Log


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(supervise, "_PROVEN", 0.01)


def said(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        cast("dict[str, Any]", record.msg) for record in caplog.records if record.name == "towpath"
    ]


async def fact(holds: Callable[[], object]) -> None:
    async def asked() -> object:
        return holds()

    await eventually_async(asked)


def ending(times: int, how: Exception | None) -> tuple[list[int], Callable[[], Awaitable[None]]]:
    """A coroutine that ends so often and then runs on, and the count of its starts."""
    starts: list[int] = []

    async def run() -> None:
        starts.append(len(starts))
        if len(starts) <= times:
            if how is not None:
                raise how
            return
        await asyncio.Event().wait()

    return starts, run


class TestATaskThatEndsByItself:
    @pytest.mark.parametrize(
        ("how", "name"),
        [
            (RuntimeError("unable to perform operation"), "RuntimeError"),
            (KeyError("secret-7f3a"), "KeyError"),
            (None, "it ended without an error"),
        ],
    )
    async def test_is_restarted(
        self, how: Exception | None, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """This holds whatever ended it; the text of the error, which may be secret, is not
        repeated.
        """
        caplog.set_level("INFO")
        starts, run = ending(3, how)
        task = Background("relay", run).start()
        await fact(lambda: len(starts) == 4)
        assert [line["error"] for line in said(caplog) if line["event"] == "task.failed"] == [
            name
        ] * 3
        assert "secret" not in caplog.text
        await fact(lambda: not task.trouble)
        assert [line["task"] for line in said(caplog) if line["event"] == "task.recovered"] == [
            "relay"
        ]
        await task.stop()

    async def test_pauses_longer_before_each_restart(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        starts, run = ending(5, RuntimeError())
        task = Background("relay", run).start()
        await fact(lambda: len(starts) == 6)
        await task.stop()
        pauses = [line["pause"] for line in said(caplog)]
        assert pauses == sorted(set(pauses))

    async def test_is_reported_until_it_has_run_for_a_while(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervise, "_PROVEN", 3600.0)
        starts, run = ending(1, RuntimeError())
        task = Background("relay", run).start()
        await fact(lambda: len(starts) == 2)
        assert [(name, trouble.error) for name, trouble in troubles().items()] == [
            ("relay", "RuntimeError")
        ]
        await task.stop()
        assert troubles() == {}

    async def test_is_restarted_when_what_it_waited_for_was_cancelled(self) -> None:
        """The task itself was not cancelled."""
        starts: list[int] = []

        async def run() -> None:
            starts.append(1)
            if len(starts) == 1:
                waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waited.cancel()
                await waited
            await asyncio.Event().wait()

        task = Background("relay", run).start()
        await fact(lambda: len(starts) == 2)
        await task.stop()


class TestATaskThatAnUnreachableServiceInterrupts:
    @pytest.mark.parametrize(
        "trouble",
        [
            ServerUnreachable("away"),
            LedgerUnreachable("away"),
            StoreUnreachable("away"),
            ExceptionGroup("both", [ServerUnreachable("away"), LedgerUnreachable("away")]),
        ],
        ids=lambda trouble: type(trouble).__name__,
    )
    async def test_is_no_defect_and_does_not_make_the_server_unready(
        self, trouble: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervise, "_LONGEST_INTERRUPTION", 0.002)
        caplog.set_level("INFO")
        starts, run = ending(9, trouble)
        unready: list[object] = []

        async def noting() -> None:
            unready.append(troubles())
            await run()

        task = Background("sweep", noting).start()
        await fact(lambda: "task.recovered" in [line["event"] for line in said(caplog)])
        await task.stop()
        assert len(starts) == 10
        assert [line["event"] for line in said(caplog)] == ["task.interrupted", "task.recovered"]
        assert unready == [{}] * 10

    async def test_permanently_is_reported_with_a_remedy(self) -> None:
        """A Redis that refuses a command is reachable, so only the task shows the refusal."""
        _, run = ending(99, ServerRefused("NOPERM"))
        task = Background("sweep", run).start()
        await fact(lambda: task.trouble)
        assert troubles() == {"sweep": ("ServerRefused", ServerRefused.remedy)}
        await task.stop()

    @pytest.mark.parametrize(
        "defect",
        [
            ScriptDefect("a script answered nothing"),
            InvalidOption("size", -1, rule="must be above 0"),
            ExceptionGroup("both", [ServerUnreachable("away"), RuntimeError()]),
        ],
        ids=lambda defect: type(defect).__name__,
    )
    async def test_is_distinguished_from_a_task_with_a_defect(
        self, defect: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        starts, run = ending(2, defect)
        task = Background("sweep", run).start()
        await fact(lambda: len(starts) == 3)
        assert [line["event"] for line in said(caplog)] == ["task.failed"] * 2
        await task.stop()

    async def test_is_no_defect_even_if_the_task_is_not_repeated(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def work() -> None:
            raise ServerUnreachable("away")

        task = detached("nudge", work())
        await asyncio.wait((task,))
        await fact(lambda: [line["event"] for line in said(caplog)] == ["task.interrupted"])


class TestATaskThatIsStopped:
    async def test_by_its_owner_is_not_restarted(self, caplog: pytest.LogCaptureFixture) -> None:
        starts, run = ending(0, None)
        task = Background("relay", run).start()
        await fact(lambda: starts)
        await task.stop()
        assert not task.running
        assert (len(starts), said(caplog)) == (1, [])

    async def test_and_ends_within_its_grace_is_not_cancelled(self) -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def run() -> None:
            await asked.wait()
            ended.set()

        task = Background("courier", run).start()
        await asyncio.sleep(0)
        asked.set()
        await task.stop(grace=seconds(30))
        assert ended.is_set()

    async def test_during_its_pause_ends_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervise, "FIRST_PAUSE", 3600.0)
        monkeypatch.setattr(supervise, "LONGEST_PAUSE", 3600.0)
        _, run = ending(9, RuntimeError())
        task = Background("courier", run).start()
        await fact(lambda: task.trouble)
        async with asyncio.timeout(HANGS):
            await task.stop(grace=seconds(3600))

    async def test_by_the_end_of_its_event_loop_is_not_restarted(self) -> None:
        starts, run = ending(0, None)
        task = Background("relay", run).start()
        await fact(lambda: starts)
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()
        await fact(lambda: not task.running)
        assert len(starts) == 1

    async def test_by_retiring_it_may_be_started_again(self) -> None:
        starts: list[int] = []

        async def run() -> None:
            starts.append(1)
            task.retire()

        task = Background("reader", run)
        for count in (1, 2):
            task.start()
            await fact(lambda: not task.running)
            assert len(starts) == count

    async def test_twice_or_before_its_start_is_harmless(self) -> None:
        _, run = ending(0, None)
        task = Background("relay", run)
        await task.stop()
        task.start()
        assert task.start().running
        await task.stop()
        await task.stop()


async def test_a_detached_task_logs_what_ended_it(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise RuntimeError("canary")

    task = detached("nudge", work())
    await asyncio.wait((task,))
    await fact(lambda: [line["task"] for line in said(caplog)] == ["nudge"])
    assert "canary" not in caplog.text


async def test_a_probe_that_ends_by_a_defect_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    """Calls fail at once while Redis is away: without its probe they would fail for ever."""
    answers = iter([ServerUnreachable("away"), RuntimeError(), ServerUnreachable("away"), None])

    async def probe(_key: str) -> None:
        if (trouble := next(answers)) is not None:
            raise trouble

    caplog.set_level("INFO")
    target = Node("server", [Channel(cast("Any", None), cast("Any", None))], probe, Log())
    target.gave_up("key", 0.0)
    await fact(lambda: "server.back" in [line["event"] for line in said(caplog)])
    await target.take(Deadline(SharedTimeLimit(seconds(1), lambda: None), 1.0))
    assert "task.failed" in [line["event"] for line in said(caplog)]
    await target.close()


class TestATaskWhoseEventLoopWasClosed:
    """Its owner may outlive the loop, as an app does that a test module defines once."""

    @pytest.mark.parametrize("cancelled", [True, False])
    def test_is_started_and_stopped_in_the_next_loop(self, *, cancelled: bool) -> None:
        starts, run = ending(0, None)
        task = Background("watch", run)

        async def start() -> None:
            task.start()
            await fact(lambda: starts)

        async def use() -> None:
            await task.stop()
            assert not task.running
            starts.clear()
            await start()
            assert task.running
            await task.stop()

        if cancelled:
            asyncio.run(start())
        else:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(start())
            loop.close()
        asyncio.run(use())


@pytest.mark.parametrize("looked_at", [True, False])
async def test_an_error_is_not_reported_when_no_caller_waits_for_it_any_more(
    *, looked_at: bool
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if looked_at:
        shared.add_done_callback(retrieve_error)

    async def wait(what: asyncio.Future[None]) -> None:
        await asyncio.shield(what)

    caller = asyncio.create_task(wait(shared))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait((caller,))
    shared.set_exception(ServerUnreachable("redis://away"))
    await asyncio.sleep(0)
    del shared, caller
    gc.collect()
    assert bool(reported) is not looked_at
