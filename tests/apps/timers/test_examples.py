"""The programs of `examples/timers` that run timers themselves."""

import os
import subprocess
import sys

from tests.programs import COMMAND, ROOT, Program, run
from towpath.embedded import EmbeddedServer

EXAMPLES = ROOT / "examples" / "timers"


def env(server: EmbeddedServer) -> dict[str, str]:
    return {**os.environ, "REDIS_URL": server.url}


def test_the_delay_queue_runs_its_workers_once_each(server: EmbeddedServer) -> None:
    ran = run([sys.executable, EXAMPLES / "delay_queue.py"], env=env(server), cwd=ROOT)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    # Its state is read a moment later, and may have changed by then.
    assert [line for line in lines if not line.startswith("order-7 ")] == [
        "cancelled order 7", "told Anna",
    ]  # fmt: skip
    assert len(lines) == 3


def test_orders_that_are_not_paid_are_cancelled(server: EmbeddedServer) -> None:
    """The program runs twice: the same orders again are the same timers."""
    given = env(server) | {"PAY_WITHIN": "2s"}
    ordering = [sys.executable, "-m", "examples.timers.orders"]
    ran = run(ordering, env=given, cwd=ROOT)
    assert ran.code == 0, ran.err
    states = dict(line.split()[:2] for line in ran.out.splitlines())
    assert states == {
        "order-1": "cancelled",
        "order-2": "delayed",
        "order-3": "cancelled",
        "order-4": "delayed",
    }
    words = [COMMAND, "worker", "examples.timers.orders:app"]
    pipe = subprocess.PIPE
    with Program[str](
        words, env=given, cwd=ROOT, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        assert worker.stdout is not None
        cancelled = [worker.stdout.readline() for _ in range(2)]
        worker.terminate()
    assert sorted(cancelled) == [
        "order 2 of Anna was not paid in time\n",
        "order 4 of Anna was not paid in time\n",
    ]
