"""Schedules: instants by cron and by interval, clock changes, missed firings."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.amounts import amount
from towpath.clock import ZERO, days, hours, instant, milliseconds, minutes, seconds
from towpath.engine.schedule import (
    MOST_AT_ONCE,
    PROMPT,
    Cron,
    Due,
    Every,
    Missed,
    Schedule,
    due,
    parse_about,
    schedule,
)
from towpath.errors import InvalidOption

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def berlin(month: int, day: int, hour: int, minute: int = 0, *, fold: int = 0) -> datetime:
    """That local time in Berlin in 2026; fold = 1 for the second of two equal times in autumn."""
    return datetime(2026, month, day, hour, minute, tzinfo=BERLIN, fold=fold).astimezone(UTC)


_STEPS = st.integers(1, 4)


def field_of(least: int, most: int) -> st.SearchStrategy[str]:
    """A field of days, months or weekdays: `*`, `*/2`, `3`, `3-9`, `3-9/2`, and lists of these."""
    ends = st.tuples(st.integers(least, most), st.integers(least, most)).map(sorted)
    ranges = ends.map(lambda pair: f"{pair[0]}-{pair[1]}")
    one = st.one_of(
        st.just("*"),
        st.builds("*/{}".format, _STEPS),
        st.integers(least, most).map(str),
        ranges,
        st.builds("{}/{}".format, ranges, _STEPS),
    )
    return st.one_of(one, st.builds("{},{}".format, one, one))


def values_of(field: str, least: int, most: int) -> set[int]:
    """The values of a field, read as crontab(5) describes."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        bounds = (least, most) if span == "*" else (int(low), int(high or low))
        found |= set(range(bounds[0], bounds[1] + 1, int(step or 1)))
    return found


def vixie_days(day: str, month: str, weekday: str, after: datetime, until: datetime) -> list[Any]:
    """The days of Vixie cron: those of either field, unless one of them begins with a star."""
    both = day.startswith("*") or weekday.startswith("*")
    weekdays = {number % 7 for number in values_of(weekday, 0, 7)}
    found: list[datetime] = []
    at = after + days(1)
    while at <= until:
        of_month = at.day in values_of(day, 1, 31)
        of_week = at.isoweekday() % 7 in weekdays
        fits = (of_month and of_week) if both else (of_month or of_week)
        if fits and at.month in values_of(month, 1, 12):
            found.append(at)
        at += days(1)
    return found


def first(when: Schedule, n: int, *, after: datetime) -> list[datetime]:
    return list(islice(when.after(after), n))


