"""Applications of other projects on the command line: there if the setting names them, and only
then.
"""

import sys
from pathlib import Path

from tests.architecture.sources import ROOT
from tests.cli.command import Command
from tests.programs import run
from towpath.apps import BUILT_IN
from towpath.console.exits import FAILED, OK, USAGE

GREETINGS = "tests.applications.greetings:APPLICATION"
NAMED = {"TOWPATH_APPLICATIONS": GREETINGS, "PYTHONPATH": str(ROOT)}


class TestTheCommandLine:
    def test_has_the_noun_of_an_application(self, towpath: Command) -> None:
        assert "Greetings: greet." in towpath("--help", **NAMED).out
        assert towpath("greetings", "greet", "ann", **NAMED).out == "ann\n"
        ran = towpath("greetings", "greet", "nobody", **NAMED)
        assert (ran.code, ran.out) == (5, "")
        assert "nobody_there" in ran.err

    def test_shows_the_settings_of_an_application(self, towpath: Command) -> None:
        told = {row["setting"]: row for row in towpath("config", "--json", **NAMED).objects}
        assert told["greetings.word"]["value"] == "hello"
        assert told["greetings.word"]["about"] == "What is said before the name."
        ran = towpath("config", TOWPATH_GREETINGS__WROD="hi", **NAMED)
        assert ran.code == USAGE
        assert "TOWPATH_GREETINGS__WORD" in ran.err

    def test_shows_no_settings_of_an_application_that_is_not_named(self, towpath: Command) -> None:
        assert "greetings" not in towpath("config").out
        assert towpath("config", TOWPATH_GREETINGS__WORD="hi").code == USAGE

    def test_has_nothing_of_an_application_that_is_installed_but_not_named(
        self, towpath: Command
    ) -> None:
        installed = {"PYTHONPATH": str(ROOT)}
        assert "Greetings" not in towpath("--help", **installed).out
        assert towpath("greetings", "greet", "ann", **installed).code == 2

    def test_finds_an_application_in_the_file_that_is_named(
        self, towpath: Command, tmp_path: Path
    ) -> None:
        (tmp_path / "own.toml").write_text(f'applications = ["{GREETINGS}"]\n')
        installed = {"PYTHONPATH": str(ROOT)}
        ran = towpath("--config", "own.toml", "greetings", "greet", "eve", **installed)
        assert (ran.code, ran.out) == (0, "eve\n"), ran.err

    def test_lets_doctor_list_an_application(self, towpath: Command) -> None:
        known = ", ".join([*BUILT_IN, "greetings"])
        assert _told_by_doctor(towpath)[0] == ("ok", known)

    def test_lets_doctor_run_the_probe_of_an_application(
        self, towpath: Command, tmp_path: Path
    ) -> None:
        assert [verdict for verdict, _ in _told_by_doctor(towpath)] == ["ok", "ok"]
        database = f"sqlite:///{tmp_path}/ledger.db"
        assert towpath("migrate", "--database", database).code == 0
        probed = _told_by_doctor(towpath, DATABASE_URL=database)
        assert [verdict for verdict, found in probed[1:] if "greetings" in found] == ["ok"]
        told = _told_by_doctor(
            towpath, DATABASE_URL=database, TOWPATH_GREETINGS__WORD="no", code=FAILED
        )
        assert ("bad", "greetings: nobody_there: nobody likes that word") in told


def _told_by_doctor(towpath: Command, *, code: int = OK, **env: str) -> list[tuple[str, str]]:
    ran = towpath("doctor", "--json", **NAMED | env)
    assert ran.code == code, ran.err
    return [(row["verdict"], row["found"]) for row in ran.objects if row["check"] == "applications"]


def test_an_application_with_the_name_of_a_command_is_refused(towpath: Command) -> None:
    place = "tests.applications.misfits:COMMAND_TAKEN"
    ran = towpath("config", "--json", **NAMED | {"TOWPATH_APPLICATIONS": place})
    assert (ran.code, ran.refusal["refused"]) == (USAGE, "application_invalid")
    assert "explain" in ran.refusal["message"]


def test_help_is_shown_despite_an_invalid_application(towpath: Command) -> None:
    ran = towpath("--help", TOWPATH_APPLICATIONS="no.such.module:APPLICATION")
    assert ran.code == 0
    assert "application_invalid" in ran.err
    assert "reviews " in ran.out


BAD = {"TOWPATH_APPLICATIONS": "no.such.module:APPLICATION"}


class TestAnInvalidApplication:
    def test_is_a_warning_for_commands_that_need_none(self, towpath: Command) -> None:
        towpath("submit", "mails", "1", **BAD)
        ran = towpath("queues", "--over", "0", "--json", TOWPATH_PINGS__WORD="hi", **BAD)
        assert ran.code == 0
        assert [row["queue"] for row in ran.objects] == ["mails"]
        [warning] = [line for line in ran.err.splitlines() if "application_invalid" in line]
        assert warning.startswith("warning  ")
        assert "no.such.module:APPLICATION" in warning

    def test_is_refused_by_commands_that_need_it(self, towpath: Command) -> None:
        for words in (("config",), ("migrate",), ("secret", "outbox"), ("serve",)):
            ran = towpath(*words, DATABASE_URL="sqlite:///ledger.db", **BAD)
            assert (ran.code, ran.out) == (USAGE, ""), words
            assert "refused  application_invalid" in ran.err

    def test_is_bad_for_doctor(self, towpath: Command) -> None:
        ran = towpath("doctor", "--json", **BAD)
        assert ran.code == FAILED
        [told] = [row for row in ran.objects if row["check"] == "applications"]
        assert told["verdict"] == "bad"
        assert "no.such.module:APPLICATION" in told["found"]


def test_a_built_in_application_may_be_named_too(towpath: Command) -> None:
    ran = towpath("--help", TOWPATH_APPLICATIONS="towpath.apps.reviews:APPLICATION")
    assert (ran.code, ran.err) == (0, "")


def test_invalid_options_of_an_application_are_refused(towpath: Command) -> None:
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


def test_a_server_does_not_start_with_an_invalid_application(towpath: Command) -> None:
    ran = towpath("up", "--json", TOWPATH_APPLICATIONS="no.such.module:APPLICATION")
    assert ran.code == USAGE
    assert "no.such.module:APPLICATION" in ran.err
    assert "application_invalid" in ran.err
    assert not (towpath.directory / "towpath-data").exists()
