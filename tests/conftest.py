"""What holds for all tests, and the fixtures that they share."""

import gc
import signal
from pathlib import Path

import pytest

from tests.amounts import slow

LEDGER = Path(__file__).parent / "ledger"
pytest_plugins = ["tests.fixtures"]

# What a shell starts in the background ignores SIGINT and SIGQUIT, and under nohup SIGHUP; so do
# its children, and the programs of the tests would never hear the signals they are sent.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Collecting the tests makes a million objects that stay: there is no garbage to look for.
gc.disable()


def pytest_collection_finish() -> None:
    """Keep the collector of garbage from looking at all tests again and again while they run."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave PostgreSQL to `make test-all` where a test is not about the database itself."""
    for item in items:
        chosen = getattr(item, "callspec", None)
        is_postgres = chosen is not None and chosen.params.get("url") == "postgresql"
        if is_postgres and LEDGER not in item.path.parents:
            item.add_marker(slow)
