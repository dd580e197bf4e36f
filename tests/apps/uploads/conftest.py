"""Records of uploads on an engine with a manual clock."""

import pytest

from towpath.apps.uploads.options import UploadsOptions
from towpath.apps.uploads.records import Records
from towpath.engine.engine import Engine


@pytest.fixture
def records(engine: Engine) -> Records:
    return Records(lambda: engine, lambda: engine, UploadsOptions())
