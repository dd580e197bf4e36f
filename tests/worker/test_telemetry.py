"""The log lines, metrics and spans of a worker for real jobs.

All tests here check that every line has the fields of the catalogue: see `lines`.
"""

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from prometheus_client import generate_latest

from tests.telemetry.streams import ROOT
from tests.waiting import eventually_async
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, ended, working
from towpath.app.app import Towpath
from towpath.clock import ZERO, hours, milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.retry import Fixed
from towpath.telemetry import logs
from towpath.worker.context import Context, Discard, Snooze
from towpath.worker.handler import HandlerOptions
from towpath.worker.worker import Worker


class TestMetricsOfAWorker:
    async def test_count_outcomes_of_jobs(self, app: Towpath) -> None:
        @app.handler("shop", retry=Fixed(milliseconds(1)), max_attempts=3)
        async def sell(how: str, ctx: Context) -> None:
            if how == "fail":
                raise ValueError
            if how == "fail once" and ctx.attempt == 1:
                raise ValueError
            if how == "snooze":
                raise Snooze(hours(1))
            if how == "discard":
                raise Discard("old")

        for how in ("fine", "fine", "fail", "fail once", "discard", "snooze"):
            await sell.submit(how)
        await app.engine.submit("shop", b"1", headers={"handler": "nobody"})
        async with working(app, unhandled_for=ZERO):
            job = await sell.submit("fine", delay=milliseconds(50))
            await job.result(within=SOON)
            await settled(app, "shop", dead=3, delayed=1)
            # Counted once the worker has read the answer.
            text = ""

            async def dead_are_counted() -> bool:
                nonlocal text
                text = await asyncio.to_thread(
                    lambda: generate_latest(app.metrics.registry).decode()
                )
                labels = 'handler="sell",queue="shop"'
                return value(text, "towpath_jobs_dead_total", labels) == 2

            await eventually_async(dead_are_counted)
        counted = {
            name: value(text, f"towpath_jobs_{name}_total", 'handler="sell",queue="shop"')
            for name in ("submitted", "started", "completed", "failed", "dead", "snoozed")
        }
        assert counted == {
            "submitted": 7, "started": 10, "completed": 4, "failed": 5, "dead": 2, "snoozed": 1,
        }  # fmt: skip
        assert value(text, "towpath_jobs_dead_total", 'handler="unknown",queue="shop"') == 1
        for name in ("towpath_job_seconds_count", "towpath_wait_seconds_count"):
            assert value(text, name, 'handler="sell",queue="shop"') == 9, "failures take time too"
        assert value(text, "towpath_punctuality_seconds_count", 'handler="sell"') >= 1
        assert value(text, "towpath_queue_depth", 'queue="shop",state="delayed"') == 1
        assert value(text, "towpath_slots", 'state="free"') == 100
        assert value(text, "towpath_queues_readable", "") == 1

    async def test_go_on_without_gauges_when_the_worker_has_ended(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        await sell.submit()
        await Worker(app).drain()
        text = await asyncio.to_thread(lambda: generate_latest(app.metrics.registry).decode())
        assert value(text, "towpath_jobs_completed_total", 'handler="sell"') == 1
        assert value(text, "towpath_queues_readable", "") == 0

    async def test_count_redeliveries(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        job = await sell.submit()
        await app.engine.claim("shop", worker="gone", lease=milliseconds(1))
        async with working(app):
            await job.result(within=SOON)
        assert [line["attempt"] for line in lines.of("job.redelivered")] == [2]
        assert app.metrics.of("shop", "sell").redelivered._value.get() == 1  # noqa: SLF001 # pyright: ignore


class TestLogLinesOfAWorker:
    async def test_follow_a_workers_life_in_order(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop")
        async def sell(n: int) -> None: ...

        async with working(app, name="till-3", concurrency=5, grace=seconds(2)):
            await (await sell.submit(1)).result(within=SOON)
        own = [line for line in lines.all if line["event"] != "job.submitted"]
        assert [line["event"] for line in own] == [
            "queue.configured",
            "worker.started",
            "job.started",
            "job.completed",
            "worker.stopping",
            "worker.stopped",
        ]
        assert {line["worker"] for line in own} == {"till-3"}
        [submitted] = lines.of("job.submitted")
        assert (submitted["queue"], submitted["handler"]) == ("shop", "sell")
        started = lines.of("worker.started")[0]
        assert (started["queues"], started["concurrency"], started["grace"]) == (["shop"], 5, 2.0)
        stopped = lines.of("worker.stopped")[0]
        assert (stopped["jobs"], stopped["released"], stopped["code"]) == (1, 0, 0)

    async def test_have_the_times_that_a_job_waited_and_ran(
        self, app: Towpath, lines: LogLines
    ) -> None:
        @app.handler("shop")
        async def sell(ctx: Context) -> None:
            ctx.progress("x")

        async with working(app):
            job = await sell.submit(delay=seconds(0.2))
            await ended(job)
            line = await lines.next("job.completed")
        assert (line["job"], line["queue"], line["handler"]) == (job.id, "shop", "sell")
        assert 0 <= line["waited"] < 5
        assert 0 < line["ran"] < 5

    async def test_have_no_payload(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop", max_attempts=1)
        async def sell(secret: int) -> None: ...

        async with working(app):
            job = await app.engine.submit("shop", b'"canary"')
            await app.engine.events.ended(job.job, within=SOON)
            await lines.next("payload.invalid")
        assert "canary" not in str(lines.all)

    async def test_of_handlers_own_loggers_name_their_job(self, app: Towpath) -> None:
        """This holds in the loop and in a thread, even if two run at once; lines outside of
        handlers name none.
        """
        both = asyncio.Barrier(2)

        @app.handler("shop")
        async def sell(n: int) -> None:
            await both.wait()
            logging.getLogger("mine").warning("sold %s", n)

        @app.handler("till")
        def count(n: int) -> None:
            logging.getLogger("mine").warning("counted %s", n)

        with written() as stream:
            async with working(app):
                jobs = [await sell.submit(1), await sell.submit(2), await count.submit(3)]
                for job in jobs:
                    await job.result(within=SOON)
            logging.getLogger("mine").warning("closed")
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        mine = {line["event"]: line for line in found if line.get("logger") == "mine"}
        said = ("sold 1", "sold 2", "counted 3")
        assert [mine[words]["job"] for words in said] == [job.id for job in jobs]
        assert [mine[words]["handler"] for words in said] == ["sell", "sell", "count"]
        assert (mine["counted 3"]["queue"], mine["counted 3"]["attempt"]) == ("till", 1)
        assert "job" not in mine["closed"]

    async def test_of_handlers_in_processes_are_written_by_the_worker(self, app: Towpath) -> None:
        log_lines = app.add(
            "lines", process_handlers.log_lines.function, HandlerOptions(processes=1)
        )
        with written() as stream:
            async with working(app):
                job = await log_lines.submit()
                await job.result(within=SOON)
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        mine = [line for line in found if line.get("logger") == "mine"]
        assert [line["event"].partition("\n")[0] for line in mine] == ["sold 7", "failed"]
        assert [(line["job"], line["handler"]) for line in mine] == [(job.id, "log_lines")] * 2
        assert "ValueError: invalid literal" in mine[1]["event"]


@contextmanager
def written() -> Generator[io.StringIO]:
    """All lines of the process, as they are written."""
    stream = io.StringIO()
    logs.configure(form="json", stream=stream)
    try:
        yield stream
    finally:
        logs.reset()


class TestSpansOfAWorker:
    def test_lead_from_the_request_to_the_end_of_its_job(self, server: EmbeddedServer) -> None:
        spans = told(server.url)
        request = named(spans, "request")
        process = named(spans, "process shop", inside=named(spans, "inside 1"))
        submit = next(span for span in spans if span["id"] == process["parent"])
        assert (submit["name"], submit["parent"]) == ("submit shop", request["id"])
        assert process["links"] == [submit["id"]]
        assert process["trace"] == request["trace"]
        assert process["kind"] == "CONSUMER"
        assert process["status"][0] != "ERROR"

        failed = named(spans, "process shop", inside=named(spans, "inside 2"))
        assert failed["status"][0] == "ERROR"
        assert failed["attributes"]["error.type"] == "ValueError"
        assert "canary" not in str([span for span in spans if span["name"].startswith("process")])

        snoozed = named(spans, "process shop", inside=named(spans, "inside 3"))
        assert snoozed["status"][0] != "ERROR", "it was put off, not failed"

        thread = named(spans, "in a thread")
        assert named(spans, "process till")["id"] == thread["parent"]

        alone = named(spans, "process shop", inside=named(spans, "inside 4"))
        assert (alone["parent"], alone["links"]) == ("", [])


def told(url: str) -> list[dict[str, Any]]:
    """The spans of a program that submits and works."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.worker.traced_program", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def named(
    spans: list[dict[str, Any]], name: str, *, inside: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The span of that name; with *inside*, the one within that span."""
    around = None if inside is None else inside["parent"]
    [found] = [span for span in spans if span["name"] == name and around in (None, span["id"])]
    return found


def value(text: str, name: str, labels: str) -> float:
    """The value of a metric in a scrape."""
    wanted = [line for line in text.splitlines() if line.startswith(name) and labels in line]
    assert wanted, f"no {name} with {labels}"
    return float(wanted[0].rpartition(" ")[2])


async def settled(app: Towpath, queue: str, *, dead: int, delayed: int) -> None:
    """Returns when no job of *queue* is open except delayed ones."""

    async def so() -> bool:
        counts = await app.engine.inspect.counts(queue)
        return (counts.ready, counts.leased, counts.dead, counts.delayed) == (0, 0, dead, delayed)

    await eventually_async(so)
