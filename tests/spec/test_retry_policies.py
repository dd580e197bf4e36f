"""Retry policies: how long to wait before the next attempt."""

from typing import Any

import msgspec
import pytest

from towpath.clock import days, hours, minutes, seconds
from towpath.engine.retry import Exponential, Fixed, Listed, Never, RetryPolicy
from towpath.errors import InvalidOption


class TestExponential:
    def test_grows_with_every_attempt(self) -> None:
        policy = Exponential(first=seconds(1), factor=3, jitter=0)
        assert [policy.delay(n, 0.5) for n in (1, 2, 3, 4)] == [
            seconds(1),
            seconds(3),
            seconds(9),
            seconds(27),
        ]

    def test_has_a_maximum_wait(self) -> None:
        policy = Exponential(first=seconds(1), longest=minutes(1), jitter=0)
        assert policy.delay(10, 0) == minutes(1)

    def test_does_not_overflow(self) -> None:
        policy = Exponential(first=days(1), factor=100, longest=days(30), jitter=0)
        assert policy.delay(1_000_000, 0) == days(30)

    def test_varies_each_wait_at_random(self) -> None:
        """Jobs that failed together should not be retried together."""
        policy = Exponential(first=seconds(10), jitter=0.2)
        assert policy.delay(1, 0.0) == seconds(10)
        assert policy.delay(1, 0.5) == seconds(9)
        assert policy.delay(1, 1.0) == seconds(8)

    def test_is_the_default_of_a_queue(self) -> None:
        first, second = Exponential().delay(1, 0), Exponential().delay(2, 0)
        assert (first, second) == (seconds(1), seconds(2))
        assert Exponential().delay(100, 0) == hours(4)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("first", -seconds(1)),
            ("first", "1"),
            ("longest", days(40_000)),
            ("factor", 0.5),
            ("factor", 101),
            ("factor", float("nan")),
            ("factor", "2"),
            ("jitter", -0.1),
            ("jitter", 1.1),
            ("jitter", float("nan")),
        ],
    )
    def test_with_an_invalid_value_is_refused(self, option: str, value: Any) -> None:
        with pytest.raises(InvalidOption, match=f"retry.{option}"):
            Exponential(**{option: value})


class TestFixed:
    def test_waits_the_same_every_time(self) -> None:
        policy = Fixed(seconds(7))
        assert [policy.delay(n, 0.9) for n in (1, 2, 100)] == [seconds(7)] * 3

    def test_with_a_negative_wait_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match=r"retry\.every"):
            Fixed(-seconds(1))


class TestListed:
    def test_waits_as_listed_and_then_gives_up(self) -> None:
        policy = Listed((seconds(1), minutes(1)))
        assert [policy.delay(n, 0) for n in (1, 2, 3, 4)] == [seconds(1), minutes(1), None, None]

    def test_without_waits_is_never(self) -> None:
        assert Listed(()).delay(1, 0) is None

    def test_with_a_negative_wait_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match=r"retry\.waits"):
            Listed((seconds(1), -seconds(1)))


class TestNever:
    def test_makes_a_job_dead_at_the_first_failure(self) -> None:
        assert Never().delay(1, 0) is None


@pytest.mark.parametrize(
    "policy",
    [Exponential(first=seconds(0.5)), Fixed(seconds(1.25)), Listed((seconds(1),)), Never()],
)
def test_a_policy_survives_writing_and_reading(policy: RetryPolicy) -> None:
    assert msgspec.json.decode(msgspec.json.encode(policy), type=RetryPolicy) == policy
