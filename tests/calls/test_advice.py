"""What an answer asks for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.calls import Advice, Answer, Next, advice
from towpath.clock import ZERO, Duration, days, seconds

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


def answer(status: int, retry_after: str | None = None) -> Answer:
    return Answer(status, {} if retry_after is None else {"retry-after": retry_after}, b"")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, Next.DONE) for status in (200, 201, 202, 204, 226, 299)),
        (410, Next.GONE),
        *((status, Next.LATER) for status in (408, 429, 500, 501, 502, 503, 504, 599)),
        *((status, Next.NEVER) for status in (400, 401, 403, 404, 409, 413, 422, 451)),
        *((status, Next.NEVER) for status in (101, 300, 301, 302, 304, 307, 308)),
    ],
)
def test_goes_by_the_status(status: int, expected: Next) -> None:
    assert advice(answer(status), now=NOW) == Advice(expected)


@pytest.mark.parametrize(
    ("said", "after"),
    [
        ("0", ZERO),
        ("120", seconds(120)),
        (" 7 ", seconds(7)),
        ("Wed, 01 Jul 2026 12:01:00 GMT", seconds(60)),
        ("Wed, 01 Jul 2026 12:01:00 -0000", seconds(60)),
        ("Wed, 01 Jul 2026 11:00:00 GMT", ZERO),
        ("86401", days(1)),
        ("9" * 5000, days(1)),
        ("Fri, 01 Jan 2100 00:00:00 GMT", days(1)),
        ("", ZERO),
        ("soon", ZERO),
        ("-5", ZERO),
        ("1.5", ZERO),
        ("٣", ZERO),
        ("Wed, 01 Jul 99999 12:01:00 GMT", ZERO),
        ("Wed, 99 Jul 2026 12:01:00 GMT", ZERO),
    ],
)
@pytest.mark.parametrize("status", [429, 503, 500, 408])
def test_waits_as_long_as_was_asked_up_to_a_day(status: int, said: str, after: Duration) -> None:
    assert advice(answer(status, said), now=NOW) == Advice(Next.LATER, after)


def test_waits_only_for_what_may_be_taken_later() -> None:
    assert advice(answer(404, "120")) == Advice(Next.NEVER)


def test_reads_the_clock_by_itself() -> None:
    assert advice(answer(503, "Fri, 01 Jan 2100 00:00:00 GMT")).after == days(1)


@given(status=st.integers(100, 999), said=st.text())
def test_has_an_answer_to_everything(status: int, said: str) -> None:
    assert ZERO <= advice(answer(status, said)).after <= days(1)
