"""The migration steps of issues make the tables that the code declares."""

from towpath.apps.issues.tables import TABLES
from towpath.testing import drift


async def test_the_migration_steps_make_the_declared_tables() -> None:
    assert await drift(TABLES) == []
