"""The rows of issues: made by their steps as the code says."""

from towpath.apps.issues.tables import TABLES
from towpath.testing import drift


async def test_the_steps_make_the_tables_that_the_code_says() -> None:
    assert await drift(TABLES) == []
