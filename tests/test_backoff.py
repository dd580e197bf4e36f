"""`towpath.backoff`: pauses that grow with each failure."""

import pytest

from towpath.backoff import Backoff, pause_after


def test_each_pause_is_twice_as_long_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.next_pause() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_after_a_reset_the_pauses_begin_with_the_first() -> None:
    backoff = Backoff(1.0, 60.0, factor=3)
    assert [backoff.next_pause() for _ in range(3)] == [1.0, 3.0, 9.0]
    backoff.reset()
    assert (backoff.pause, backoff.next_pause()) == (0.0, 1.0)


def test_a_limit_for_one_pause_also_limits_those_after_it() -> None:
    backoff = Backoff(1.0, 60.0)
    assert [backoff.next_pause(longest=3.0) for _ in range(4)] == [1.0, 2.0, 3.0, 3.0]
    assert backoff.next_pause() == 6.0


def test_jitter_shortens_a_pause_by_at_most_its_share_and_never_makes_it_longer() -> None:
    backoff = Backoff(8.0, 8.0, jitter=0.25)
    pauses = {backoff.next_pause() for _ in range(200)}
    assert len(pauses) > 100
    assert all(6.0 <= pause <= 8.0 for pause in pauses)
    assert backoff.pause == 8.0


@pytest.mark.parametrize(
    ("failures", "pause"), [(0, 0.5), (1, 0.5), (2, 1.0), (5, 8.0), (6, 10.0), (10**9, 10.0)]
)
def test_the_pause_can_be_had_from_a_stored_number_of_failures(failures: int, pause: float) -> None:
    assert pause_after(failures, 0.5, 10.0) == pause
