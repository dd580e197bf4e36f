"""Fixtures that the fault tests share."""

import pytest

from tests.faults.probed_scripts import probed
from towpath.engine.script import Scripts


@pytest.fixture(scope="module")
def observed() -> Scripts:
    """The shipped scripts with every command reported."""
    return probed()
