"""What the fault tests share: a seed that is printed, and a leak that is not ours."""

import gc
import os
import random
from collections.abc import Iterator

import pytest

SEED = "TOWPATH_TEST_SEED"


@pytest.fixture
def seed() -> int:
    """Where a random test begins. Printed, so that a failure can be repeated."""
    chosen = int(os.environ.get(SEED) or random.randrange(1_000_000))
    print(f"to repeat: {SEED}={chosen}")  # noqa: T201  shown by pytest when the test fails
    return chosen


@pytest.fixture
def nodes_may_leave() -> Iterator[None]:
    """For tests in which a cluster's nodes die or change hands.

    redis-py 8.1 drops a node that has left the layout without closing all its connections; they
    are closed by the garbage collector, which warns. It is called here, so that the warning comes
    in this test, which ignores it (`LEAKY`), and not in another.
    """
    yield
    gc.collect()


LEAKY = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
