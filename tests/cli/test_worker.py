"""`towpath worker`: finding the app, running it, ending in an orderly way."""

import json
import re
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.waiting import HANGS
from towpath import Engine, Towpath, seconds
from towpath.cli.running import find_app
from towpath.console.exits import AppNotFound
from towpath.embedded import EmbeddedServer
from towpath.engine.model import job_ref
from towpath.ledger.ledger import Ledger

APP = """
from towpath import Towpath, seconds
from towpath.engine.channel import Limits

app = Towpath({url!r}, limits=Limits(answer=seconds(2), give_up=seconds(2)))

@app.handler("mails")
async def mail(to: str) -> str:
    return f"sent to {{to}}"

@app.handler("reports", weight=2)
def report(name: str) -> None:
    raise ValueError("no such report")
"""


@pytest.fixture
def towpath(server: EmbeddedServer, tmp_path: Path) -> Command:
    """The command in a directory with an app. No variable names Redis: the app does."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(APP.format(url=server.url))
    command = Command(server.url, tmp_path)
    del command.env["TOWPATH_URL"]
    return command


class TestRunning:
    async def test_a_drain_runs_the_ready_jobs_and_ends(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b'"anna"', id="m-1")
        await engine.submit("reports", b'"weekly"', id="r-1")
        ran = towpath("worker", "shop.jobs:app", "--drain", "--queues", "mails", "--json")
        assert (ran.code, ran.out) == (0, "")
        assert (await engine.inspect.job(job_ref("mails", "m-1"))).result == b'"sent to anna"'
        assert (await engine.inspect.counts("reports")).ready == 1
        events = [json.loads(line)["event"] for line in ran.err.splitlines()]
        assert (events[0], events[-1]) == ("queue.configured", "worker.stopped")

    def test_a_worker_runs_until_a_signal_ends_it(self, towpath: Command) -> None:
        """Metrics are served meanwhile; the test asks for a free port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with towpath.start(
            "worker", "shop.jobs:app", "--name", "w-1", "--metrics-port", str(port),
            "--log-format", "human",
        ) as process:  # fmt: skip
            assert process.stderr is not None
            opened = process.stderr.readline()
            assert "metrics.served" in opened
            assert f"127.0.0.1:{port}" in opened
            while "worker.started" not in (line := process.stderr.readline()):
                assert line
            assert "w-1" in line
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert b"towpath_" in answer.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
            assert "worker.stopped" in process.stderr.read()

    def test_a_check_shows_what_a_worker_would_serve(self, towpath: Command) -> None:
        told = towpath("worker", "shop.jobs:app", "--check", "--json").object
        assert told["queues"] == {"mails": 1, "reports": 2}
        assert told["server"].startswith("valkey 9.")


SINKS = """
from towpath import Towpath
from towpath.ledger.ledger import Ledger

app = Towpath({url!r}, ledger=Ledger({database!r}, sinks=["redis"]))

@app.handler("invoices", name="send", record=True)
async def send(order: int) -> str:
    return f"invoice {{order}} sent"
"""


class TestAWorkerWithSinks:
    """A worker whose app has a ledger with sinks, as the page about events shows it."""

    async def test_runs_records_and_stores_their_ends_in_the_outbox(
        self, towpath: Command, server: EmbeddedServer, tmp_path: Path
    ) -> None:
        database = f"sqlite:///{tmp_path}/towpath.db"
        module = tmp_path / "shop" / "sinks.py"
        module.write_text(SINKS.format(url=server.url, database=database))
        async with Ledger(database) as ledger:
            await ledger.migrate()
        with towpath.start("worker", "shop.sinks:app", "--json") as process:
            async with Towpath(server.url, ledger=database) as app:
                send = app.handler("invoices", name="send", record=True)(_send)
                ticket = await send.submit(7, id="i-7")
                assert await ticket.result(within=seconds(HANGS)) == "invoice 7 sent"
                assert (await app.ledger.outbox.counts())["redis"].pending == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0

    def test_opens_and_closes_the_ledger_for_a_check(
        self, towpath: Command, server: EmbeddedServer, tmp_path: Path
    ) -> None:
        database = f"sqlite:///{tmp_path}/towpath.db"
        module = tmp_path / "shop" / "sinks.py"
        module.write_text(SINKS.format(url=server.url, database=database))
        assert towpath("migrate", "--database", database).code == 0
        told = towpath("worker", "shop.sinks:app", "--check", "--json").object
        assert told["queues"] == {"invoices": 1}


