"""Two schedulers and three instances, as processes: one killed, one frozen, one refusing."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.amounts import amount
from tests.apps.timers.service_mode import SECRET
from tests.programs import Bounded
from tests.server.serving import RunningServer, serve
from tests.server.webhook_endpoint import endpoint
from tests.waiting import eventually
from towpath.embedded import EmbeddedServer

PROGRAM = Path(__file__).with_name("instance_program.py")
QUEUE = "timers.shop--t"
TIMERS = amount(60, thoroughly=120)
SETTINGS = {
    "TOWPATH_CALLS__SECRETS": SECRET,
    "TOWPATH_TIMERS__ALLOW": "127.0.0.0/8",
    "TOWPATH_TIMERS__CALL_WITHIN": "1s",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


@pytest.fixture
def schedulers(tmp_path: Path, server: EmbeddedServer) -> Iterator[list[RunningServer]]:
    with ExitStack() as stack:
        homes = [tmp_path / name for name in ("one", "two")]
        for home in homes:
            home.mkdir()
        yield [stack.enter_context(serve(home, server.url, **SETTINGS)) for home in homes]


@contextmanager
def instance(at: RunningServer, file: Path) -> Generator[subprocess.Popen[bytes]]:
    address = f"http://127.0.0.1:{free_port()}/timers"
    process = Bounded[bytes](
        [sys.executable, str(PROGRAM), address, at.address, str(file)],
        env={**os.environ, "TOWPATH_API_KEY": at.key},
    )
    try:
        eventually(lambda: address in addresses(at.client()))
        yield process
    finally:
        process.kill()
        process.wait()


def addresses(client: httpx.Client) -> list[str]:
    answer = client.get("/api/v1/apps/shop/instances")
    assert answer.status_code == 200, answer.text
    return [
        registered["address"] for registered in answer.json()["instances"] if registered["alive"]
    ]


def lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def submit(at: RunningServer, n: int) -> None:
    due = {"delay": 0.5 + 3 * n / TIMERS, "retry": "fixed:300ms"}
    at.api(QUEUE).submit({"params": n}, id=f"timer-{n}", **due)


def open_timers(at: RunningServer) -> int:
    counts = at.api(QUEUE).get().json()
    return counts["ready"] + counts["delayed"] + counts["leased"]


def test_every_timer_is_completed_once_and_none_early(
    schedulers: list[RunningServer], tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    one, two = schedulers
    clients = [one.client(), two.client()]
    with (
        instance(one, ran) as killed,
        instance(two, ran) as frozen,
        instance(one, ran),
        endpoint() as refusing,
    ):
        refusing.status = 403
        body = {"address": refusing.address, "task_types": ["t"]}
        answer = clients[1].post("/api/v1/apps/shop/instances", json=body)
        assert answer.status_code == 201, answer.text
        for n in range(TIMERS):
            submit(schedulers[n % 2], n)
        eventually(lambda: len(lines(ran)) > 10)
        killed.send_signal(signal.SIGKILL)
        eventually(lambda: len(lines(ran)) > 30)
        frozen.send_signal(signal.SIGSTOP)
        eventually(lambda: open_timers(one) == 0)
        assert refusing.posted, "it was asked"
        totals = one.api(QUEUE).get().json()["totals"]
        assert totals["completed"] == TIMERS
        assert {one.api(QUEUE).look(f"timer-{n}")["state"] for n in range(TIMERS)} == {"done"}
    called = lines(ran)
    assert {id for id, *_ in called} == {f"timer-{n}" for n in range(TIMERS)}
    assert all(int(now) >= int(due) for _, _, due, now in called), "none is early"
    tokens = [token for _, token, *_ in called]
    assert len(set(tokens)) == len(tokens), "no attempt was made twice"
