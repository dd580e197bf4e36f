"""Metrics: Prometheus reads what was counted, and the catalogue says what it means."""

import errno
import re
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import HANGS, eventually
from towpath.errors import ServerUnreachable
from towpath.telemetry import measures
from towpath.telemetry.measures import CATALOGUE, MetricKind, MetricSpec
from towpath.telemetry.metrics import (
    BUCKETS,
    HandlerMetrics,
    Metrics,
    QueueReading,
    Reading,
    SinkReading,
)

every_metric = pytest.mark.parametrize("spec", CATALOGUE, ids=lambda spec: spec.name)

READING = Reading(
    queues=(QueueReading("reviews", {"ready": 12, "dead": 1}, oldest=1.8, leases=4),),
    slots={"busy": 4, "free": 6, "lost": 0},
    sinks=(SinkReading("kafka", {"pending": 7, "refused": 2}, lag=1.5),),
)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and its label values in the order of their names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return samples(generate_latest(metrics.registry).decode())


def families(metrics: Metrics) -> Iterator[tuple[str, str, str]]:
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        yield family.name, family.type, family.documentation


class TestTheCatalogueOfMetrics:
    @every_metric
    def test_a_metric_answers_a_question_and_names_its_unit(self, spec: MetricSpec) -> None:
        assert spec.name.startswith("towpath_")
        assert "?" in spec.question
        assert spec.sentence.endswith((".", "none."))
        assert spec.name.endswith("_total") == (spec.kind is MetricKind.COUNTER)
        assert spec.kind is not MetricKind.HISTOGRAM or spec.name.endswith("_seconds")

    @every_metric
    def test_a_metrics_labels_have_a_bounded_number_of_values(self, spec: MetricSpec) -> None:
        assert set(spec.labels) <= {"queue", "handler", "state", "sink"}

    def test_names_of_metrics_are_unique(self) -> None:
        assert len({spec.name for spec in CATALOGUE}) == len(CATALOGUE)

    def test_lists_the_metrics_that_a_scrape_shows(self, metrics: Metrics) -> None:
        metrics.of("reviews", "review")
        metrics.watch(lambda: READING)
        shown = {(name, kind, text) for name, kind, text in families(metrics)}
        told = {
            (metric.name.removesuffix("_total"), metric.kind.value, metric.sentence)
            for metric in CATALOGUE
        }
        # the library adds the creation time of each counter as a gauge
        assert {sample for sample in shown if not sample[0].endswith("_created")} == told

    def test_has_a_metric_for_each_attribute_of_handler_metrics(self) -> None:
        per_handler = [metric for metric in CATALOGUE if metric.labels == ("queue", "handler")]
        assert len(HandlerMetrics.__slots__) == len(per_handler)


