"""A shop that submits jobs in its own transactions."""

from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy import table as table_of

from towpath.app.submitting import AppHandler
from towpath.ledger.ledger import Ledger

Sell = AppHandler[int, int, Any]
ORDERS = "CREATE TABLE orders (number INTEGER PRIMARY KEY)"


def named(url: str, *, blocking: bool = False) -> str:
    """The same database with the URL that a user of SQLAlchemy writes."""
    kind, rest = url.split("://", 1)
    if kind == "sqlite":
        return f"sqlite{'' if blocking else '+aiosqlite'}://{rest}"
    return f"{kind}+{'psycopg' if blocking else 'asyncpg'}://{rest}"


async def order(session: Any, number: int) -> None:
    await session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})


async def rows(ledger: Ledger, table: str = "towpath_jobs") -> int:
    query = select(func.count()).select_from(table_of(table))
    return await ledger.read(lambda connection: connection.scalar(query) or 0)
