"""The reference pages agree with the code; `make docs` writes them."""

import re
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest

from docs.reference.commands import commands_page, settings_page
from docs.reference.http import http_page
from docs.reference.make import errors_page, log_events_page, metrics_page, options_page
from docs.reference.tables import database_page
from docs.reference.tree import PAGE, architecture_page
from tests.architecture.sources import ROOT, SOURCE, python_files
from tests.examples.test_commands import known_options
from towpath.apps import BUILT_IN
from towpath.apps.application import applications
from towpath.cli.config import groups
from towpath.errors import TowpathError
from towpath.settings import Core, leaves
from towpath.settings.sources import Leaf
from towpath.telemetry.measures import CATALOGUE, MetricKind

REFERENCE = ROOT / "docs" / "reference"
LEAVES = list(leaves(groups(Core())))


def errors_of(kind: type[TowpathError]) -> Iterator[type[TowpathError]]:
    """The subclasses of *kind* in the loaded modules."""
    for below in kind.__subclasses__():
        yield below
        yield from errors_of(below)


def test_every_error_is_on_its_page() -> None:
    """The modules are found by their files, so no list has to be kept."""
    for path in python_files(SOURCE):
        names = path.relative_to(SOURCE.parent).with_suffix("").parts
        if names[-1] != "__main__":
            import_module(".".join(names).removesuffix(".__init__"))
    ours = [
        error
        for error in errors_of(TowpathError)
        if error.__module__.startswith("towpath.") and not error.__name__.startswith("_")
    ]
    page = (REFERENCE / "errors.md").read_text()
    assert len(ours) > 90
    missing = [error for error in ours if f"| `{error.__name__}` | `{error.code}` |" not in page]
    assert not missing


@pytest.mark.parametrize("leaf", LEAVES, ids=[leaf.name for leaf in LEAVES])
def test_every_setting_and_every_secret_is_on_its_page(leaf: Leaf) -> None:
    page, secrets = (REFERENCE / "settings.md").read_text().split("## Secrets")
    assert f"| `{leaf.name}` |" in page
    assert all(f"`{variable}`" in page for variable in leaf.variables)
    named = [f"`{variable}_FILE`" in secrets for variable in leaf.variables]
    assert all(named) if leaf.field.info.secret else not any(named)


@pytest.mark.parametrize("name", [*BUILT_IN, *(name[:-1] for name in BUILT_IN)])
def test_the_generator_of_pages_names_no_application(name: str) -> None:
    for path in REFERENCE.glob("*.py"):
        names = {
            part for word in re.findall(r"[\w.]+", path.read_text()) for part in word.split(".")
        }
        assert name not in names - {"message"}, path


PAGES = [errors_page, options_page, log_events_page, metrics_page, settings_page, commands_page]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_a_page_shows_no_private_names_and_no_terms_of_python(page: Callable[[], str]) -> None:
    text = page()
    assert re.findall(r"`_[A-Z]\w*`|timedelta\(|\b\d+ days, |\b\d+:\d\d:\d\d`", text) == []


def test_a_counter_has_the_name_that_prometheus_sees() -> None:
    own = [spec for application in applications() for spec in application.metrics]
    counters = [spec for spec in (*CATALOGUE, *own) if spec.kind is MetricKind.COUNTER]
    assert [spec.name for spec in counters if not spec.name.endswith("_total")] == []


def test_every_spelling_of_an_option_is_on_the_page_of_the_command_line() -> None:
    page = commands_page()
    told = {name for cell in re.findall(r"^\| `(-[^`]*)` \|", page, re.MULTILINE)
            for name in re.findall(r"(?<!\w)--?[a-z][a-z-]*", cell)}  # fmt: skip
    options = {name for name in known_options() if name.startswith("-")}
    of_typer = {"--help", "-h", "--install-completion", "--show-completion", "--version"}
    assert options - told - of_typer == set()


def test_the_page_of_errors_is_up_to_date() -> None:
    assert (REFERENCE / "errors.md").read_text() == errors_page()


def test_the_page_of_queue_options_is_up_to_date() -> None:
    assert (REFERENCE / "queue-options.md").read_text() == options_page()


def test_the_page_of_log_events_is_up_to_date() -> None:
    assert (REFERENCE / "log-events.md").read_text() == log_events_page()


def test_the_page_of_metrics_is_up_to_date() -> None:
    assert (REFERENCE / "metrics.md").read_text() == metrics_page()


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    assert (REFERENCE / "cli.md").read_text() == commands_page()


def test_the_page_of_settings_is_up_to_date() -> None:
    assert (REFERENCE / "settings.md").read_text() == settings_page()


def test_the_page_of_the_database_is_up_to_date() -> None:
    assert (REFERENCE / "database.md").read_text() == database_page()


def test_the_page_of_the_http_api_is_up_to_date() -> None:
    assert (REFERENCE / "http-api.md").read_text() == http_page()


def test_the_map_of_rooms_in_the_architecture_is_up_to_date() -> None:
    assert PAGE.read_text() == architecture_page()
