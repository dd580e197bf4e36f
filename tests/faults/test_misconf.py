"""A Redis that cannot write its disk refuses every write (MISCONF) until it can."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.redis_facts import count_error_replies
from tests.waiting import eventually, eventually_in_loop
from towpath.clock import milliseconds, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask_fields
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import ServerUnreachable

QUEUE = "misconf"
PROTECTED = {"enable-protected-configs": "yes", "save": "3600 100000"}


def can_write(server: EmbeddedServer, folder: Path) -> None:
    folder.mkdir()
    server.ask("CONFIG", "SET", "dir", str(folder))
    save(server, "ok")


def cannot_write(server: EmbeddedServer, folder: Path) -> None:
    folder.rmdir()
    save(server, "err")


def save(server: EmbeddedServer, outcome: str) -> None:
    server.ask("BGSAVE")

    def so() -> bool:
        said = ask_fields(server.address, "INFO", "persistence")
        return (said["rdb_bgsave_in_progress"], said["rdb_last_bgsave_status"]) == ("0", outcome)

    eventually(so)


class TestAFullDiskOfRedis:
    async def test_keeps_callers_waiting_and_costs_nothing(self, tmp_path: Path) -> None:
        with EmbeddedServer(options=PROTECTED) as server:
            folder = tmp_path / "data"
            folder.mkdir()
            server.ask("CONFIG", "SET", "dir", str(folder))
            async with Engine(server.url) as engine:
                await engine.submit(QUEUE, b"x")
                cannot_write(server, folder)
                submit = asyncio.create_task(engine.submit(QUEUE, b"y"))
                claim = asyncio.create_task(
                    engine.claim(QUEUE, worker="w", lease=minutes(1), count=2)
                )
                await eventually_in_loop(lambda: count_error_replies(server, "MISCONF") >= 2)
                can_write(server, folder)
                await submit
                leases = await claim
                counts = await engine.inspect.counts(QUEUE)
        assert (counts.totals["submitted"], counts.leased) == (2, len(leases))

    async def test_that_stays_full_is_not_reported_as_a_defect_of_a_script(
        self, tmp_path: Path
    ) -> None:
        limits = Limits(answer=milliseconds(200), give_up=seconds(0.5))
        with EmbeddedServer(options=PROTECTED) as server:
            folder = tmp_path / "data"
            folder.mkdir()
            server.ask("CONFIG", "SET", "dir", str(folder))
            async with Engine(server.url, limits=limits) as engine:
                await engine.submit(QUEUE, b"x")
                cannot_write(server, folder)
                with pytest.raises(ServerUnreachable, match="MISCONF"):
                    await engine.submit(QUEUE, b"y")
            can_write(server, folder)  # a Redis that cannot save does not end either
