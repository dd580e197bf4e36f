"""Leases of sinks, in the database: for each sink, only the courier with its lease sends.

Leases go by the database's clock. No row stays locked during a send, because a sink may hang.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Text, bindparam, or_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from towpath.ledger.database.schema import couriers, now_ms

_sink, _me = bindparam("of_sink", type_=Text), bindparam("me", type_=Text)
_lease = {"holder": _me, "expires_at": now_ms() + bindparam("lease_ms", type_=BigInteger)}
_free = or_(couriers.c.holder == _me, couriers.c.expires_at <= now_ms())
_held = update(couriers).where(couriers.c.sink == _sink, _free).values(_lease)
_first = {
    kind.dialect.name: kind.insert(couriers).values(sink=_sink, **_lease).on_conflict_do_nothing()
    for kind in (postgresql, sqlite)
}


def take_lease(connection: Connection, sink: str, holder: str, lease_ms: int) -> bool:
    """Take or renew the lease of *sink* for *lease_ms* from now. False = another courier has it."""
    mine = {"of_sink": sink, "me": holder, "lease_ms": lease_ms}
    first = _first[connection.dialect.name]
    return any(connection.execute(statement, mine).rowcount for statement in (_held, first))


def give_up_lease(connection: Connection, sink: str, holder: str) -> None:
    """End the lease, so that another courier need not wait. No effect if the lease was lost."""
    mine = couriers.c.sink == sink, couriers.c.holder == holder
    connection.execute(update(couriers).where(*mine).values(expires_at=0))
