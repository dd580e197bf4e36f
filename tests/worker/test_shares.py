"""Shares in the slots of a worker: whose turn it is."""

from towpath.worker.slots import Share, Slots


def share(slots: Slots, *, weight: int = 1, most: int | None = None) -> Share:
    made = slots.share(weight=weight, most=most, wake=lambda: None)
    made.wants = True
    return made


def taken_in_turn(slots: Slots, shares: list[Share], rounds: int) -> list[int]:
    """How many slots each gets if all ask again and again, and every job ends at once."""
    got = [0] * len(shares)
    for _ in range(rounds):
        for i, it in enumerate(shares):
            count = slots.take(it, 1)
            got[i] += count
            slots.give_back(it, count)
    return got


class TestTurns:
    def test_go_by_weight(self) -> None:
        slots = Slots(1)
        three, one = share(slots, weight=3), share(slots, weight=1)
        got = taken_in_turn(slots, [three, one], 400)
        assert 2.9 < got[0] / got[1] < 3.1

    def test_are_not_saved_up_by_who_wants_nothing(self) -> None:
        """However long the others worked alone, who comes back takes turns with them."""
        slots = Slots(1)
        busy, calm = share(slots), share(slots)
        calm.wants = False
        taken_in_turn(slots, [busy], 1000)
        busy.wants, calm.wants = False, True
        taken_in_turn(slots, [calm], 1)
        busy.wants = True
        got = taken_in_turn(slots, [calm, busy], 100)
        assert abs(got[0] - got[1]) <= 1

    def test_are_for_those_who_could_take_one(self) -> None:
        slots = Slots(4)
        full, other = share(slots, weight=1000, most=1), share(slots)
        assert slots.take(full, 4) == 1
        assert slots.take(other, 4) == 3

    def test_what_one_is_owed_is_kept_for_it(self) -> None:
        slots = Slots(4)
        owed, other = share(slots), share(slots)
        assert slots.take(other, 4) == 2
        assert slots.take(owed, 4) == 2

    def test_what_one_does_not_want_is_for_the_others(self) -> None:
        called: list[str] = []
        slots = Slots(4)
        sated = share(slots)
        other = slots.share(weight=1, most=None, wake=lambda: called.append("other"))
        other.wants = True
        assert slots.take(other, 4) == 2
        slots.content(sated)
        assert called == ["other"]
        assert slots.take(other, 4) == 2


class TestLostSlots:
    def test_are_nobodys_until_they_are_regained(self) -> None:
        slots = Slots(2)
        one = share(slots)
        assert slots.take(one, 2) == 2
        slots.lose()
        slots.give_back(one, 1)
        assert (slots.total, slots.free, slots.lost) == (1, 0, 1)
        assert slots.take(one, 2) == 0
        slots.regain()
        assert (slots.total, slots.free, slots.lost) == (2, 1, 0)
