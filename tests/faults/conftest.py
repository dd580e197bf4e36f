"""What the fault tests share: a seed that is printed."""

import os
import random

import pytest

SEED = "TOWPATH_TEST_SEED"


@pytest.fixture
def seed() -> int:
    """Where a random test begins. Printed, so that a failure can be repeated."""
    chosen = int(os.environ.get(SEED) or random.randrange(1_000_000))
    print(f"to repeat: {SEED}={chosen}")  # noqa: T201  shown by pytest when the test fails
    return chosen