class TestCounting:
    def test_starts_at_zero_once_a_handler_is_known(self, metrics: Metrics) -> None:
        """So the first failed attempt is an increase, and an alert sees it."""
        metrics.of("reviews", "review")
        assert scraped(metrics)["towpath_jobs_failed_total", "review", "reviews"] == 0

    @pytest.mark.parametrize(
        "spec",
        [
            metric
            for metric in CATALOGUE
            if metric.kind is MetricKind.COUNTER and "handler" in metric.labels
        ],
        ids=lambda spec: spec.name,
    )
    def test_increases_the_counter_of_that_name(self, metrics: Metrics, spec: MetricSpec) -> None:
        [attribute] = re.findall(r"towpath_(?:jobs|leases)_(\w+)_total", spec.name)
        getattr(metrics.of("reviews", "review"), attribute).inc(40)
        changed = {key: value for key, value in scraped(metrics).items() if value == 40}
        assert changed == {(spec.name, "review", "reviews"): 40}

    def test_starts_at_zero_for_a_sink_too(self, metrics: Metrics) -> None:
        sink = metrics.sink("kafka")
        assert scraped(metrics)["towpath_outbox_refused_total", "kafka"] == 0
        sink.sent.inc(40)
        sink.refused.inc()
        metrics.sink("kafka").sent.inc(2)
        found = scraped(metrics)
        assert found["towpath_outbox_sent_total", "kafka"] == 42
        assert found["towpath_outbox_refused_total", "kafka"] == 1

    def test_counts_with_the_counter_of_a_metric_of_the_catalogue(self, metrics: Metrics) -> None:
        """So a counter without a handler or a sink needs no class of its own."""
        metrics.own(measures.SCHEDULES_FIRED).labels("reviews").inc(40)
        metrics.schedules("reviews").fired.inc(2)
        assert scraped(metrics)["towpath_schedules_fired_total", "reviews"] == 42

    def test_uses_the_same_counters_again(self, metrics: Metrics) -> None:
        assert metrics.of("reviews", "review") is metrics.of("reviews", "review")
        assert metrics.of("reviews", "review") is not metrics.of("reviews", "rerun")

    def test_loses_nothing_between_threads(self, metrics: Metrics) -> None:
        def count() -> None:
            for _ in range(2_000):
                of = metrics.of("reviews", "review")
                of.completed.inc()
                of.ran.observe(0.5)
                of.ran.observe_many((0.5, 0.5))

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = scraped(metrics)
        assert found["towpath_jobs_completed_total", "review", "reviews"] == 8_000
        assert found["towpath_job_seconds_count", "review", "reviews"] == 24_000
        assert found["towpath_job_seconds_sum", "review", "reviews"] == 12_000


class TestTimings:
    def test_are_a_histogram_of_prometheus(self, metrics: Metrics) -> None:
        metrics.of("q", "h").waited.observe_many([0.001, 0.0011, 7, 1e9])
        found = scraped(metrics)
        buckets = {
            labels[1]: value
            for (name, *labels), value in found.items()
            if name == "towpath_wait_seconds_bucket"
        }
        assert list(buckets) == [*(str(bound) for bound in BUCKETS), "+Inf"]
        assert (buckets["0.001"], buckets["0.0025"], buckets["5.0"]) == (1, 2, 2)
        assert (buckets["10.0"], buckets["3600.0"], buckets["+Inf"]) == (3, 3, 4)
        assert found["towpath_wait_seconds_count", "h", "q"] == 4
        assert found["towpath_wait_seconds_sum", "h", "q"] == pytest.approx(1e9 + 7.0021)

    def test_are_shown_under_their_own_names(self, metrics: Metrics) -> None:
        of = metrics.of("q", "h")
        of.ran.observe(1)
        of.waited.observe(2)
        of.punctuality.observe(4)
        found = scraped(metrics)
        names = (measures.JOB_SECONDS, measures.WAIT_SECONDS, measures.PUNCTUALITY_SECONDS)
        assert [found[f"{metric.name}_sum", "h", "q"] for metric in names] == [1, 2, 4]

    def test_count_a_start_before_its_time_as_zero(self, metrics: Metrics) -> None:
        """Two clocks may differ a little; a sum that shrinks would break rates."""
        metrics.of("q", "h").punctuality.observe(-0.5)
        found = scraped(metrics)
        assert found["towpath_punctuality_seconds_sum", "h", "q"] == 0
        assert found["towpath_punctuality_seconds_bucket", "h", "0.001", "q"] == 1


