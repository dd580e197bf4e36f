"""The reference pages say what the code says: `make docs` writes them."""

from docs.reference.make import errors_page, options_page
from tests.architecture.sources import ROOT

REFERENCE = ROOT / "docs" / "reference"


def test_the_page_of_errors_is_up_to_date() -> None:
    assert (REFERENCE / "errors.md").read_text() == errors_page()


def test_the_page_of_queue_options_is_up_to_date() -> None:
    assert (REFERENCE / "queue-options.md").read_text() == options_page()
