"""What all commands share: help, usage, versions, pipes, interruptions, unexpected errors."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer.main

from tests.cli.command import Command
from tests.programs import COMMAND
from towpath import Engine, errors
from towpath.cli.main import app, nouns
from towpath.console import exits
from towpath.console.exits import AppNotFound, JobFailed, NotConfirmed
from towpath.engine.model import new_job


def verbs(command: object = None, above: str = "towpath") -> Iterator[tuple[str, object]]:
    """Every command with its words."""
    command = command or typer.main.get_command(app)
    yield above, command
    for name, below in nouns(command).items():
        yield from verbs(below, f"{above} {name}")


class TestHelp:
    def test_is_shown_quickly(self) -> None:
        """Neither the client library nor the metrics are loaded for it."""
        text = """
import sys
sys.argv = ["towpath", "--help"]
from towpath.cli.main import main
try:
    main()
finally:
    slow = {"redis", "prometheus_client", "pydantic", "rich"} & set(sys.modules)
    print("loaded:", slow)
"""
        command = [sys.executable, "-c", text]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.stdout.splitlines()[-1] == "loaded: set()", ran.stderr

    def test_lists_every_exit_code(self, towpath: Command) -> None:
        ran = towpath("--help")
        found = re.findall(r"^ +(\d+)  \S", ran.out, re.MULTILINE)
        assert [int(code) for code in found] == list(exits.MEANINGS)

    @pytest.mark.parametrize(("words", "command"), list(verbs()))
    def test_has_a_short_sentence_and_an_example_for_every_verb(
        self, words: str, command: object
    ) -> None:
        text = str(getattr(command, "help", ""))
        first = text.splitlines()[0]
        assert first.endswith(".")
        if getattr(command, "no_args_is_help", False) and getattr(command, "commands", {}):
            return  # a noun alone does nothing
        assert f"$ {words}" in text

    def test_lists_the_option_json_for_every_verb(self) -> None:
        for words, command in verbs():
            if getattr(command, "commands", {}) and words != "towpath queues":
                continue
            names = {name for option in getattr(command, "params", []) for name in option.opts}
            assert {"--json", "--url", "--timeout", "--config", "--debug"} <= names, words


class TestUsage:
    def test_that_is_wrong_exits_with_2_and_prints_nothing_on_stdout(
        self, towpath: Command
    ) -> None:
        for words in ([], ["frobnicate"], ["queues", "--frobnicate"], ["jobs", "show"]):
            ran = towpath(*words)
            assert (ran.code, ran.out) == (2, ""), words
            assert ran.err

    def test_with_an_unknown_setting_exits_with_2(self, towpath: Command) -> None:
        ran = towpath("queues", TOWPATH_TIMEUOT="1s")
        assert ran.code == 2
        assert "TOWPATH_TIMEOUT" in ran.err

    def test_is_completed_by_the_shell(self, towpath: Command) -> None:
        ran = towpath(_TOWPATH_COMPLETE="complete_bash", COMP_WORDS="towpath que", COMP_CWORD="1")
        assert ran.out.split() == ["queues"]


def test_the_versions_are_shown(towpath: Command) -> None:
    told = towpath("version", "--json").object
    assert list(told) == ["towpath", "python", "hiredis"]
    assert towpath("--version").out.split()[:2] == ["towpath", told["towpath"]]


def test_settings_are_shown_with_their_origins_and_without_secrets(towpath: Command) -> None:
    canary = "canary-8f2e"
    (towpath.directory / "shop.toml").write_text('[worker]\ngrace = "1m"\n')
    ran = towpath(
        "config", "--json", "--timeout", "2s", "--config", "shop.toml", TOWPATH_URL=f"redis://anna:{canary}@h",
        TOWPATH_PASSWORD=canary,
    )  # fmt: skip
    told = {row["setting"]: row for row in ran.objects}
    assert told["url"]["value"] == "redis://h:6379/0"
    assert (told["url"]["origin"], told["url"]["by"]) == ("variable", "TOWPATH_URL")
    assert told["password"]["value"] == "(hidden)"
    assert (told["timeout"]["value"], told["timeout"]["origin"]) == ("2s", "flag")
    assert (told["worker.grace"]["value"], told["worker.grace"]["by"]) == ("1m", "shop.toml")
    assert all(row["about"] for row in ran.objects)
    assert canary not in ran.out + ran.err


BROKEN_APP = """from towpath import Towpath
class BrokenApp(Towpath):
    @property
    def handlers(self): raise LookupError('not today')
app = BrokenApp()
"""


class TestEnding:
    async def test_a_closed_output_ends_the_command_quietly(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit_many("mails", [new_job(b"1") for _ in range(2000)])
        with towpath.start("jobs", "list", "--all", "--json") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait() == exits.NOBODY_READS

    def test_an_interruption_ends_the_command_quietly(self, towpath: Command) -> None:
        with towpath.start("submit", "mails", "1", "--wait", "1h") as process:
            assert process.stderr is not None
            process.stderr.readline()  # the job is submitted, and waited for
            process.send_signal(signal.SIGINT)
            assert process.wait() == exits.INTERRUPTED
            assert "Traceback" not in process.stderr.read()

    def test_an_unexpected_error_is_one_line_without_debug(self, towpath: Command) -> None:
        """Here an app breaks when the command uses it."""
        (towpath.directory / "broken.py").write_text(BROKEN_APP)
        ran = towpath("worker", "broken:app")
        assert ran.code == 1
        assert "defect: LookupError: not today (broken.py, line 4)" in ran.err
        [told] = (
            json.loads(line) for line in towpath("--json", "worker", "broken:app").err.splitlines()
        )
        assert told["refused"] == "defect"
        command = [COMMAND, "worker", "broken:app", "--debug"]
        whole = subprocess.run(
            command,
            env=towpath.env,
            cwd=towpath.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" in whole.stderr


class TestExitCodes:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (errors.InvalidOption("a", 1, rule="x"), 2),
            (NotConfirmed("x"), 2),
            (errors.JobNotFound("x"), 5),
            (errors.QueueNotFound("x", []), 5),
            (AppNotFound("x"), 5),
            (errors.JobDone("x"), 4),
            (JobFailed("x", "dead"), 4),
            (errors.LaneNotParked("q", "l"), 4),
            (errors.QueueFull("q", 1), 75),
            (errors.StillOpen("x", 1), 75),
            (errors.MemoryFull("x"), 75),
            (errors.ServerUnreachable("x"), 75),
            (errors.EvictionUnsafe("allkeys-lru"), 1),
            (errors.ServerRefused("x"), 1),
        ],
    )
    def test_follow_from_the_kind_of_error(self, error: errors.TowpathError, code: int) -> None:
        assert exits.exit_code(error) == code
        assert code in exits.MEANINGS
