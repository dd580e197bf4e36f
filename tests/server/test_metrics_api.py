"""`/metrics` of the server: every queue in its Redis, and the handlers that it runs itself."""

from prometheus_client.parser import text_string_to_metric_families

from tests.server.serving import Api, RunningServer
from towpath.apps.application import applications

Samples = dict[tuple[str, ...], float]


def scraped(served: RunningServer, key: str | None = None) -> Samples:
    """Every sample by its name and its labels' values in order of their names."""
    answer = served.client(key).get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def depth(found: Samples, queue: str) -> dict[str, float]:
    return {key[2]: value for key, value in found.items() if key[:2] == (DEPTH, queue)}


DEPTH = "towpath_queue_depth"


def test_the_metrics_show_every_queue(running: RunningServer, api: Api, queue: str) -> None:
    """Only clients over HTTP work on it."""
    api.bury("x")
    for n in range(5):
        api.submit(n, lane="a" if n > 2 else None)
    api.submit(9, delay=60)
    assert len(api.claim(count=2)) == 2
    found = scraped(running)
    wanted = {"ready": 2, "delayed": 1, "waiting": 1, "leased": 2, "dead": 1}
    assert depth(found, queue) == wanted
    assert found["towpath_oldest_seconds", queue] > 0
    assert found["towpath_queues_readable",] == 1


def test_the_metrics_show_handlers_that_run_beside_the_server(running: RunningServer) -> None:
    """`up` delivers callbacks: its worker's counters are in the same scrape."""
    found = scraped(running)
    assert found["towpath_slots", "free"] > 0
    assert found["towpath_leases_active", "messages.callbacks"] == 0
    assert found["process_resident_memory_bytes",] > 0


def test_the_metrics_show_nothing_about_queues_that_the_key_is_not_for(
    running: RunningServer, api: Api, queue: str
) -> None:
    api.submit(1)
    _, mine = running.make_key("read", queues=(queue,))
    _, other = running.make_key("read", queues=("elsewhere*",))
    assert depth(scraped(running, mine), queue)["ready"] == 1
    assert {key[1] for key in scraped(running, mine) if key[0] == DEPTH} == {queue}
    assert queue not in running.client(other).get("/metrics").text


def test_the_totals_of_an_application_are_shown_to_keys_for_its_queue(
    running: RunningServer,
) -> None:
    def shown(key: str | None) -> set[str]:
        return {key[0] for key in scraped(running, key)}

    (_, mine), (_, other) = (
        running.make_key("read", queues=queues) for queues in (("uploads*",), ("elsewhere*",))
    )
    own = {name for name in shown(None) if name.startswith("towpath_uploads_")}
    assert own
    assert own <= shown(mine)
    assert not own & shown(other)
    named = [
        spec.name.removesuffix("_total")
        for application in applications()
        if application.name != "uploads"
        for spec in application.metrics
    ]
    assert not [name for name in shown(mine) | shown(other) if name.startswith(tuple(named))]
    assert "process_resident_memory_bytes" in shown(other)
