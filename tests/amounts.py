"""How much the suite does: `make test` a part of the repetitions, `make test-all` all of them.

`make test` leaves out tests marked `slow`: the same claim on another deployment, with another seed,
or with another planted fault. Tests that count their tries ask `amount`.
"""

import os

import pytest

EVERYTHING = os.environ.get("TESTS_ALL") == "1"
"""Set by the Makefile. It is not called `TOWPATH_…`: the command line refuses unknown settings."""
slow = pytest.mark.slow
deployments = pytest.mark.deployments


def amount(usually: int, *, thoroughly: int) -> int:
    """Returns *usually* in `make test`, *thoroughly* in `make test-all`."""
    return thoroughly if EVERYTHING else usually
