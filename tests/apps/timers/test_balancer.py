"""Which instance is called: by weight and load, and none that fails."""

from collections import Counter
from contextlib import ExitStack

import pytest

from towpath.apps.timers.balancer import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    THRESHOLD,
    Balancer,
    BreakerChange,
)
from towpath.apps.timers.instances import Instance

A, B, C = (
    Instance(id=id, app="shop", address=f"http://{id}/", types=("t", "u"), registered_ms=0)
    for id in "abc"
)
HEAVY = Instance(id="h", app="shop", address="http://h/", types=("t",), weight=3, registered_ms=0)


class ObservedBalancer:
    """A balancer on a manual clock, and the changes that it reported."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changes: list[tuple[str, str, float]] = []
        self.balancer = Balancer(clock=lambda: self.now)

    def fail(self, instance: Instance, times: int = THRESHOLD) -> None:
        for _ in range(times):
            self._keep(self.balancer.failed(instance))

    def succeed(self, instance: Instance) -> None:
        self._keep(self.balancer.succeeded(instance, "t"))

    def _keep(self, changes: list[BreakerChange]) -> None:
        self.changes += [(change.instance.id, change.task_type, change.pause) for change in changes]

    def chosen(self, *instances: Instance, task_type: str = "t") -> str | None:
        found = self.balancer.choose(instances, task_type)
        return found.id if found else None


@pytest.fixture
def observed() -> ObservedBalancer:
    return ObservedBalancer()


class TestChoosingAnInstance:
    def test_from_an_empty_list_gives_none(self, observed: ObservedBalancer) -> None:
        assert observed.chosen() is None
        assert observed.balancer.choose([A], "t", excluded={"a"}) is None

    def test_goes_by_weight_while_no_instance_is_busy(self, observed: ObservedBalancer) -> None:
        found = Counter(observed.chosen(A, HEAVY) for _ in range(2000))
        assert 2 < found["h"] / found["a"] < 4.5

    def test_goes_by_load_when_an_instance_is_busy(self, observed: ObservedBalancer) -> None:
        """An instance that does not answer gets no more calls than the others have."""
        with ExitStack() as stack:
            for _ in range(8):
                instance = observed.balancer.choose([A, HEAVY], "t")
                assert instance is not None
                stack.enter_context(observed.balancer.calling(instance, "t"))
            load = Counter(observed.chosen(A, HEAVY) for _ in range(50))
            assert load.keys() == {"a", "h"}
            with observed.balancer.calling(A, "t"), observed.balancer.calling(A, "t"):
                assert observed.chosen(A, HEAVY) == "h"

    def test_does_not_count_an_ended_call_as_load(self, observed: ObservedBalancer) -> None:
        with observed.balancer.calling(A, "t"):
            assert observed.chosen(A, B) == "b"
        assert {observed.chosen(A, B) for _ in range(100)} == {"a", "b"}


class TestTheBreakerOfAnInstance:
    def test_opens_after_the_threshold_of_failures_in_a_row(
        self, observed: ObservedBalancer
    ) -> None:
        observed.fail(A, THRESHOLD - 1)
        observed.succeed(A)
        observed.fail(A, THRESHOLD - 1)
        assert observed.chosen(A) == "a"
        observed.fail(A, 1)
        assert observed.chosen(A) is None
        assert observed.chosen(A, B) == "b"
        assert observed.changes == [("a", "", FIRST_PAUSE)]
        assert observed.balancer.open() == {"a"}

    def test_permits_one_trial_call_after_its_pause(self, observed: ObservedBalancer) -> None:
        observed.fail(A)
        observed.now = FIRST_PAUSE
        assert observed.chosen(A) == "a"
        with observed.balancer.calling(A, "t"):
            assert observed.chosen(A) is None

    def test_closes_after_a_successful_trial_call(self, observed: ObservedBalancer) -> None:
        observed.fail(A)
        observed.now = FIRST_PAUSE
        with observed.balancer.calling(A, "t"):
            observed.succeed(A)
        with observed.balancer.calling(A, "t"):
            assert observed.chosen(A) == "a"
        assert observed.changes[-1] == ("a", "", 0.0)

    def test_opens_for_longer_after_each_failed_trial_call(
        self, observed: ObservedBalancer
    ) -> None:
        observed.fail(A)
        for _ in range(10):
            observed.now += observed.changes[-1][2]
            with observed.balancer.calling(A, "t"):
                observed.fail(A, 1)
        pauses = [pause for _, _, pause in observed.changes]
        assert pauses[:4] == [1, 2, 4, 8]
        assert pauses[-1] == LONGEST_PAUSE

    def test_permits_another_trial_call_after_one_was_cancelled(
        self, observed: ObservedBalancer
    ) -> None:
        observed.fail(A)
        observed.now = FIRST_PAUSE
        with pytest.raises(KeyError), observed.balancer.calling(A, "t"):
            raise KeyError
        assert observed.chosen(A) == "a"

    def test_does_not_pause_longer_for_calls_that_began_before_it_opened(
        self, observed: ObservedBalancer
    ) -> None:
        observed.fail(A, 10 * THRESHOLD)
        observed.now = FIRST_PAUSE
        assert observed.chosen(A) == "a"

    def test_does_not_open_for_one_timer_that_keeps_failing(
        self, observed: ObservedBalancer
    ) -> None:
        """Failures of one timer may be its own fault; those of several are the instance's."""
        for _ in range(10 * THRESHOLD):
            observed.balancer.failed(A, timer="poison")
        assert observed.chosen(A) == "a"
        for n in range(THRESHOLD):
            observed.balancer.failed(A, timer=f"t{n}")
        assert observed.chosen(A) is None

    def test_lets_an_instance_that_refuses_one_type_be_called_for_others(
        self, observed: ObservedBalancer
    ) -> None:
        for _ in range(THRESHOLD):
            observed.balancer.refused(A, "t")
        assert observed.chosen(A) is None
        assert observed.chosen(A, task_type="u") == "a"
        observed.now = FIRST_PAUSE
        assert observed.chosen(A) == "a"

    def test_is_removed_with_its_instance(self, observed: ObservedBalancer) -> None:
        observed.fail(A)
        observed.balancer.keep({"b"})
        assert observed.chosen(A) == "a"
