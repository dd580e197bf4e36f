"""Runs programs: how many, from which seed; and reports a failed one."""

from __future__ import annotations

import re
from collections.abc import Collection

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.keyspace import ModelTarget
from tests.model.machine import EngineAgainstOracle
from towpath.engine.script import Scripts

STEPS = 40
ROUND = 10
"""Programs in one run of hypothesis. After ten it would begin to repeat parts of those it has:
five of six would be copies with small changes, and a fault would be found ten times later."""
_PROGRAM = re.compile(r"^state = .*^state.teardown\(\)", re.MULTILINE | re.DOTALL)


def run_programs(
    target: ModelTarget,
    *,
    programs: int,
    seed: int,
    phases: Collection[Phase] = (Phase.generate, Phase.shrink),
) -> None:
    """Runs that many random programs; raises the error of the first one that fails, with its steps
    in a note.
    """
    chosen = chosen_settings(ROUND, phases)
    # A reply that is lost on purpose must be that of the call, not the one that the script is
    # unknown.
    for script in (target.scripts or Scripts()).values():
        target.connection.ask("SCRIPT", "LOAD", script.source)
    for number in range(-(-programs // ROUND)):
        run_state_machine_as_test(_machine(target, seed + number), settings=chosen)


def chosen_settings(programs: int, phases: Collection[Phase]) -> settings:
    """The settings with which hypothesis runs that many programs."""
    return settings(
        max_examples=programs,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=True,
        report_multiple_bugs=False,
        phases=phases,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )


def _machine(target: ModelTarget, seed: int) -> type[EngineAgainstOracle]:
    class Program(EngineAgainstOracle):
        pass

    Program.target = target
    Program.__name__ = EngineAgainstOracle.__name__
    return hypothesis.seed(seed)(Program)


def program_of(error: BaseException) -> str:
    """The failed program, as hypothesis notes it."""
    notes = "\n".join(getattr(error, "__notes__", []))
    found = _PROGRAM.search(notes)
    return found.group() if found else notes
