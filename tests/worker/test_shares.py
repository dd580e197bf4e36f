"""The shares of queues in the slots of a worker: whose turn it is."""

from collections.abc import Callable

from towpath.worker.slots import Share, Slots


def share(
    slots: Slots,
    *,
    weight: int = 1,
    most: int | None = None,
    wake: Callable[[], None] = lambda: None,
) -> Share:
    """A share that wants more slots."""
    made = Share(wake)
    slots.give(made, weight=weight, most=most)
    slots.want(made)
    return made


def taken_in_turn(slots: Slots, shares: list[Share], rounds: int) -> list[int]:
    """How many slots each share gets if all ask again and again, and every job ends at once."""
    got = [0] * len(shares)
    for _ in range(rounds):
        for i, taker in enumerate(shares):
            count = slots.take(taker, 1)
            got[i] += count
            slots.give_back(taker, count)
    return got


class TestTurnsOfQueues:
    def test_are_given_by_weight(self) -> None:
        slots = Slots(1)
        three, one = share(slots, weight=3), share(slots, weight=1)
        got = taken_in_turn(slots, [three, one], 400)
        assert 2.9 < got[0] / got[1] < 3.1

    def test_are_not_saved_up_by_an_idle_queue(self) -> None:
        """However long the others worked alone, a queue that comes back takes turns with them."""
        slots = Slots(1)
        busy, calm = share(slots), share(slots)
        slots.stop_wanting(calm)
        taken_in_turn(slots, [busy], 1000)
        slots.stop_wanting(busy)
        slots.want(calm)
        taken_in_turn(slots, [calm], 1)
        slots.want(busy)
        got = taken_in_turn(slots, [calm, busy], 100)
        assert abs(got[0] - got[1]) <= 1

    def test_are_given_only_to_queues_that_can_use_them(self) -> None:
        slots = Slots(4)
        full, other = share(slots, weight=1000, most=1), share(slots)
        assert slots.take(full, 4) == 1
        assert slots.take(other, 4) == 3

    def test_that_a_queue_is_owed_are_kept_for_it(self) -> None:
        slots = Slots(4)
        owed, other = share(slots), share(slots)
        assert slots.take(other, 4) == 2
        assert slots.take(owed, 4) == 2

    def test_that_a_queue_does_not_want_are_given_to_the_others(self) -> None:
        called: list[str] = []
        slots = Slots(4)
        sated = share(slots)
        other = share(slots, wake=lambda: called.append("other"))
        assert slots.take(other, 4) == 2
        slots.stop_wanting(sated)
        assert called == ["other"]
        assert slots.take(other, 4) == 2

    def test_wake_no_more_queues_than_there_are_slots(self) -> None:
        """Only queues whose turn it is are woken: of a thousand queues that begin to ask, most
        would find no slot.
        """
        slots, called = Slots(2), list[int]()
        for n in range(100):
            one = share(slots, wake=lambda n=n: called.append(n))
            one.turn = float(-n)
        slots.stop_wanting(share(slots))
        assert sorted(called) == [98, 99]


class TestLostSlots:
    def test_are_unused_until_they_are_regained(self) -> None:
        slots = Slots(2)
        one = share(slots)
        assert slots.take(one, 2) == 2
        slots.lose()
        slots.give_back(one, 1)
        assert (slots.total, slots.free, slots.lost) == (1, 0, 1)
        assert slots.take(one, 2) == 0
        slots.regain()
        assert (slots.total, slots.free, slots.lost) == (2, 1, 0)
