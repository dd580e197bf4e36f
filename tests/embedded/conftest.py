"""The newest and the oldest server: what holds for one must hold for the other."""

import pytest

from tests.servers import newest, oldest
from towpath.embedded import ServerBinary


@pytest.fixture(params=[newest, oldest], ids=["newest", "oldest"])
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    return request.param()