class TestACronExpression:
    def test_is_read_in_its_time_zone(self) -> None:
        found = first(Cron("0 3 * * *", tz="Europe/Berlin"), 2, after=NEW_YEAR)
        assert found == [berlin(1, 1, 3), berlin(1, 2, 3)]

    def test_is_read_in_utc_if_none_is_named(self) -> None:
        assert first(Cron("0 3 * * *"), 1, after=NEW_YEAR) == [NEW_YEAR + hours(3)]

    def test_fires_after_the_last_firing_not_at_it(self) -> None:
        assert first(Cron("0 * * * *"), 1, after=NEW_YEAR) == [NEW_YEAR + hours(1)]
        just_before = NEW_YEAR - milliseconds(1)
        assert first(Cron("0 * * * *"), 1, after=just_before) == [NEW_YEAR]

    def test_may_begin_with_a_field_of_seconds(self) -> None:
        found = first(Cron("*/20 * * * * *"), 3, after=NEW_YEAR)
        assert found == [NEW_YEAR + seconds(n) for n in (20, 40, 60)]

    @pytest.mark.parametrize(
        ("expression", "fired"),
        [
            ("0 0 13 * FRI", [2, 9, 13, 16, 23, 30]),  # days of either field
            ("0 0 13 * *", [13]),
            ("0 0 * * FRI", [2, 9, 16, 23, 30]),
            ("0 0 */10 * FRI", []),  # days of both fields: one of them begins with a star
            ("0 0 1-7 * */7", [4]),
            ("0 0 5-5/3 * *", [5]),
        ],
    )
    def test_combines_days_and_weekdays_as_vixie_cron_does(
        self, expression: str, fired: list[int]
    ) -> None:
        just_before = NEW_YEAR - minutes(1)
        found = first(Cron(expression), 6, after=just_before)
        assert [at.day for at in found if at.month == 1 and at.year == 2026] == fired

    @settings(max_examples=amount(150, thoroughly=3000), deadline=None)
    @given(field_of(1, 31), field_of(1, 12), field_of(0, 7))
    def test_fires_on_the_same_days_as_vixie_cron(self, day: str, month: str, weekday: str) -> None:
        until = NEW_YEAR + days(500)
        wanted = vixie_days(day, month, weekday, NEW_YEAR, until)
        try:
            found = Cron(f"0 0 {day} {month} {weekday}").after(NEW_YEAR)
        except InvalidOption:
            assert wanted == []
        else:
            assert list(takewhile(lambda at: at <= until, found)) == wanted

    def test_may_name_the_last_day_or_the_second_tuesday(self) -> None:
        assert first(Cron("0 0 L * *"), 1, after=NEW_YEAR) == [datetime(2026, 1, 31, tzinfo=UTC)]
        tuesday = datetime(2026, 1, 13, tzinfo=UTC)
        assert first(Cron("0 0 * * TUE#2"), 1, after=NEW_YEAR) == [tuesday]

    def test_has_its_expression_and_zone_as_text(self) -> None:
        assert str(Cron(" 0  3 * * *", tz="Europe/Berlin")) == "0 3 * * * Europe/Berlin"

    @pytest.mark.parametrize(
        "text",
        [
            "", "*", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "0 0 0 * *",
            "0 0 * 13 *", "0 0 * * 8", "*/0 * * * *", "5-1 * * * *", "@daily", "a b c d e",
            "9" * 5000 + " * * * *", "0 0 31 2 *", None, 7, b"* * * * *",
        ],
        ids=lambda text: repr(text)[:20],
    )  # fmt: skip
    def test_that_is_invalid_is_refused(self, text: Any) -> None:
        with pytest.raises(InvalidOption) as refusal:
            Cron(text)
        assert refusal.value.option == "cron"

    def test_that_never_fires_is_refused(self) -> None:
        """A first or twenty-first of the month is never its last Monday."""
        with pytest.raises(InvalidOption, match="50") as refusal:
            Cron("* * */20 * 1L")
        assert refusal.value.option == "cron"

    @pytest.mark.parametrize(
        "tz", ["", "Berlin", "Europe", "../passwd", "Europe/Berlin\n", "\x00", None, 1, ["UTC"]]
    )
    def test_in_an_unknown_time_zone_is_refused(self, tz: Any) -> None:
        with pytest.raises(InvalidOption) as refusal:
            Cron("0 3 * * *", tz=tz)
        assert refusal.value.option == "tz"


class TestCronWhenClocksGoForward:
    """Berlin, 29 March 2026: after 1:59 comes 3:00."""

    def test_a_daily_schedule_at_a_skipped_time_fires_right_after_the_gap(self) -> None:
        found = first(Cron("30 2 * * *", tz="Europe/Berlin"), 3, after=berlin(3, 28, 0))
        assert found == [berlin(3, 28, 2, 30), berlin(3, 29, 3), berlin(3, 30, 2, 30)]
        assert found[1] == datetime(2026, 3, 29, 1, tzinfo=UTC)

    def test_a_schedule_with_two_times_in_the_gap_fires_once(self) -> None:
        found = first(Cron("0,30 2 * * *", tz="Europe/Berlin"), 2, after=berlin(3, 29, 0))
        assert found == [berlin(3, 29, 3), berlin(3, 30, 2)]

    def test_an_hourly_schedule_fires_every_hour(self) -> None:
        found = first(Cron("0 * * * *", tz="Europe/Berlin"), 3, after=berlin(3, 29, 0))
        assert found == [berlin(3, 29, 1), berlin(3, 29, 3), berlin(3, 29, 4)]
        assert found[1] - found[0] == hours(1)

    def test_a_schedule_within_the_skipped_hour_alone_does_not_fire(self) -> None:
        found = first(Cron("*/30 2 * * *", tz="Europe/Berlin"), 1, after=berlin(3, 29, 0))
        assert found == [berlin(3, 30, 2)]


