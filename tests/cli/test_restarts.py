"""How soon `towpath up` restarts a private server that has ended."""

from itertools import pairwise

from towpath.backoff import Backoff
from towpath.cli.serving import restart_pause


def pauses(times: int, *, ran: float, took: float) -> list[float]:
    backoff = Backoff(0.1, 2.0)
    return [restart_pause(backoff, ran=ran, took=took) for _ in range(times)]


def test_a_server_that_ran_for_a_while_is_restarted_at_once() -> None:
    backoff = Backoff(0.1, 2.0)
    restart_pause(backoff, ran=1.0, took=0.1)
    assert restart_pause(backoff, ran=60.0, took=0.1) == 0.0


def test_a_server_that_ends_soon_after_each_start_waits_longer_up_to_a_limit() -> None:
    found = pauses(12, ran=1.0, took=0.1)
    assert all(before <= after for before, after in pairwise(found))
    assert (found[0], found[-1]) == (0.1, 2.0)


def test_a_server_that_starts_slowly_waits_longer() -> None:
    assert pauses(12, ran=1.0, took=4.0)[-1] == 8.0
    assert pauses(12, ran=1.0, took=600.0)[-1] == 10.0
