"""Schedulers, workers and instances of an app for timers: processes that are killed, frozen and
replaced.
"""

import os
import random
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tests.apps.timers.service_mode import SECRET
from tests.faults.timer_program import APP, APP_TYPE, PLUGIN_TYPE
from tests.programs import ROOT, Program
from tests.server.serving import begin, first_line
from towpath.apps.timers.model import PREFIX

QUEUES = {PLUGIN_TYPE: PREFIX + PLUGIN_TYPE, APP_TYPE: f"{PREFIX}{APP}--{APP_TYPE}"}
SETTINGS = {
    "TOWPATH_API_KEY": secrets.token_hex(32),
    "TOWPATH_CALLS__SECRETS": SECRET,
    "TOWPATH_TIMERS__ALLOW": "127.0.0.0/8",
    "TOWPATH_TIMERS__CALL_WITHIN": "5s",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


class RestartedProcess:
    """A process that is started again whenever it was killed."""

    def __init__(self, name: str, start: Callable[[], Program[str]]) -> None:
        self.name, self._start = name, start
        self.process = start()

    def kill(self) -> None:
        """Kills the process and starts another one."""
        self.end()
        self.process = self._start()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class TimerDeployment:
    """Two processes of each kind, on one Redis."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self.ports = [free_port() for _ in range(2)]
        self.processes: list[RestartedProcess] = []

    def start(self) -> None:
        for at, port in enumerate(self.ports):
            self._add(f"scheduler {at}", lambda at=at, port=port: self._scheduler(at, port))
        for at, port in enumerate(self.ports):
            self._add(f"worker {at}", lambda: self._program("plugin", self._url))
            where = f"http://127.0.0.1:{free_port()}/", f"http://127.0.0.1:{port}"
            self._add(f"instance {at}", lambda where=where: self._program("instance", *where))

    def one(self, chance: random.Random, kind: str) -> RestartedProcess:
        return chance.choice(
            [process for process in self.processes if process.name.startswith(kind)]
        )

    @property
    def journal(self) -> Path:
        return self._folder / "journal"

    def _add(self, name: str, start: Callable[[], Program[str]]) -> None:
        self.processes.append(RestartedProcess(name, start))

    def _scheduler(self, at: int, port: int) -> Program[str]:
        log = self._folder / f"scheduler-{at}.log"
        database = f"sqlite:///{self._folder}/ledger-{at}.db"
        words = ("serve", "--url", self._url, "--database", database)
        process = begin(*words, log=log, env=SETTINGS, port=port)
        first_line(process, log)
        return process

    def _program(self, *words: str) -> Program[str]:
        role, *more = words
        program = [sys.executable, "-m", "tests.faults.timer_program", role, str(self.journal)]
        env = {**os.environ, **SETTINGS}
        with (self._folder / "programs.log").open("a") as log:
            return Program([*program, *more], cwd=ROOT, env=env, text=True, stderr=log)


@contextmanager
def timer_deployment(url: str, folder: Path) -> Generator[TimerDeployment]:
    deployment = TimerDeployment(url, folder)
    try:
        deployment.start()
        yield deployment
    finally:
        for process in deployment.processes:
            process.end()
