"""Finds workers that keep their records in another database than this server."""

from __future__ import annotations

from collections.abc import Mapping

from towpath.clock import steady
from towpath.engine.engine import Engine
from towpath.engine.worker_registry import find_records_elsewhere
from towpath.errors import TowpathError
from towpath.ledger.ledger import Ledger
from towpath.telemetry.events import LEDGER_DIFFERS
from towpath.telemetry.logs import Log

_READ_EVERY = 2.0
"""Seconds for which a result is used again: readiness may be probed often."""


class RecordsElsewhere:
    """Compares the database of this server with those that live workers report."""

    def __init__(self, engine: Engine, ledger: Ledger, log: Log) -> None:
        self._engine, self._ledger, self._log = engine, ledger, log
        self._found: Mapping[str, list[str]] = {}
        self._read_at = -_READ_EVERY

    async def find(self) -> Mapping[str, list[str]]:
        """The queues whose workers use another database, with the names of these workers. At most
        two seconds old; the last result while Redis or the database is unreachable.
        """
        now = steady()
        if now - self._read_at < _READ_EVERY:
            return self._found
        self._read_at = now
        try:
            own = await self._ledger.identity()
            workers = await self._engine.workers.list() if own else []
        except TowpathError:  # `/readyz` reports the outage
            return self._found
        found = find_records_elsewhere(workers, own) if own else {}
        for queue in found.keys() - self._found.keys():
            self._log.emit(LEDGER_DIFFERS, queue=queue, reason=f"worker {found[queue][0]}")
        self._found = found
        return found
