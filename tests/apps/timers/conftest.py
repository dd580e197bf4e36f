"""The service of timers on an engine with a manual clock."""

import pytest

from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.engine.engine import Engine


@pytest.fixture
def timers(engine: Engine) -> TimerService:
    return TimerService(lambda: engine, TimersOptions())
