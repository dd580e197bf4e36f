"""Time: durations that are rounded up, instants with a time zone, and a clock that tests
advance.
"""

import asyncio
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.waiting import HANGS
from towpath.clock import (
    DurationLike,
    ManualClock,
    ServerClock,
    days,
    duration,
    duration_ms,
    hours,
    instant,
    instant_ms,
    milliseconds,
    minutes,
    seconds,
)
from towpath.errors import InvalidOption


class TestADuration:
    def test_has_its_unit_in_its_name(self) -> None:
        assert milliseconds(1500) == seconds(1.5)
        assert (minutes(2), hours(2), days(2)) == (seconds(120), minutes(120), hours(48))

    @pytest.mark.parametrize(
        ("duration", "ms"),
        [
            (timedelta(0), 0),
            (timedelta(microseconds=1), 1),
            (milliseconds(1), 1),
            (timedelta(milliseconds=1, microseconds=1), 2),
            (days(36_525), 36_525 * 86_400_000),
        ],
    )
    def test_is_rounded_up_to_milliseconds(self, duration: timedelta, ms: int) -> None:
        """Nothing happens before its time."""
        assert duration_ms("delay", duration) == ms

    @pytest.mark.parametrize("value", [timedelta(seconds=90), 90, 90.0, "90s", "1m30s", "1.5m"])
    def test_is_written_in_three_ways(self, value: DurationLike) -> None:
        """A timedelta, a number of seconds, or text with a unit."""
        assert duration("delay", value) == seconds(90)
        assert duration_ms("delay", value) == 90_000

    @pytest.mark.parametrize("nothing", [timedelta(0), 0, 0.0, "0", "0s"])
    def test_of_zero_is_allowed_where_it_makes_sense(self, nothing: DurationLike) -> None:
        assert duration("delay", nothing) == seconds(0)
        with pytest.raises(InvalidOption, match="1ms") as refusal:
            duration("lease", nothing, least=milliseconds(1))
        assert refusal.value.option == "lease"

    @pytest.mark.parametrize(
        "value",
        [
            *(None, True, b"5s", [5], "", "5", "-5s", "5 fortnights", "5 s", "s", "nan", "1e3s"),
            *(math.nan, math.inf, -math.inf, 1e300, 2**2000),
            *(-1, -0.001, -seconds(1), days(36_526), 36_526 * 86_400, "36526d"),
        ],
    )
    def test_that_is_invalid_is_refused_with_the_name_of_its_option(self, value: Any) -> None:
        for read in (duration, duration_ms):
            with pytest.raises(InvalidOption) as refusal:
                read("delay", value)
            assert refusal.value.option == "delay"

    def test_may_have_a_minimum(self) -> None:
        assert duration_ms("lease", milliseconds(1), least=milliseconds(1)) == 1
        with pytest.raises(InvalidOption):
            duration_ms("lease", timedelta(microseconds=999), least=milliseconds(1))


class TestAnInstant:
    def test_is_the_same_in_every_time_zone(self) -> None:
        noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
        tokyo = noon.astimezone(timezone(timedelta(hours=9)))
        assert instant_ms("due", noon) == instant_ms("due", tokyo)

    def test_survives_writing_and_reading(self) -> None:
        noon = datetime(2026, 7, 1, 12, 0, 0, 123_000, tzinfo=UTC)
        assert instant(instant_ms("due", noon)) == noon

    def test_is_rounded_up_to_milliseconds(self) -> None:
        just_after = datetime(2026, 7, 1, microsecond=1, tzinfo=UTC)
        assert instant(instant_ms("due", just_after)) == just_after.replace(microsecond=1000)

    def test_needs_a_time_zone(self) -> None:
        local = datetime(2026, 7, 1)  # noqa: DTZ001 -- the very mistake
        with pytest.raises(InvalidOption) as refusal:
            instant_ms("due", local)
        assert (refusal.value.option, refusal.value.value) == ("due", local)

    @pytest.mark.parametrize("year", [1969, 2170])
    def test_is_within_the_supported_years(self, year: int) -> None:
        with pytest.raises(InvalidOption):
            instant_ms("due", datetime(year, 12, 31, tzinfo=UTC))


class TestTheManualClock:
    def test_moves_only_when_it_is_advanced(self) -> None:
        clock = ManualClock(datetime(2026, 7, 1, tzinfo=UTC))
        assert clock.now == datetime(2026, 7, 1, tzinfo=UTC)
        clock.advance(hours(3))
        assert clock.now == datetime(2026, 7, 1, 3, tzinfo=UTC)
        assert clock.stamp() == str(instant_ms("now", clock.now))

    def test_is_advanced_by_durations_or_units(self) -> None:
        one, other = ManualClock(), ManualClock()
        one.advance(hours(3) + minutes(2))
        other.advance(hours=3, minutes=2)
        assert one.now == other.now

    def test_never_goes_back(self) -> None:
        with pytest.raises(InvalidOption):
            ManualClock().advance(-seconds(1))
        with pytest.raises(InvalidOption):
            ManualClock().advance(seconds=-1)

    async def test_wakes_sleepers_when_their_time_has_come(self) -> None:
        clock = ManualClock()
        pause = clock.sleep  # of this clock: no real time passes meanwhile
        sleeper = asyncio.create_task(pause(seconds(10)))
        await asyncio.sleep(0)
        clock.advance(seconds(9))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not sleeper.done()
        clock.advance(seconds(1))
        async with asyncio.timeout(HANGS):
            await sleeper


class TestTheClockOfRedis:
    def test_sends_no_time_with_a_call(self) -> None:
        assert ServerClock().stamp() == ""
