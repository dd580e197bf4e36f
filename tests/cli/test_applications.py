"""Applications of others on the command line: there if the setting names them, and only then."""

import sys
from pathlib import Path

from tests.architecture.sources import ROOT
from tests.cli.command import Command
from tests.warm import run
from towpath.console.exits import USAGE

GREETINGS = "tests.applications.greetings:APPLICATION"
NAMED = {"TOWPATH_APPLICATIONS": GREETINGS, "PYTHONPATH": str(ROOT)}


class TestTheCommandLine:
    def test_has_its_noun(self, towpath: Command) -> None:
        assert "Greetings: greet." in towpath("--help", **NAMED).out
        assert towpath("greetings", "greet", "ann", **NAMED).out == "ann\n"
        ran = towpath("greetings", "greet", "nobody", **NAMED)
        assert (ran.code, ran.out) == (5, "")
        assert "nobody_there" in ran.err

    def test_shows_its_settings(self, towpath: Command) -> None:
        told = {it["setting"]: it for it in towpath("config", "--json", **NAMED).objects}
        assert told["greetings.word"]["value"] == "hello"
        assert told["greetings.word"]["about"] == "What is said before the name."
        ran = towpath("config", TOWPATH_GREETINGS__WROD="hi", **NAMED)
        assert ran.code == USAGE
        assert "did you mean TOWPATH_GREETINGS__WORD?" in ran.err

    def test_shows_no_settings_of_one_that_is_not_named(self, towpath: Command) -> None:
        assert "greetings" not in towpath("config").out
        assert towpath("config", TOWPATH_GREETINGS__WORD="hi").code == USAGE

    def test_has_nothing_of_one_that_is_installed_but_not_named(self, towpath: Command) -> None:
        installed = {"PYTHONPATH": str(ROOT)}
        assert "Greetings" not in towpath("--help", **installed).out
        assert towpath("greetings", "greet", "ann", **installed).code == 2

    def test_finds_it_in_the_file_that_is_named(self, towpath: Command, tmp_path: Path) -> None:
        (tmp_path / "own.toml").write_text(f'applications = ["{GREETINGS}"]\n')
        installed = {"PYTHONPATH": str(ROOT)}
        ran = towpath("--config", "own.toml", "greetings", "greet", "eve", **installed)
        assert (ran.code, ran.out) == (0, "eve\n"), ran.err

    def test_lets_doctor_tell_of_it(self, towpath: Command) -> None:
        found = {it["check"]: it for it in towpath("doctor", "--json", **NAMED).objects}
        assert found["applications"]["found"] == "messages, reviews, greetings"


def test_a_name_that_a_command_has_is_refused(towpath: Command) -> None:
    place = "tests.applications.misfits:COMMAND_TAKEN"
    ran = towpath("config", **NAMED | {"TOWPATH_APPLICATIONS": place})
    assert ran.code == USAGE
    assert "application explain: a command has this name" in ran.err


def test_a_bad_one_is_told_and_help_is_there_all_the_same(towpath: Command) -> None:
    ran = towpath("--help", TOWPATH_APPLICATIONS="no.such.module:APPLICATION")
    assert ran.code == 0
    assert "application_invalid" in ran.err
    assert "reviews " in ran.out


def test_one_that_is_built_in_may_be_named_too(towpath: Command) -> None:
    ran = towpath("--help", TOWPATH_APPLICATIONS="towpath.apps.reviews:APPLICATION")
    assert (ran.code, ran.err) == (0, "")


def test_options_that_do_not_fit_are_refused(towpath: Command) -> None:
    ran = towpath("up", "--json", TOWPATH_GREETINGS__TIMES="many", **NAMED)
    assert ran.code == USAGE
    assert "greetings.times" in ran.err


WITHOUT_EXTRAS = """
import sys
for library in ("alembic", "fastapi", "httpcore", "httpx", "sqlalchemy", "starlette", "uvicorn"):
    sys.modules[library] = None
from towpath.cli.main import main
for words in (["queues"], ["config", "--json"], ["reviews", "--help"], ["--help"]):
    sys.argv = ["towpath", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""


def test_the_command_line_needs_no_extra_for_what_applications_declare(towpath: Command) -> None:
    ran = run([sys.executable, "-c", WITHOUT_EXTRAS], env=towpath.env, cwd=towpath.directory)
    assert ran.code == 0, ran.err
    assert '"reviews.github_host"' in ran.out
    assert "Reviews: submit, list, show, cancel, retry." in ran.out


def test_a_server_does_not_start_with_one(towpath: Command) -> None:
    ran = towpath("up", "--json", TOWPATH_APPLICATIONS="no.such.module:APPLICATION")
    assert ran.code == USAGE
    assert "no.such.module:APPLICATION" in ran.err
    assert "application_invalid" in ran.err
    assert not (towpath.directory / "towpath-data").exists()
