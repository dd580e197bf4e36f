"""No task or thread ends silently: each is supervised, or awaited."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import SOURCE, python_files

MAKES = {"create_task", "ensure_future", "Thread"}
TESTING = SOURCE / "testing"
"""Ends with the test that it is for."""

AWAITED = {
    "app/blocking.py": "a loop that runs until it is stopped; its calls raise where they were made",
    "apps/issues/agent.py": "awaited to its end",
    "apps/issues/assignment.py": "awaited to its end; by who gives back, if its caller went away",
    "apps/timers/blocking.py": "a worker, which logs its end; awaited or joined by who stops it",
    "apps/timers/client.py": "awaited to its end",
    "apps/timers/plugin.py": "awaited to its end",
    "apps/timers/registration.py": "logs what it raises, and goes on",
    "apps/timers/scheduler.py": "a group: the scheduler ends with its error, and begins again",
    "apps/uploads/ingest.py": "who sends the next piece, or ends, raises what it raises",
    "apps/uploads/room.py": "awaited when its body ends; the lease ends without it",
    "apps/uploads/concatenation.py": "a group: the attempt raises what it raises",
    "cli/fleet.py": "a group: the parent ends with its error",
    "cli/reloading.py": "awaited: the parent ends with its error",
    "dashboard/snapshot_cache.py": "who looks raises what it raises",
    "demo/load.py": "a group: the demo ends with its error",
    "demo/run.py": "a group: the demo ends with its error",
    "engine/batcher.py": "its submits raise what it raises",
    "engine/follow.py": "those who wait raise what it raises",
    "engine/port.py": "those who share it wait for it; the others are awaited to their end",
    "ledger/database/writing.py": "who asked raises what it raises",
    "ledger/keys/keys.py": "who asked raises what it raises; a renewal is asked for again",
    "ledger/records/relay.py": "looked at in the next turn, which raises what it raised",
    "ledger/outbox/courier.py": "the lease ends without it, and with that the send around it",
    "ledger/outbox/sinks/kafka.py": "awaited to its end",
    "ledger/outbox/sinks/webhook.py": "a group: the round raises what it raises",
    "processes/command.py": "awaited to its end",
    "processes/launch.py": "whatever it raises goes to who asked; nothing ends it",
    "web/mcp.py": "awaited to its end; its answer is taken back if its caller went away",
    "web/dependencies.py": "awaited to its end",
    "server/run.py": "the server ends with its error",
    "supervise.py": "the supervisor",
    "worker/child.py": "the child ends with it, and its parent starts another",
    "worker/execution.py": "an attempt is settled by its end",
    "worker/duties.py": "awaited to its end",
    "worker/feeder.py": "a group: the worker ends with its error",
    "worker/heartbeat.py": "the worker ends with its error",
    "worker/queues.py": "a group: the worker ends with its error",
    "worker/schedules.py": "a group: the worker ends with its error",
    "worker/lifespan.py": "who enters or leaves it raises what it raises",
    "worker/middleware.py": "its attempt raises what it raises",
    "worker/executors.py": "its attempt or future gets what it raises; or awaited by the pool",
    "worker/worker.py": "awaited: the worker ends with its error",
}
"""Where tasks and threads are made without the supervisor, and who sees them end."""


def test_every_task_is_supervised_or_awaited() -> None:
    """A new one is started with `supervise.Background`, or gets its line above."""
    made = {
        path.relative_to(SOURCE).as_posix()
        for path in python_files(SOURCE)
        if TESTING not in path.parents and list(_made(path))
    }
    assert made == set(AWAITED)


def _made(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in MAKES:
                yield name


def test_an_unsupervised_task_is_found(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("asyncio.create_task(run())\nThread(target=run)\ngroup.create_task(run())\n")
    assert Counter(_made(code)) == {"create_task": 2, "Thread": 1}
