"""Settings for all tests, and the fixtures that they share."""

import gc
import signal
from pathlib import Path

import pytest

from tests.amounts import slow

LEDGER = Path(__file__).parent / "ledger"
pytest_plugins = ["tests.fixtures"]

# A shell starts background processes with SIGINT and SIGQUIT ignored, and nohup ignores SIGHUP.
# Children inherit that, so programs of the tests would never get these signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Collecting the tests makes a million objects that stay: searching them for garbage is useless.
gc.disable()


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from traversing all tests again and again during the run."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves PostgreSQL to `make test-all` in tests that are not about the database itself."""
    for item in items:
        chosen = getattr(item, "callspec", None)
        is_postgres = chosen is not None and chosen.params.get("url") == "postgresql"
        if is_postgres and LEDGER not in item.path.parents:
            item.add_marker(slow)
