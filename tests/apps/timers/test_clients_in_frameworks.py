"""Applications that are called when their timers are due: the examples, run with the real
frameworks.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.apps.timers.service_mode import SECRET
from tests.architecture.sources import ROOT
from tests.programs import Bounded
from tests.server.serving import RunningServer, up
from tests.waiting import HANGS, eventually

EXAMPLES = ROOT / "examples" / "timers"
QUEUE = "timers.shop--order.timeout"
PROGRAMS = [
    "without_framework.py",
    "delay_queue_service.py",
    "with_fastapi.py",
    "with_flask.py",
    "with_django.py",
    "shop.mjs",
]


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    allowed = {"TOWPATH_TIMERS__ALLOW": "127.0.0.0/8", "TOWPATH_CALLS__SECRETS": SECRET}
    with up(tmp_path_factory.mktemp("up"), **allowed) as running:
        yield running


def instances(scheduler: RunningServer) -> list[Any]:
    answer = scheduler.client().get("/api/v1/apps/shop/instances")
    assert answer.status_code == 200, answer.text
    return answer.json()["instances"]


@contextmanager
def example(scheduler: RunningServer, program: str, said: Path, **more: str) -> Generator[None]:
    """Yields the registered program; at the end it gets SIGTERM and deregisters."""
    _, key = scheduler.make_key("work", "submit", queues=(QUEUE, "timers.order.timeout"))
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    starter = "node" if program.endswith(".mjs") else sys.executable
    named = {"PORT": str(port), "SERVER": scheduler.address, "TOWPATH_API_KEY": key, **more}
    with said.open("w") as lines:
        process = Bounded[bytes](
            [starter, str(EXAMPLES / program)],
            stdout=lines,
            stderr=subprocess.STDOUT,
            env={**os.environ, **named},
        )
    try:
        eventually(lambda: instances(scheduler))
        yield
        process.terminate()
        # Uvicorn shuts down orderly, and then raises the signal that it got.
        assert process.wait(HANGS) in (0, -signal.SIGTERM), said.read_text()
        assert instances(scheduler) == []
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_is_called(scheduler: RunningServer, program: str, tmp_path: Path) -> None:
    if program.endswith(".mjs") and shutil.which("node") is None:
        pytest.skip("node is not installed")
    api, said = scheduler.api(QUEUE), tmp_path / "said"
    orders = [f"{program}-{n}" for n in range(3)]
    with example(scheduler, program, said):
        for order in orders:
            api.submit({"params": {"order": order}}, id=order)
        for order in orders:
            eventually(lambda made=order: api.look(made)["state"] == "done")
        assert [api.look(order)["attempts"] for order in orders] == [1, 1, 1]
        address = instances(scheduler)[0]["address"]
        refused = scheduler.client("").post(address, json={"task_type": "order.timeout"})
        assert refused.status_code == 401, "only what is signed"
    told = re.findall(r"cancelled (.+?-\d)", said.read_text())  # two threads may write on one line
    assert sorted(told) == orders


def test_the_delay_queue_in_service_mode_submits_and_is_called(
    scheduler: RunningServer, tmp_path: Path
) -> None:
    """Its timer is stored under its app and type, and runs once, not before its time."""
    api, said = scheduler.api(QUEUE), tmp_path / "said"
    with example(scheduler, "delay_queue_service.py", said, ORDER="order-7"):
        eventually(lambda: "cancelled order-7" in said.read_text())
        eventually(lambda: api.look("order-7")["state"] == "done")
        assert api.look("order-7")["attempts"] == 1
    assert said.read_text().count("cancelled order-7") == 1
