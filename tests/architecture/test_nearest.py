"""The tests that `make check` chooses for a change."""

import pytest

from tests.architecture.sources import ROOT, TESTS
from tests.nearest import FOLDERS, MOST, nearest


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ("src/towpath/ledger/records/relay.py", "tests/ledger/test_relay.py"),
        ("src/towpath/apps/messages/queue.py", "tests/apps/messages/test_queue.py"),
        ("src/towpath/app/app.py", "tests/worker/test_handlers.py"),
        ("tests/cli/test_keys.py", "tests/cli/test_keys.py"),
    ],
)
def test_a_change_is_near_to_tests_that_import_it(changed: str, chosen: str) -> None:
    assert chosen in nearest([changed])


def test_changed_tests_come_first_and_there_are_never_many() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("src/towpath/**/*.py")]
    found = nearest([*files, "tests/worker/test_types.py"])
    assert (found[0], len(found)) == ("tests/worker/test_types.py", MOST)


@pytest.mark.parametrize(
    "changed",
    ["README.md", "src/towpath/errors.py", "tests/faults/test_clocks.py", "tests/gone.py"],
)
def test_what_is_near_to_nothing_or_takes_long_adds_no_tests(changed: str) -> None:
    assert nearest([changed]) == []


def test_the_folders_are_there() -> None:
    assert all((TESTS / folder).is_dir() for folder in FOLDERS.values())
