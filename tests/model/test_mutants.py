"""Each planted fault turns the model red: it can fail, and for these reasons it does."""

from collections.abc import Callable

import pytest
from hypothesis import Phase

from tests.faults.planting import PlantedFault, planted
from tests.model.group_mutants import GROUP_MUTANTS, SEARCH_MUTANTS
from tests.model.keyspace import ModelTarget
from tests.model.mutants import DECLARATIONS, MUTANTS, Mutant
from tests.model.runs import program_of, run_programs
from tests.model.selector_mutants import (
    FAILURE_MUTANTS,
    FRONT_FIRST,
    FRONT_MUTANTS,
    SELECTOR_MUTANTS,
)
from towpath.embedded import EmbeddedServer, ServerConnection
from towpath.errors import TowpathError

PROGRAMS = 1500
"""At most: nearly all faults are found within 100, and then the others are not made."""
SEED = 3


ALL = [
    *MUTANTS, *FAILURE_MUTANTS, *SELECTOR_MUTANTS, *FRONT_MUTANTS, *GROUP_MUTANTS, *SEARCH_MUTANTS,
]  # fmt: skip


@pytest.mark.timeout(600)  # some are found late, and a busy machine makes few programs a second
@pytest.mark.parametrize("mutant", ALL, ids=str)
def test_fault_is_found(
    mutant: Mutant, server: EmbeddedServer, record_property: Callable[[str, object], None]
) -> None:
    scripts = mutant.scripts()
    with ServerConnection(server.address) as connection:
        target = ModelTarget(server.url, server.address, connection, scripts)
        with pytest.raises((AssertionError, TowpathError)) as failure:
            run_programs(target, programs=PROGRAMS, seed=SEED, phases=[Phase.generate])
    program = program_of(failure.value)
    assert "step" in program
    record_property("program", program)
    print(f"{mutant}: {failure.value}\n{program}")  # noqa: T201 -- shown with -rP


def test_what_only_large_claims_do_is_right_for_all(server: EmbeddedServer) -> None:
    with ServerConnection(server.address) as connection:
        target = ModelTarget(server.url, server.address, connection, FRONT_FIRST.scripts())
        run_programs(target, programs=30, seed=SEED)


@pytest.mark.parametrize("fault", DECLARATIONS, ids=str)
def test_fault_of_declarations_is_found(fault: PlantedFault, server: EmbeddedServer) -> None:
    with planted(fault), ServerConnection(server.address) as connection:
        target = ModelTarget(server.url, server.address, connection)
        with pytest.raises(AssertionError) as failure:
            run_programs(target, programs=PROGRAMS, seed=SEED, phases=[Phase.generate])
    assert "declare" in program_of(failure.value)


def test_names_differ() -> None:
    names = [mutant.name for mutant in (*ALL, *DECLARATIONS)]
    assert len(names) == len(set(names))