class TestCronWhenClocksGoBack:
    """Berlin, 25 October 2026: 2:00 to 2:59 comes twice."""

    def test_a_daily_schedule_at_a_repeated_time_fires_the_first_time(self) -> None:
        found = first(Cron("30 2 * * *", tz="Europe/Berlin"), 2, after=berlin(10, 25, 0))
        assert found == [berlin(10, 25, 2, 30, fold=0), berlin(10, 26, 2, 30)]

    def test_a_schedule_first_seen_between_the_two_times_fires_the_next_day(self) -> None:
        """It does not fire for an instant that has passed."""
        seen = berlin(10, 25, 2, 15, fold=1)
        found = first(Cron("30 2 * * *", tz="Europe/Berlin"), 1, after=seen)
        assert found == [berlin(10, 26, 2, 30)]

    def test_an_hourly_schedule_fires_in_both_hours(self) -> None:
        found = first(Cron("0 * * * *", tz="Europe/Berlin"), 3, after=berlin(10, 25, 1))
        assert found == [berlin(10, 25, 2), berlin(10, 25, 2, fold=1), berlin(10, 25, 3)]
        assert [b - a for a, b in pairwise(found)] == [hours(1), hours(1)]


class TestAnInterval:
    def test_is_counted_from_1970_so_that_all_workers_agree(self) -> None:
        found = first(Every(minutes(20)), 3, after=NEW_YEAR + minutes(7))
        assert found == [NEW_YEAR + minutes(n) for n in (20, 40, 60)]

    def test_may_be_counted_from_an_anchor(self) -> None:
        anchor = datetime(2030, 1, 1, 0, 7, tzinfo=BERLIN)
        found = first(Every(hours(1), anchor=anchor), 2, after=NEW_YEAR)
        assert found == [NEW_YEAR + minutes(7), NEW_YEAR + minutes(67)]

    def test_is_elapsed_time_across_clock_changes(self) -> None:
        daily = Every(days(1), anchor=berlin(3, 28, 12))
        assert first(daily, 1, after=berlin(3, 28, 12)) == [berlin(3, 29, 13)]

    def test_has_its_length_and_anchor_as_text(self) -> None:
        assert str(Every(minutes(5))) == "every 0:05:00"
        anchored = Every(minutes(5), anchor=NEW_YEAR)
        assert str(anchored) == "every 0:05:00 from 2026-01-01T00:00:00+00:00"

    @pytest.mark.parametrize(
        "interval", [ZERO, seconds(0.999), -seconds(5), days(40_000), -5, "5", None,
                     timedelta(seconds=1, microseconds=1)]
    )  # fmt: skip
    def test_lasts_at_least_a_second(self, interval: Any) -> None:
        with pytest.raises(InvalidOption) as refusal:
            Every(interval)
        assert refusal.value.option == "every"

    @pytest.mark.parametrize("anchor", [datetime(2026, 1, 1), "now", None, 0])  # noqa: DTZ001 -- the very mistake
    def test_has_an_anchor_with_a_time_zone(self, anchor: Any) -> None:
        with pytest.raises(InvalidOption) as refusal:
            Every(minutes(5), anchor=anchor)
        assert refusal.value.option == "anchor"


class TestScheduleOf:
    def test_text_is_a_cron_expression(self) -> None:
        assert schedule("0 3 * * *") == Cron("0 3 * * *")
        assert schedule("0 3 * * *", tz="Europe/Berlin") == Cron("0 3 * * *", "Europe/Berlin")
        assert schedule(Every(minutes(5))) == Every(minutes(5))

    def test_two_time_zones_is_refused(self) -> None:
        with pytest.raises(InvalidOption) as refusal:
            schedule(Cron("0 3 * * *"), tz="Europe/Berlin")
        assert refusal.value.option == "tz"

    @pytest.mark.parametrize("when", [minutes(5), 300, None])
    def test_any_other_type_is_refused(self, when: Any) -> None:
        with pytest.raises(InvalidOption) as refusal:
            schedule(when)
        assert refusal.value.option == "when"


