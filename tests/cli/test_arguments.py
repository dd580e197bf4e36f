"""How the texts of arguments are parsed, and which are invalid."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest

from towpath.console.arguments import duration, instant, pairs, priority
from towpath.errors import InvalidOption


def test_a_priority_is_a_word_or_a_number() -> None:
    assert [priority(text) for text in ("high", "NORMAL", "low", "0", "73")] == [100, 50, 0, 0, 73]


def test_a_time_without_a_zone_is_utc() -> None:
    assert instant("due", "2030-01-31T08:00") == datetime(2030, 1, 31, 8, tzinfo=UTC)
    assert instant("due", "2030-01-31T08:00+02:00") == datetime(2030, 1, 31, 6, tzinfo=UTC)
    assert instant("due", None) is None


def test_a_pair_ends_at_its_first_equals_sign() -> None:
    assert pairs("header", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}


def one_pair(text: str) -> dict[str, str]:
    return pairs("header", [text])


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (priority, "101"),
        (priority, "-1"),
        (priority, "urgent"),
        (partial(instant, "due"), "soon"),
        (partial(instant, "due"), ""),
        (partial(duration, "delay"), "10"),
        (one_pair, "x"),
        (one_pair, "=x"),
    ],
)
def test_an_invalid_argument_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(InvalidOption):
        read(text)
