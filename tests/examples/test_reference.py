"""The reference pages say what the code says: `make docs` writes them."""

from docs.reference.commands import commands_page, settings_page
from docs.reference.http import http_page
from docs.reference.make import errors_page, log_events_page, metrics_page, options_page
from docs.reference.tables import database_page
from tests.architecture.sources import ROOT

REFERENCE = ROOT / "docs" / "reference"


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
