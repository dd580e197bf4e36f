"""When a timer is due, as people and programs write it. Invalid times are refused."""

from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any

import pytest

from towpath.apps.timers.model import When, when
from towpath.clock import minutes
from towpath.errors import InvalidOption

MS = 1794787200123
"""2026-11-16."""


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"delay": 30}, When(delay=30_000)),
        ({"delay": 0.0015}, When(delay=2)),
        ({"delay": 0}, When(delay=0)),
        ({"delay": "30m"}, When(delay=1_800_000)),
        ({"delay": minutes(30)}, When(delay=1_800_000)),
        ({"delay_time": MS}, When(due=MS)),
        ({"delay_time": MS * 1000}, When(due=MS)),
        ({"delay_time": MS * 1000 + 1}, When(due=MS + 1)),
        ({"delay_time": 10**12}, When(due=10**12)),
        ({"due": "2026-11-16T00:00:00.123Z"}, When(due=MS)),
        ({"due": "2026-11-16T02:00:00.123+02:00"}, When(due=MS)),
        ({"due": datetime(2026, 11, 16, tzinfo=UTC)}, When(due=1794787200000)),
    ],
)
def test_a_time_can_be_given_in_three_ways(given: dict[str, Any], meant: When) -> None:
    assert when(**given) == meant


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"delay": 1, "due": "2026-11-16T00:00:00Z"},
        {"delay": 1, "delay_time": MS},
        {"delay": -1},
        {"delay": -0.001},
        {"delay": "-5s"},
        {"delay": nan},
        {"delay": inf},
        {"delay": "NaN"},
        {"delay": "30"},
        {"delay": "soon"},
        {"delay": 1e18},
        {"delay": 10**400},
        {"delay": 4_000_000_000},
        {"delay": "200000d"},
        {"delay": True},
        {"delay": []},
        {"delay": timedelta(seconds=-1)},
        {"delay_time": 1794787200},
        {"delay_time": 1794787200123456789},
        {"delay_time": -MS},
        {"delay_time": 0},
        {"delay_time": 9_999_999_999_999},
        {"delay_time": 9_999_999_999_999_999},
        {"delay_time": float(MS)},
        {"delay_time": str(MS)},
        {"delay_time": nan},
        {"delay_time": True},
        {"due": "2026-11-16T00:00:00"},
        {"due": "tomorrow"},
        {"due": "9999-01-01T00:00:00Z"},
        {"due": "0001-01-01T00:00:00Z"},
        {"due": datetime(2026, 11, 16)},  # noqa: DTZ001 -- what is refused
        {"due": MS},
    ],
)
def test_an_impossible_time_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        when(**given)


@pytest.mark.parametrize("digits", [10, 19])
def test_a_delay_time_in_seconds_or_nanoseconds_is_refused(digits: int) -> None:
    """They must become neither `now` nor a time in thousands of years."""
    delay_time = int("1794787200123456789"[:digits])
    with pytest.raises(InvalidOption, match=rf"\b{digits}\b") as refused:
        when(delay_time=delay_time)
    assert (refused.value.option, refused.value.value) == ("delay_time", delay_time)


@pytest.mark.parametrize(
    "given", [{"due": "2030-01-31T08:00:00"}, {"due": datetime(3000, 1, 31, 8, tzinfo=UTC)}]
)
def test_a_refused_time_is_shown_in_iso_format(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=r"due = \d+-01-31T08:00:00"):
        when(**given)
