"""Planted faults in the code of history: each changes the answers of a short story."""

import pytest

from tests.model.mutants import Mutant
from tests.spec.jobs_in_states import LEASE, REVIEWS
from towpath.clock import ManualClock, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine

FAULTS = [
    Mutant(
        "a row has the totals of its own call",
        ("close", "read_history()", "write_meta()\n  read_history()"),
    ),
    Mutant("a row for each call", ("history_rows", "since < MINUTE_MS", "since < 0")),
    Mutant(
        "no row at all",
        (
            "history_rows",
            "for _, command in ipairs(history_writes)",
            "for _, command in ipairs({})",
        ),
    ),
    Mutant("the ready are not counted", ("history_rows", "{ QUEUE, RETRY,", "{ DONE, RETRY,")),
    Mutant(
        "the dead are counted as leased",
        ("history_rows", "WAITING, LEASES, DEAD }", "WAITING, DEAD, LEASES }"),
    ),
    Mutant(
        "a plain submit begins no minute",
        ("plain_submit", " and now - meta.minute < MINUTE_MS", ""),
    ),
    Mutant(
        "a plain complete begins no minute",
        ("plain_complete", "now - meta.minute < MINUTE_MS and ", ""),
    ),
]


async def story(server: EmbeddedServer, fault: Mutant | None) -> list[object]:
    server.ask("FLUSHALL")
    clock, told = ManualClock(), list[object]()
    scripts = fault.scripts() if fault else None
    async with Engine(server.url, clock=clock, scripts=scripts) as engine:
        for _ in range(4):
            await engine.submit(REVIEWS, b"")
            clock.advance(minutes(1))
            await engine.submit(REVIEWS, b"")
            held = await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=2)
            await engine.complete(held[0])
            await engine.bury(held[1], "broken")
            [last] = await engine.claim(REVIEWS, worker="anna", lease=LEASE) or [None]
            assert last is None
        await engine.submit(REVIEWS, b"")
        [lease] = await engine.claim(REVIEWS, worker="anna", lease=minutes(9))
        clock.advance(minutes(1))
        await engine.complete(lease)
        told.append(await engine.inspect.history(REVIEWS))
        told.append(server.ask("HVALS", f"{{{REVIEWS}}}:history"))
    return told


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_fault_in_the_history_is_found(server: EmbeddedServer, fault: Mutant) -> None:
    whole = await story(server, None)
    assert await story(server, None) == whole
    assert await story(server, fault) != whole
