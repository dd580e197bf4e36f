"""Each planted fault makes the model test fail, which shows that the test can fail for this
reason.
"""

from collections.abc import Callable

import pytest
from hypothesis import Phase

from tests.amounts import slow
from tests.faults.planting import PlantedFault, planted
from tests.model.group_mutants import GROUP_MUTANTS, SEARCH_MUTANTS
from tests.model.keyspace import ModelTarget
from tests.model.mutants import DECLARATIONS, MUTANTS, Mutant
from tests.model.run_programs import program_of, run_programs
from tests.model.selector_mutants import (
    FAILURE_MUTANTS,
    FRONT_FIRST,
    FRONT_MUTANTS,
    SELECTOR_MUTANTS,
)
from towpath.embedded import EmbeddedServer, RedisConnection
from towpath.errors import TowpathError

PROGRAMS = 1500
"""At most: nearly all faults are found within 100, and then the others are not made."""
SEED = 3


ALL = [
    *MUTANTS, *FAILURE_MUTANTS, *SELECTOR_MUTANTS, *FRONT_MUTANTS, *GROUP_MUTANTS, *SEARCH_MUTANTS,
]  # fmt: skip


USUAL = {
    "the server's clock though another was given",
    "promoted late by 1 ms",
    "reaped to the end of the queue",
    "a submitted job does not wait for its time",
    "no token check",
    "tokens through tostring",
    "tokens repeat",
    "released to the end of the queue",
    "a dead job is not kept",
    "a renewal does not hold",
    "a refused failure is counted",
    "the lock stays after the lease",
    "a claim overlooks what it made ready",
    "lanes do not take turns",
    "the lane does not go on",
    "a late call is taken",
    "a repeated call is refused by the options of the day",
    "a repeated claim takes new jobs",
    "ids are not looked up",
    "a moved job stays ready",
    "what replaces another needs room",
    "the wish to cancel is lost",
    "a wish to cancel beats the completion",
    "trim leaves the record",
    "a retried job has no attempts left",
    "a paused queue gives jobs",
    "one job too many",
    "a large payload is kept for ever",
    "a batch takes in more than there is room for",
    "a record is read from the wrong byte",
    "what is declared is not kept",
    "the short way keeps nothing",
    "the short way counts no attempt",
    "the short way orders by id text",
    "the shortest way orders by nothing",
    "a claim repeated the short way takes new jobs",
    "an exchange repeated the short way settles again",
    "of the first of all every second one is seen",
    "a worker's limit counts one too few",
    "a group that is empty stays",
    "numbers are not masked",
    "a search finds every dead job",
}
"""One fault in each piece of Lua that has any; `make test-all` plants the others as well."""


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=each.name, marks=() if each.name in USUAL else slow) for each in ALL],
)
def test_a_planted_fault_is_found(
    mutant: Mutant, server: EmbeddedServer, record_property: Callable[[str, object], None]
) -> None:
    scripts = mutant.scripts()
    with RedisConnection(server.address) as connection:
        target = ModelTarget(server.url, server.address, connection, scripts)
        with pytest.raises((AssertionError, TowpathError)) as failure:
            run_programs(target, programs=PROGRAMS, seed=SEED, phases=[Phase.generate])
    program = program_of(failure.value)
    assert "step" in program
    record_property("program", program)
    print(f"{mutant}: {failure.value}\n{program}")  # noqa: T201 -- shown with -rP


def test_a_fault_of_large_claims_is_planted_for_all_claims(server: EmbeddedServer) -> None:
    with RedisConnection(server.address) as connection:
        target = ModelTarget(server.url, server.address, connection, FRONT_FIRST.scripts())
        run_programs(target, programs=30, seed=SEED)


@pytest.mark.parametrize("fault", DECLARATIONS, ids=str)
def test_a_planted_fault_in_a_declaration_is_found(
    fault: PlantedFault, server: EmbeddedServer
) -> None:
    with planted(fault), RedisConnection(server.address) as connection:
        target = ModelTarget(server.url, server.address, connection)
        with pytest.raises(AssertionError) as failure:
            run_programs(target, programs=PROGRAMS, seed=SEED, phases=[Phase.generate])
    assert "declare" in program_of(failure.value)


def test_every_piece_with_faults_has_one_in_each_run() -> None:
    usual = {piece for mutant in ALL if mutant.name in USUAL for piece in mutant.pieces[:1]}
    assert usual == {mutant.pieces[0] for mutant in ALL}
    assert {mutant.name for mutant in ALL} >= USUAL


def test_names_of_faults_differ() -> None:
    names = [mutant.name for mutant in (*ALL, *DECLARATIONS)]
    assert len(names) == len(set(names))
