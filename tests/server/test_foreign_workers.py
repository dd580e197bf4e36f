"""Workers in other languages, which only need HTTP: the examples are run."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.programs import Bounded
from tests.server.serving import Api, RunningServer, serve, serving
from tests.waiting import HANGS, eventually
from towpath.embedded import EmbeddedServer

EXAMPLES = ROOT / "examples"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@contextmanager
def working(running: RunningServer, api: Api, *command: str) -> Generator[None]:
    """Runs the example on the queue; after SIGTERM it finishes its job, and then ends."""
    _, key = running.make_key("work", queues=(api.queue,))
    worker = Bounded[str](
        [*command, api.queue],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ADDRESS": running.address, "TOWPATH_API_KEY": key},
    )
    try:
        yield
    finally:
        worker.terminate()
        api.submit({"to": "last"}, id="last")
        _, errors = worker.communicate(timeout=HANGS)
        assert (worker.returncode, errors) == (0, "")
        assert api.look("last")["state"] in ("done", "ready")


def done(api: Api, *ids: str) -> bool:
    return all(api.look(id)["state"] == "done" for id in ids)


@needs_node
def test_a_worker_in_javascript_completes_jobs(running: RunningServer, api: Api) -> None:
    names = {"a": "ann", "b/c": "bob", "ü d": "eve"}
    for id, name in names.items():
        api.submit({"to": name}, id=id)
    with working(running, api, "node", str(EXAMPLES / "worker.mjs")):
        eventually(lambda: done(api, *names))
        api.submit({"to": "later"}, id="later")
        eventually(lambda: done(api, "later"))
    assert [api.look(id)["result"] for id in names] == ["hello ann", "hello bob", "hello eve"]


@needs_node
def test_a_worker_in_javascript_reports_a_failure(running: RunningServer, api: Api) -> None:
    api.submit(None, id="a", max_attempts=1)
    with working(running, api, "node", str(EXAMPLES / "worker.mjs")):
        eventually(lambda: api.look("a")["state"] == "dead")
    assert "TypeError" in api.look("a")["reason"]


@needs_node
def test_a_worker_in_javascript_outlives_the_server(tmp_path: Path, server: EmbeddedServer) -> None:
    """The server restarts: the worker repeats its calls until it answers."""
    with serve(tmp_path, server.url) as first:
        address, key, database = first.address, first.key, first.database
        _, port = first.host_and_port
        worker = Bounded[str](
            ["node", str(EXAMPLES / "worker.mjs"), "mails"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ADDRESS": address, "TOWPATH_API_KEY": key},
        )
        first.api("mails").submit({"to": "ann"}, id="a")
        eventually(lambda: done(first.api("mails"), "a"))
    words = ("serve", "--url", server.url, "--database", database)
    with serving(*words, database=database, log=tmp_path / "second", port=port) as second:
        second.own_key = key
        second.api("mails").submit({"to": "bob"}, id="b")
        eventually(lambda: done(second.api("mails"), "b"))
        worker.terminate()
        _, errors = worker.communicate(timeout=HANGS)
        assert (worker.returncode, errors) == (0, "")


@needs_curl
def test_a_worker_in_shell_completes_jobs(running: RunningServer, api: Api) -> None:
    payloads = {"a": "hello", "b/c": None, "ü d": {"to": 'é "quoted"'}}
    for id, payload in payloads.items():
        api.submit(payload, id=id)
    with working(running, api, "sh", str(EXAMPLES / "worker.sh")):
        eventually(lambda: done(api, *payloads))
    assert [api.look(id)["result"] for id in payloads] == [8, 5, 28]


@pytest.mark.parametrize("name", ["worker.mjs", "worker.sh"])
def test_the_example_workers_are_short(name: str) -> None:
    lines = Path(EXAMPLES / name).read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.startswith(("//", "#"))]
    assert len(code) <= 30