class TestReadingsOfGauges:
    def test_fill_the_gauges_at_each_scrape(self, metrics: Metrics) -> None:
        metrics.watch(lambda: READING)
        found = scraped(metrics)
        assert found["towpath_queue_depth", "reviews", "ready"] == 12
        assert found["towpath_queue_depth", "reviews", "dead"] == 1
        assert found["towpath_oldest_seconds", "reviews"] == 1.8
        assert found["towpath_leases_active", "reviews"] == 4
        assert found["towpath_slots", "busy"] == 4
        assert found["towpath_outbox_events", "kafka", "pending"] == 7
        assert found["towpath_outbox_events", "kafka", "refused"] == 2
        assert found["towpath_outbox_lag_seconds", "kafka"] == 1.5
        assert found["towpath_queues_readable",] == 1

    @pytest.mark.parametrize("error", [ServerUnreachable("away"), TimeoutError(), OSError()])
    def test_that_fail_leave_out_only_the_gauges(self, metrics: Metrics, error: Exception) -> None:
        """Counters matter most while Redis is away."""

        def read() -> Reading:
            raise error

        metrics.watch(read)
        metrics.of("q", "h").failed.inc()
        found = scraped(metrics)
        assert found["towpath_queues_readable",] == 0
        assert found["towpath_jobs_failed_total", "h", "q"] == 1
        assert not [key for key in found if key[0] == "towpath_queue_depth"]

    def test_of_two_sources_are_joined_queue_by_queue(self, metrics: Metrics) -> None:
        """A server that runs handlers reads all queues, and its worker holds some leases."""
        others = (QueueReading("reviews", {"ready": 11}), QueueReading("mails", {"ready": 3}))
        metrics.watch(lambda: READING)
        metrics.watch(lambda: Reading(queues=others), place="server")
        text = generate_latest(metrics.registry).decode()
        assert text.count('towpath_queue_depth{queue="reviews",state="ready"}') == 1
        found = samples(text)
        assert found["towpath_queue_depth", "reviews", "ready"] == 11
        assert found["towpath_queue_depth", "mails", "ready"] == 3
        assert found["towpath_leases_active", "reviews"] == 4
        assert found["towpath_slots", "busy"] == 4
        assert found["towpath_queues_readable",] == 1

    def test_of_one_source_are_shown_though_the_other_fails(self, metrics: Metrics) -> None:
        def read() -> Reading:
            raise TimeoutError

        metrics.watch(lambda: READING)
        metrics.watch(read, place="server")
        found = scraped(metrics)
        assert found["towpath_queue_depth", "reviews", "ready"] == 12
        assert found["towpath_queues_readable",] == 0

    def test_without_a_source_are_left_out(self, metrics: Metrics) -> None:
        assert not [key for key in scraped(metrics) if key[0] == "towpath_queues_readable"]


class TestServingMetrics:
    def test_answers_a_scrape_until_it_is_closed_and_frees_the_port(self) -> None:
        metrics = Metrics()
        metrics.of("q", "h").completed.inc(3)
        with metrics.serve() as endpoint:
            found = samples(fetched(str(endpoint)))
            again = endpoint.port
        assert found["towpath_jobs_completed_total", "h", "q"] == 3
        with metrics.serve(port=again) as second:
            assert samples(fetched(str(second)))

    def test_shows_the_metrics_of_the_process_itself(self) -> None:
        with Metrics().serve() as endpoint:
            assert "process_resident_memory_bytes" in fetched(str(endpoint))

    def test_is_for_this_machine_only_unless_an_address_is_given(self, metrics: Metrics) -> None:
        with metrics.serve() as endpoint:
            assert endpoint.addr == "127.0.0.1"
            assert str(endpoint) == f"127.0.0.1:{endpoint.port}"

    def test_leaves_no_thread_behind_and_may_be_closed_twice(self, metrics: Metrics) -> None:
        before = threading.active_count()
        endpoint = metrics.serve()
        fetched(str(endpoint))
        endpoint.close()
        endpoint.close()
        eventually(lambda: threading.active_count() <= before)

    def test_refuses_a_port_that_is_taken(self, metrics: Metrics) -> None:
        with metrics.serve() as first, pytest.raises(OSError) as refusal:  # noqa: PT011 -- by its number
            metrics.serve(port=first.port)
        assert refusal.value.errno == errno.EADDRINUSE

    def test_uses_a_registry_that_is_given(self) -> None:
        registry = CollectorRegistry(auto_describe=True)
        assert Metrics(registry).registry is registry
        assert b"towpath_job_seconds" in generate_latest(registry)


def fetched(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=HANGS) as answer:
        return answer.read().decode()
