"""`GET /api/v1/workers`: the live workers, as far as the key may see them."""

import asyncio

from tests.server.serving import Api, RunningServer, problem
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.worker_registry import BlockedLoop, HandlerReport, RunningJob, WorkerReport


def told(running: RunningServer, name: str, queue: str) -> None:
    async def tell() -> None:
        report = WorkerReport(
            host="build-3", pid=7, queues=[queue, "elsewhere"], serving=2, slots=4, running=1,
            jobs=[RunningJob(job_ref(queue, "m-1"), 1_767_225_600_000)],
            blocked=BlockedLoop(12.5, "send", job_ref(queue, "m-1")), release="1.2", handling=2,
            handlers=[HandlerReport(queue, "send", "1f"), HandlerReport("elsewhere", None)],
        )  # fmt: skip
        async with Engine(f"unix://{running.store}") as engine:
            await engine.workers.report(name, report)

    asyncio.run(tell())


def test_the_list_of_workers_shows_who_is_alive_and_what_they_run(
    running: RunningServer, api: Api
) -> None:
    told(running, "anna-of-workers", api.queue)
    answer = running.client().get("/api/v1/workers")
    assert answer.status_code == 200
    [mine] = [worker for worker in answer.json()["workers"] if worker["name"] == "anna-of-workers"]
    assert (mine["host"], mine["pid"], mine["slots"], mine["running"]) == ("build-3", 7, 4, 1)
    assert mine["jobs"] == [{"queue": api.queue, "id": "m-1", "since": "2026-01-01T00:00:00Z"}]
    assert (mine["release"], mine["handling"]) == ("1.2", 2)
    assert mine["handlers"] == [
        {"queue": api.queue, "name": "send", "digest": "1f"},
        {"queue": "elsewhere", "name": None, "digest": ""},
    ]
    assert mine["blocked"] == {
        "seconds": 12.5, "handler": "send", "queue": api.queue, "id": "m-1",
    }  # fmt: skip


def test_the_list_of_workers_is_refused_without_a_key(running: RunningServer) -> None:
    problem(running.client(key="").get("/api/v1/workers"), 401)


def test_a_key_sees_only_workers_of_its_queues_and_only_these_queues(
    running: RunningServer, api: Api
) -> None:
    other = f"{api.queue}-other"
    told(running, "anna-of-mine", api.queue)
    told(running, "berta-of-other", other)
    _, mine = running.make_key("read", queues=(api.queue,))
    [found] = running.client(key=mine).get("/api/v1/workers").json()["workers"]
    assert (found["name"], found["queues"], found["serving"]) == ("anna-of-mine", [api.queue], 2)
    _, neither = running.make_key("read", queues=("nothing",))
    assert running.client(key=neither).get("/api/v1/workers").json()["workers"] == []


def test_jobs_of_other_queues_are_not_named(running: RunningServer, api: Api) -> None:
    told(running, "anna-of-both", api.queue)
    _, elsewhere = running.make_key("read", queues=("elsewhere",))
    found = running.client(key=elsewhere).get("/api/v1/workers").json()["workers"]
    [both] = [worker for worker in found if worker["name"] == "anna-of-both"]
    assert (both["queues"], both["jobs"], both["running"]) == (["elsewhere"], [], 1)
    assert both["handlers"] == [{"queue": "elsewhere", "name": None, "digest": ""}]
    assert both["blocked"] == {"seconds": 12.5, "handler": None, "queue": None, "id": None}
