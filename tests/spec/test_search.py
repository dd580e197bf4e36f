"""Searching dead jobs by their reasons: the newest 10,000, page by page."""

import pytest

from tests.spec.jobs_in_states import LEASE, REVIEWS
from towpath.clock import ManualClock, milliseconds
from towpath.engine import inspect
from towpath.engine.engine import Engine
from towpath.engine.inspect import SearchStep
from towpath.errors import InvalidName, InvalidOption


async def bury(engine: Engine, clock: ManualClock, *reasons: str) -> None:
    """Makes jobs 0, 1, 2, … dead, each for its reason, one after the other."""
    for n, reason in enumerate(reasons):
        await engine.submit(REVIEWS, b"", id=str(n))
        [lease] = await engine.claim(REVIEWS, worker="anna", lease=LEASE)
        await engine.bury(lease, reason)
        clock.advance(milliseconds(1))


def ids(found: SearchStep) -> list[str]:
    return [job.id for job in found.jobs]


async def test_a_search_finds_the_text_in_any_case_newest_first(
    engine: Engine, clock: ManualClock
) -> None:
    await bury(engine, clock, "Disk is full", "timeout", "the DISK (a%b.c) broke", "x")
    found = await engine.inspect.search_dead(REVIEWS, "disk")
    assert (ids(found), found.looked) == (["2", "0"], 4)
    assert ids(await engine.inspect.search_dead(REVIEWS, "(A%B.")) == ["2"]
    assert ids(await engine.inspect.search_dead(REVIEWS, "nothing")) == []


async def test_a_search_continues_where_it_stopped_and_ends(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "_SEARCHED_AT_ONCE", 2)
    monkeypatch.setattr(inspect, "SEARCHED_MOST", 4)
    await bury(engine, clock, *(f"no disk {n}" for n in range(6)))
    first = await engine.inspect.search_dead(REVIEWS, "disk")
    assert (ids(first), first.looked, first.is_over) == (["5", "4"], 2, False)
    second = await engine.inspect.search_dead(REVIEWS, "disk", looked=first.looked)
    assert (ids(second), second.looked, second.is_over) == (["3", "2"], 4, True)
    assert ids(await engine.inspect.search_dead(REVIEWS, "disk", looked=4)) == []


async def test_a_search_ends_where_there_are_no_more_jobs(
    engine: Engine, clock: ManualClock
) -> None:
    await bury(engine, clock, "no disk")
    found = await engine.inspect.search_dead(REVIEWS, "disk")
    assert (await engine.inspect.search_dead(REVIEWS, "disk", looked=found.looked)).is_over


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\nb"])
async def test_a_search_refuses_an_invalid_text(engine: Engine, bad: str) -> None:
    with pytest.raises(InvalidName):
        await engine.inspect.search_dead(REVIEWS, bad)
    with pytest.raises(InvalidOption):
        await engine.inspect.search_dead(REVIEWS, "x", looked=-1)
