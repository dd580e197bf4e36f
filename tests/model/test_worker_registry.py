"""Workers that tell that they live: engine and oracle agree, and planted faults are found."""

from collections.abc import Iterator

import pytest
from hypothesis import Phase

from tests.faults.planting import PlantedFault, planted
from tests.model.keyspace import ModelTarget
from tests.model.mutants import Mutant
from tests.model.runs import program_of
from tests.model.worker_registry import BOUNDS, run_living
from towpath.embedded import EmbeddedServer, ServerConnection
from towpath.engine import worker_registry

PROGRAMS = 120
SEED = 5


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a short program reaches."""
    monkeypatch.setattr(worker_registry, "WORKERS_MOST", BOUNDS.known)
    monkeypatch.setattr(worker_registry, "SHOWN_MOST", BOUNDS.listed)
    monkeypatch.setattr(worker_registry, "QUEUES_SHOWN", BOUNDS.queues)
    monkeypatch.setattr(worker_registry, "JOBS_SHOWN", BOUNDS.jobs)


@pytest.fixture
def connection(server: EmbeddedServer) -> Iterator[ServerConnection]:
    with ServerConnection(server.address) as connection:
        yield connection


def test_engine_and_oracle_agree(server: EmbeddedServer, connection: ServerConnection) -> None:
    run_living(ModelTarget(server.url, server.address, connection), programs=PROGRAMS, seed=SEED)


_FORGET = "redis.call('HDEL', TOLD, name)"
_UNTIL = "redis.call('ZADD', LIVING, now + lasts, worker)"
_LISTED = "'(' .. int(now), '+inf', 'LIMIT', 0, most)"

MUTANTS = [
    Mutant(
        "who is silent is listed for ever", ("living", _LISTED, _LISTED.replace("int(now)", "0"))
    ),
    Mutant("listed 1 ms too long", ("living", _LISTED, _LISTED.replace("'('", "''"))),
    Mutant("silent 1 ms too early", ("alive", _UNTIL, _UNTIL.replace("lasts", "lasts - 1"))),
    Mutant(
        "one that tells again is not alive for longer",
        ("alive", _UNTIL, "redis.call('ZADD', LIVING, 'NX', now + lasts, worker)"),
    ),
    Mutant(
        "every worker lasts as long",
        ("alive", _UNTIL, _UNTIL.replace("lasts", "25000")),
    ),
    Mutant(
        "who has ended stays until it was silent",
        ("gone", "redis.call('ZREM', LIVING, worker)", "redis.call('ZREM', LIVING, '')"),
        ("gone", "redis.call('HDEL', TOLD, worker)", ""),
    ),
    Mutant(
        "what an ended worker said stays", ("gone", "redis.call('HDEL', TOLD, worker)\n", "")
    ),
    Mutant("what a silent worker said stays", ("alive", _FORGET, "")),
    Mutant(
        "any number of workers is known", ("alive", "count - #silent >= most", "false")
    ),
    Mutant("the silent take room", ("alive", "count - #silent >= most", "count >= most")),
    Mutant(
        "one that is known is refused where there are enough",
        ("alive", "not known and count", "count"),
    ),
    Mutant("one worker more than the bound", ("alive", "#silent >= most", "#silent > most")),
    Mutant(
        "any number is listed", ("living", _LISTED, "'(' .. int(now), '+inf')")
    ),
    Mutant("a worker is there since its report", ("alive", "now - age", "now")),
    Mutant("a worker began after its report", ("alive", "now - age", "now + age")),
    Mutant(
        "what a worker said first is shown for ever",
        ("alive", "redis.call('HSET', TOLD, worker,", "redis.call('HSETNX', TOLD, worker,"),
    ),
    Mutant(
        "what another worker said is shown",
        ("living", "reports[i] or ''", "reports[#names + 1 - i] or ''"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_planted_fault_of_a_script_is_found(
    mutant: Mutant, server: EmbeddedServer, connection: ServerConnection
) -> None:
    target = ModelTarget(server.url, server.address, connection, mutant.scripts())
    with pytest.raises(AssertionError) as failure:
        run_living(target, programs=PROGRAMS, seed=SEED, phases=[Phase.generate])
    assert "tell(" in program_of(failure.value)


_TELLING = "towpath.engine.worker_registry", "Workers.tell"
TOLD_TOO_MUCH = [
    PlantedFault(
        "a worker tells all of its queues",
        *_TELLING,
        "doing.queues)[:QUEUES_SHOWN]",
        "doing.queues)[:]",
    ),
    PlantedFault("a worker tells all that it runs", *_TELLING, "[:JOBS_SHOWN]", "[:]"),
    PlantedFault(
        "the jobs that began last are told",
        *_TELLING,
        "key=lambda job: job.since_ms",
        "key=lambda job: -job.since_ms",
    ),
]


@pytest.mark.parametrize("fault", TOLD_TOO_MUCH, ids=str)
def test_a_planted_fault_of_a_heartbeat_is_found(
    fault: PlantedFault, server: EmbeddedServer, connection: ServerConnection
) -> None:
    target = ModelTarget(server.url, server.address, connection)
    with planted(fault), pytest.raises(AssertionError) as failure:
        run_living(target, programs=PROGRAMS, seed=SEED, phases=[Phase.generate])
    assert "tell(" in program_of(failure.value)