class TestDueFirings:
    HOURLY = Every(hours(1))

    @pytest.mark.parametrize("missed", Missed)
    def test_are_none_before_the_time(self, missed: Missed) -> None:
        now = NEW_YEAR + hours(1) - milliseconds(1)
        assert due(self.HOURLY, NEW_YEAR, now, missed) == Due((), NEW_YEAR, 0)

    @pytest.mark.parametrize("missed", Missed)
    def test_are_one_at_its_time_and_shortly_after(self, missed: Missed) -> None:
        at = NEW_YEAR + hours(1)
        for late in (ZERO, PROMPT):
            assert due(self.HOURLY, NEW_YEAR, at + late, missed) == Due((at,), at, 0)

    @pytest.mark.parametrize(
        ("missed", "made"), [(Missed.SKIP, []), (Missed.ONCE, [3]), (Missed.ALL, [1, 2, 3])]
    )
    def test_follow_the_policy_after_an_absence(self, missed: Missed, made: list[int]) -> None:
        found = due(self.HOURLY, NEW_YEAR, NEW_YEAR + hours(3) + minutes(10), missed)
        instants = tuple(NEW_YEAR + hours(n) for n in made)
        assert found == Due(instants, NEW_YEAR + hours(3), 3)

    def test_include_the_latest_one_under_skip_if_it_is_on_time(self) -> None:
        """The policy skips missed firings; the firing of this minute was not missed."""
        found = due(self.HOURLY, NEW_YEAR, NEW_YEAR + hours(3), Missed.SKIP)
        assert found == Due((NEW_YEAR + hours(3),), NEW_YEAR + hours(3), 2)

    @pytest.mark.parametrize("absent", [MOST_AT_ONCE - 1, MOST_AT_ONCE, MOST_AT_ONCE + 1, 2500])
    @pytest.mark.parametrize("missed", Missed)
    def test_are_computed_in_bounded_rounds(self, missed: Missed, absent: int) -> None:
        """Bounded rounds give the same firings as one unbounded round."""
        last, now, made = NEW_YEAR, NEW_YEAR + hours(absent) + minutes(10), list[datetime]()
        for _ in range(absent // MOST_AT_ONCE + 1):
            found = due(self.HOURLY, last, now, missed)
            assert len(found.firings) <= MOST_AT_ONCE
            made, last = [*made, *found.firings], found.last
        assert due(self.HOURLY, last, now, missed) == Due((), last, 0)
        expected = {
            Missed.SKIP: [],
            Missed.ONCE: [NEW_YEAR + hours(absent)],
            Missed.ALL: [NEW_YEAR + hours(n) for n in range(1, absent + 1)],
        }
        assert made == expected[missed]

    def test_are_none_when_the_clock_was_set_back(self) -> None:
        assert due(self.HOURLY, NEW_YEAR, NEW_YEAR - days(1), Missed.ALL) == Due((), NEW_YEAR, 0)


EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "15 */2 * * *",
    "0 * * * *",
]
ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Casablanca"]


@settings(max_examples=150, deadline=None)
@given(
    when=st.builds(Cron, st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES)),
    day=st.sampled_from([(2, 14), (3, 8), (3, 22), (3, 29), (4, 5), (10, 4), (10, 25), (11, 1)]),
    offset=st.integers(0, 2 * 86_400),
    within=st.floats(0, 0.999),
)
def test_the_next_firing_is_the_same_from_any_instant_before_it(
    when: Cron, day: tuple[int, int], offset: int, within: float
) -> None:
    """This holds for every starting instant between two firings, on days with clock changes."""
    start = datetime(2026, *day, tzinfo=UTC) - days(1) + seconds(offset)
    one, two, three = first(when, 3, after=start)
    assert start < one < two < three
    between = one + milliseconds(int((two - one) / milliseconds(1) * within))
    assert first(when, 2, after=between) == [two, three]


def test_firings_are_in_utc() -> None:
    assert {
        firing.tzinfo for firing in first(Cron("0 3 * * *", "Asia/Tokyo"), 2, after=instant(0))
    } == {UTC}
    tokyo = datetime(2026, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))
    assert {firing.tzinfo for firing in first(Every(hours(1), tokyo), 2, after=instant(0))} == {UTC}


@pytest.mark.parametrize(
    "when",
    [
        Cron("0 3 * * *", "Europe/Berlin"),
        Cron("*/5  * * * * *"),
        Every(minutes(5)),
        Every(seconds(1.5), datetime(2030, 1, 1, 7, tzinfo=UTC)),
        Every(hours(49)),
    ],
    ids=str,
)
def test_a_schedule_is_parsed_from_its_own_text(when: Schedule) -> None:
    """So the next firing can be computed without the app."""
    again = parse_about(str(when))
    assert again is not None
    now = datetime(2031, 5, 6, tzinfo=UTC)
    assert list(islice(again.after(now), 5)) == list(islice(when.after(now), 5))


@pytest.mark.parametrize("words", ["", "now and then", "every 0:00:00", "0 3 * * * Mars/Base"])
def test_text_that_is_no_schedule_is_parsed_as_none(words: str) -> None:
    assert parse_about(words) is None
