"""Durations as people write and read them."""

import pytest

from towpath import Duration, days, hours, milliseconds, minutes, seconds
from towpath.clock import format_duration, parse_duration, readable
from towpath.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", milliseconds(250)),
        ("10s", seconds(10)),
        ("10m", minutes(10)),
        ("1h30m", minutes(90)),
        ("1.5h", minutes(90)),
        ("7d", days(7)),
        ("1w", days(7)),
        ("2d3h4m5s6ms", days(2) + hours(3) + minutes(4) + seconds(5) + milliseconds(6)),
        ("0", seconds(0)),
        ("0s", seconds(0)),
    ],
)
def test_durations_are_parsed(text: str, duration: Duration) -> None:
    assert parse_duration("delay", text) == duration
    assert parse_duration("delay", format_duration(duration)) == duration


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "10 s", "-1s", "1x", "1.s", "\uff11s", "1e3s", "200000d", "9" * 15 + "w"],
)
def test_durations_that_are_invalid_or_lack_a_unit_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidOption, match="delay = "):
        parse_duration("delay", text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (milliseconds(12), "12 ms"),
        (seconds(1.84), "1.8 s"),
        (minutes(3.5), "3.5 min"),
        (hours(47), "47.0 h"),
        (days(9), "9.0 d"),
    ],
)
def test_durations_are_shown_in_a_short_form(duration: Duration, text: str) -> None:
    assert readable(duration) == text
