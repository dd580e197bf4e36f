"""Blocking calls and `await` in cells of Jupyter and IPython."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.blocking.test_waiting_here import reads
from tests.waiting import HANGS, eventually
from towpath.embedded import EmbeddedServer

_APP = """
from towpath import QueueOptions, Towpath, hours, seconds
from towpath.errors import JobUnfinished
app = Towpath({url!r})
@app.handler("mails")
async def send(address: str) -> None: ...
app.blocking.run(lambda engine: engine.queues.configure("mails", QueueOptions(keep=hours(1))))
"""
_RESULT = """
job.cancel()
try:
    job.result(within=seconds(60))
except JobUnfinished as error:
    print(error.state)
"""


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gives Jupyter and IPython folders of their own, since they leave files."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


class Notebook:
    """A kernel that runs cells."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    def run(self, cell: str) -> str:
        """The output of a cell, which must not fail."""
        written: list[str] = []

        def collect(message: dict[str, Any]) -> None:
            content = message["content"]
            written.append(content.get("text") or "\n".join(content.get("traceback", ())))

        reply = self.client.execute_interactive(cell, timeout=HANGS, output_hook=collect)
        assert reply["content"]["status"] == "ok", "".join(written)
        return "".join(written)


@pytest.fixture
def notebook(server: EmbeddedServer) -> Generator[Notebook]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        notebook = Notebook(manager, client)
        notebook.run(_APP.format(url=server.url))
        yield notebook
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


class TestANotebook:
    def test_submits_and_waits_in_a_cell(self, notebook: Notebook) -> None:
        written = notebook.run('job = send.blocking.submit("anna")\nprint(job.state())')
        assert written == "ready\n"
        assert notebook.run(_RESULT) == "cancelled\n"

    def test_awaits_and_blocks_in_the_same_cell(self, notebook: Notebook) -> None:
        notebook.run("await app.__aenter__()")
        mixed = 'job = await send.submit("anna")\nprint(await job.state(), "and", end=" ")\n'
        mixed += "print(send.blocking.job(job.id).state())"
        assert notebook.run(mixed) == "ready and ready\n"
        awaited = _RESULT.replace("job.", "await job.")
        assert notebook.run(awaited) == "cancelled\n"
        notebook.run("await app.__aexit__(None, None, None)")

    def test_blocks_with_autoawait_and_without_it(self, notebook: Notebook) -> None:
        for line in ("%autoawait False", "%autoawait True"):
            notebook.run(line)
            assert notebook.run('print(send.blocking.submit("anna").state())') == "ready\n"

    def test_goes_on_after_an_interrupted_wait(
        self, notebook: Notebook, server: EmbeddedServer
    ) -> None:
        notebook.run('job = send.blocking.submit("anna")')
        notebook.client.execute("job.result(within=seconds(600))")
        eventually(lambda: reads(server) == 1)
        notebook.manager.interrupt_kernel()
        reply = notebook.client.get_shell_msg(timeout=HANGS)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert notebook.run(_RESULT) == "cancelled\n"


def test_ipython_accepts_blocking_calls_and_await(server: EmbeddedServer) -> None:
    """The lines are typed one by one."""
    lines = [
        *_APP.format(url=server.url).strip().splitlines(),
        "",
        'job = send.blocking.submit("anna")',
        'print("blocking", job.state())',
        "await app.__aenter__()",
        'print("await", await (await send.submit("ben")).state())',
        'print("both", (await send.submit("carla")).id == send.blocking.submit("dora").id)',
        "%autoawait False",
        'print("alone", send.blocking.submit("emil").state())',
        "%autoawait True",
        "await app.__aexit__(None, None, None)",
        "exit",
    ]
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--no-tip"]
    done = subprocess.run(
        command,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    for written in ("blocking ready", "await ready", "both False", "alone ready"):
        assert f"{written}\n" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
