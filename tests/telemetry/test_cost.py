"""What telemetry costs a worker that runs 30,000 jobs a second. CPU time, the best of many runs."""

import time
from collections.abc import Callable

from towpath.telemetry import events, traces
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

RUNS = 100


def microseconds(work: Callable[[], object], *, turns: int = 1_000) -> float:
    """CPU time of one call in the best of many runs: others on the machine are not in it."""
    return min(_run(work, turns) for _ in range(RUNS)) / turns / 1_000


def _run(work: Callable[[], object], turns: int) -> int:
    start = time.thread_time_ns()
    for _ in range(turns):
        work()
    return time.thread_time_ns() - start


def test_an_event_whose_level_is_off_costs_less_than_a_microsecond() -> None:
    log = Log(worker="w")
    cost = microseconds(
        lambda: log.emit(
            events.JOB_COMPLETED, job="j", queue="q", handler="h", attempt=1, waited=0.1, ran=0.2
        )
    )
    assert not log.wants(events.JOB_COMPLETED)
    assert cost < 1.0


def test_a_handler_s_metrics_are_found_and_timed_in_less_than_two_microseconds() -> None:
    metrics = Metrics()
    metrics.of("q", "h")
    assert microseconds(lambda: metrics.of("q", "h").ran.observe(0.012)) < 2.0


def test_a_batch_of_timings_costs_less_than_one_by_one() -> None:
    ran, batch = Metrics().of("q", "h").ran, [0.012] * 100
    one_by_one = microseconds(lambda: ran.observe(0.012))
    assert microseconds(lambda: ran.observe_many(batch), turns=10) / len(batch) < one_by_one


def test_traces_without_an_sdk_cost_less_than_four_microseconds() -> None:
    def work() -> None:
        with traces.consumer_span({}, queue="q", handler="h", job="j", attempt=1):
            pass

    assert microseconds(work) < 4.0
    assert microseconds(traces.inject) < 1.5
