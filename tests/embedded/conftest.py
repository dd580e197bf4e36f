"""The newest and the oldest server program; tests of the package run with both."""

import pytest

from tests.servers import newest, oldest
from towpath.embedded import ServerBinary


@pytest.fixture(params=[newest, oldest], ids=["newest", "oldest"])
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    return request.param()