async def _send(order: int) -> str:
    raise AssertionError(order)


TYPO = """from towpath import Towpath
app = Towpath()
@app.handler("mails", {option})
async def send() -> None: ...
"""


class TestRefusals:
    def test_an_unknown_app_is_refused_with_the_nearest_name(self, towpath: Command) -> None:
        ran = towpath("worker", "shop.jobs:ap", "--json")
        assert (ran.code, ran.refusal["refused"]) == (5, "app_not_found")
        assert set(re.findall(r"\bapp?\b", ran.refusal["message"])) == {"ap", "app"}

    @pytest.mark.parametrize(
        ("app", "facts"),
        [
            ("jobs", {"jobs", "MODULE:APP"}),
            (":app", {":app", "MODULE:APP"}),
            ("nowhere.jobs:app", {"nowhere"}),
            ("needing:app", {"needing", "nowhere_at_all"}),
            ("appless:app", {"appless:app"}),
            ("appless:other", {"appless:other", "str"}),
        ],
    )
    def test_every_wrong_path_of_an_app_is_refused(
        self, app: str, facts: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        (tmp_path / "needing.py").write_text("import nowhere_at_all")
        (tmp_path / "appless.py").write_text("other = 'no app'")
        with pytest.raises(AppNotFound) as refusal:
            find_app(app)
        words = {word.rstrip(":") for word in re.findall(r"[\w.:]+", str(refusal.value))}
        assert facts <= words

    @pytest.mark.parametrize(
        ("text", "code", "refused", "line"),
        [
            ("raise LookupError('not today')", 1, "app_failed", 1),
            ("import os\n\nos.environ['NOT_THERE_AT_ALL']", 1, "app_failed", 3),
            ("import json\njson.loads('{')", 1, "app_failed", 2),
            ("def broken(:\n    pass", 1, "app_failed", 1),
            (TYPO.format(option="max_atempts=3"), 1, "app_failed", 3),
            (TYPO.format(option="max_attempts=-3"), 2, "invalid_option", 3),
        ],
    )
    def test_an_error_in_the_users_module_names_its_line(
        self, towpath: Command, text: str, code: int, refused: str, line: int
    ) -> None:
        (towpath.directory / "broken.py").write_text(text + "\n")
        ran = towpath("worker", "broken:app", "--json")
        assert (ran.code, ran.refusal["refused"]) == (code, refused)
        assert f"broken.py, line {line}:" in ran.refusal["message"]

    def test_a_queue_without_a_handler_is_refused(self, towpath: Command) -> None:
        ran = towpath("worker", "shop.jobs:app", "--queues", "mials")
        assert ran.code == 2
        assert "mials" in ran.err

    def test_a_port_that_is_taken_is_refused(self, towpath: Command) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            ran = towpath("worker", "shop.jobs:app", "--metrics-port", port)
        assert ran.code == 2
        assert "worker.metrics_port" in ran.err

    def test_a_variable_does_not_change_the_redis_that_an_app_names(self, towpath: Command) -> None:
        """Who submits uses the app's own address: only the flag sends its workers elsewhere."""
        words = ("worker", "shop.jobs:app", "--check", "--queues", "reports=5,mails")
        stayed = towpath(*words, REDIS_URL="redis://127.0.0.1:1")
        assert "mails (weight 1), reports (weight 5)" in stayed.out
        moved = towpath(*words, "--url", "unix:///nowhere/at/all", "--json")
        assert moved.code == 75
