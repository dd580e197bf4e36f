"""The registry of live workers: engine and oracle agree, and planted faults are found."""

from collections.abc import Iterator

import pytest
from hypothesis import Phase

from tests.faults.planting import PlantedFault, planted
from tests.model.keyspace import ModelTarget
from tests.model.mutants import Mutant
from tests.model.run_programs import program_of
from tests.model.worker_registry import BOUNDS, run_programs
from towpath.embedded import EmbeddedServer, RedisConnection
from towpath.engine import worker_registry

PROGRAMS = 120
SEED = 5


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a short program reaches."""
    monkeypatch.setattr(worker_registry, "WORKERS_MOST", BOUNDS.stored)
    monkeypatch.setattr(worker_registry, "SHOWN_MOST", BOUNDS.listed)
    monkeypatch.setattr(worker_registry, "QUEUES_SHOWN", BOUNDS.queues)
    monkeypatch.setattr(worker_registry, "JOBS_SHOWN", BOUNDS.jobs)


@pytest.fixture
def connection(server: EmbeddedServer) -> Iterator[RedisConnection]:
    with RedisConnection(server.address) as connection:
        yield connection


def test_engine_and_oracle_agree(server: EmbeddedServer, connection: RedisConnection) -> None:
    run_programs(ModelTarget(server.url, server.address, connection), programs=PROGRAMS, seed=SEED)


_FORGET = "redis.call('HDEL', TOLD, name)"
_UNTIL = "redis.call('ZADD', LIVING, now + lasts, worker)"
_LISTED = "'(' .. int(now), '+inf', 'LIMIT', 0, most)"

MUTANTS = [
    Mutant(
        "a silent worker is listed for ever",
        ("list_workers", _LISTED, _LISTED.replace("int(now)", "0")),
    ),
    Mutant("listed 1 ms too long", ("list_workers", _LISTED, _LISTED.replace("'('", "''"))),
    Mutant(
        "silent 1 ms too early",
        ("report_worker", _UNTIL, _UNTIL.replace("lasts", "lasts - 1")),
    ),
    Mutant(
        "a worker that reports again is not alive for longer",
        ("report_worker", _UNTIL, "redis.call('ZADD', LIVING, 'NX', now + lasts, worker)"),
    ),
    Mutant(
        "every worker lasts as long",
        ("report_worker", _UNTIL, _UNTIL.replace("lasts", "25000")),
    ),
    Mutant(
        "a worker that has ended stays until it is silent",
        ("remove_worker", "redis.call('ZREM', LIVING, worker)", "redis.call('ZREM', LIVING, '')"),
        ("remove_worker", "redis.call('HDEL', TOLD, worker)", ""),
    ),
    Mutant(
        "the report of an ended worker stays",
        ("remove_worker", "redis.call('HDEL', TOLD, worker)\n", ""),
    ),
    Mutant("the report of a silent worker stays", ("report_worker", _FORGET, "")),
    Mutant(
        "any number of workers is stored", ("report_worker", "count - #silent >= most", "false")
    ),
    Mutant(
        "silent workers count toward the bound",
        ("report_worker", "count - #silent >= most", "count >= most"),
    ),
    Mutant(
        "a known worker is refused at the bound",
        ("report_worker", "not known and count", "count"),
    ),
    Mutant(
        "one worker more than the bound",
        ("report_worker", "#silent >= most", "#silent > most"),
    ),
    Mutant(
        "any number is listed", ("list_workers", _LISTED, "'(' .. int(now), '+inf')")
    ),
    Mutant("a worker began with its report", ("report_worker", "now - age", "now")),
    Mutant("a worker began after its report", ("report_worker", "now - age", "now + age")),
    Mutant(
        "the first report of a worker is shown for ever",
        ("report_worker", "redis.call('HSET', TOLD, worker,", "redis.call('HSETNX', TOLD, worker,"),
    ),
    Mutant(
        "the report of another worker is shown",
        ("list_workers", "reports[i] or ''", "reports[#names + 1 - i] or ''"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_planted_fault_in_a_script_is_found(
    mutant: Mutant, server: EmbeddedServer, connection: RedisConnection
) -> None:
    target = ModelTarget(server.url, server.address, connection, mutant.scripts())
    with pytest.raises(AssertionError) as failure:
        run_programs(target, programs=PROGRAMS, seed=SEED, phases=[Phase.generate])
    assert "report(" in program_of(failure.value)


_REPORTING = "towpath.engine.worker_registry", "Workers.report"
FAULTS_IN_REPORTS = [
    PlantedFault(
        "a worker reports all of its queues",
        *_REPORTING,
        "report.queues)[:QUEUES_SHOWN]",
        "report.queues)[:]",
    ),
    PlantedFault("a worker reports all the jobs that it runs", *_REPORTING, "[:JOBS_SHOWN]", "[:]"),
    PlantedFault(
        "the jobs that began last are reported",
        *_REPORTING,
        "key=lambda job: job.since_ms",
        "key=lambda job: -job.since_ms",
    ),
]


@pytest.mark.parametrize("fault", FAULTS_IN_REPORTS, ids=str)
def test_a_planted_fault_in_the_engine_is_found(
    fault: PlantedFault, server: EmbeddedServer, connection: RedisConnection
) -> None:
    target = ModelTarget(server.url, server.address, connection)
    with planted(fault), pytest.raises(AssertionError) as failure:
        run_programs(target, programs=PROGRAMS, seed=SEED, phases=[Phase.generate])
    assert "report(" in program_of(failure.value)
