"""The advice that an answer gives to its caller: retry, give up, try another receiver."""

from __future__ import annotations

import ast
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.architecture.sources import SOURCE, python_files, shown
from towpath.calls.answer import Advice, CallAnswer, Next, advice, advice_among
from towpath.clock import ZERO, Duration, days, seconds

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


def answer(status: int, retry_after: str | None = None) -> CallAnswer:
    return CallAnswer(status, {} if retry_after is None else {"retry-after": retry_after}, b"")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, Next.DONE) for status in (200, 201, 202, 204, 226, 299)),
        (410, Next.GONE),
        *((status, Next.LATER) for status in (408, 425, 429, 500, 501, 502, 503, 504, 599)),
        *((status, Next.NEVER) for status in (400, 413, 414, 415, 422, 431)),
        *((status, Next.REFUSED) for status in (101, 401, 403, 404, 405, 409, 421, 451)),
        *((status, Next.MOVED) for status in (300, 301, 302, 304, 307, 308)),
    ],
)
def test_advice_depends_on_the_status(status: int, expected: Next) -> None:
    assert advice(answer(status), now=NOW) == Advice(expected)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, Next.DONE) for status in (200, 201, 204)),
        (202, Next.ACCEPTED),
        *((status, Next.NEVER) for status in (400, 410, 413, 415, 422)),
        *((status, Next.LATER) for status in (500, 502, 503, 599)),
        *((status, Next.ELSEWHERE) for status in (101, 301, 302, 307, 401, 404, 408, 409, 414)),
        *((status, Next.ELSEWHERE) for status in (425, 429, 431, 451)),
    ],
)
def test_advice_among_several_receivers_says_whether_to_ask_another(
    status: int, expected: Next
) -> None:
    assert advice_among(answer(status), now=NOW) == Advice(expected)
    kept = seconds(7) if status in (404, 429, 503) else None
    if kept:
        assert advice_among(answer(status, "7"), now=NOW) == Advice(expected, kept)


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
@pytest.mark.parametrize("status", [429, 503, 500, 408, 425])
def test_advice_waits_as_long_as_retry_after_asks_up_to_a_day(
    status: int, said: str, after: Duration
) -> None:
    assert advice(answer(status, said), now=NOW) == Advice(Next.LATER, after)


def test_advice_waits_only_for_requests_that_may_be_accepted_later() -> None:
    assert advice(answer(403, "120")) == Advice(Next.REFUSED, seconds(120))
    assert advice(answer(422, "120")) == Advice(Next.NEVER)
    assert advice(answer(302, "120")) == Advice(Next.MOVED)


def test_advice_reads_the_clock_itself() -> None:
    assert advice(answer(503, "Fri, 01 Jan 2100 00:00:00 GMT")).after == days(1)


@given(status=st.integers(100, 999), said=st.text())
def test_advice_is_given_for_every_status_and_header(status: int, said: str) -> None:
    assert ZERO <= advice(answer(status, said)).after <= days(1)


def test_no_other_module_has_a_table_of_statuses() -> None:
    """Callers use the advice. A status with a special meaning for one forge is that forge's own."""
    places = {
        shown(path)
        for name in ("apps", "calls", "forges", "ledger", "worker")
        for path in python_files(SOURCE / name)
        if "tables" not in path.parts  # a database column may have that name
        if any(_compares_a_status(node) for node in ast.walk(ast.parse(path.read_text())))
    }
    own = {
        place for place in places if place.endswith(THEIR_OWN) or "/apps/reviews/posting/" in place
    }
    assert places - own == {"src/towpath/calls/answer.py"}


THEIR_OWN = (
    "/forges/client.py",
    "/uploads/stores/s3/answers.py",
    "/ledger/audit.py",
)
"""What GitHub and an S3 mean by a number is in their documentation; the audit log has the server's
own answers."""


def _compares_a_status(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    names = {getattr(side, "attr", getattr(side, "id", "")) for side in sides}
    inside = [inner for side in sides for inner in ast.walk(side)]
    numbers = any(
        isinstance(inner, ast.Constant) and isinstance(inner.value, int) for inner in inside
    )
    constants = any(isinstance(side, ast.Name) and side.id.isupper() for side in sides)
    return "status" in names and (numbers or constants)
