"""A process that stands still in a transaction does not keep its rows for ever."""

from sqlalchemy import text

from towpath.ledger.ledger import Ledger


async def test_postgresql_ends_a_transaction_in_which_nobody_says_anything(server_url: str) -> None:
    """A frozen process can't give up its locks itself: the server takes them."""
    async with Ledger(server_url) as ledger:
        await ledger.migrate()
        asked = text("SHOW idle_in_transaction_session_timeout")
        assert await ledger.read(lambda it: it.scalar(asked)) == "10s"
