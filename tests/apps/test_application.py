"""What an application may be. What can't be is refused before anything starts."""

from typing import Any

import pytest

from tests.applications import misfits
from towpath.apps import BUILT_IN
from towpath.apps.application import Application, ApplicationInvalid, applications, tables_of
from towpath.console.exits import USAGE, exit_code
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption
from towpath.ledger.ledger import Ledger
from towpath.server.build import Parts, build
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits

HERE = "tests.applications"


def built(*more: Application) -> Any:
    return build(
        Parts(
            connect=lambda limits: Engine("redis://localhost", limits=limits),
            ledger=Ledger("sqlite:///never-opened.db"),
            limits=ServerLimits(),
            metrics=Metrics(),
            log=Log(),
            version="-",
            applications=(*applications(), *more),
        )
    )


def test_the_built_in_ones_are_there_without_a_setting() -> None:
    assert [application.name for application in applications()] == list(BUILT_IN)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("no.such.module:APPLICATION", "ModuleNotFoundError: No module named 'no'"),
        ("tests.applications.broken:APPLICATION", "RuntimeError: no luck today"),
        (f"{HERE}.misfits:NOWHERE", "has no attribute 'NOWHERE'"),
        (f"{HERE}.misfits", "is not MODULE:NAME"),
        (f"{HERE}.misfits:NO_APPLICATION", "is a dict, not an Application"),
        (f"{HERE}.misfits:NO_WORD", "must be a word in lower case"),
        (f"{HERE}.misfits:NAME_TAKEN", "another application has this name"),
        (f"{HERE}.misfits:PART_TAKEN", "another part of the server has this name"),
        (f"{HERE}.misfits:SETTING_TAKEN", "another group of settings has this name"),
        (f"{HERE}.misfits:NO_OPTIONS", "its options are not a subclass of towpath.options.Options"),
        (f"{HERE}.misfits:QUEUE_TAKEN", "its queue reviews.post belongs to reviews"),
        (f"{HERE}.misfits:PREFIX_TAKEN", r"its queue messages\* belongs to messages"),
        (f"{HERE}.misfits:NO_QUEUE", "its queue 'Not a queue': "),
        (f"{HERE}.misfits:ALL_QUEUES", "its queue '': "),
        (f"{HERE}.misfits:CALLS_OF_ANOTHER", "callback is a kind of calls of another application"),
        (f"{HERE}.misfits:METRIC_OF_ANOTHER", "must begin with towpath_misfit_"),
    ],
)
def test_one_that_can_t_be_is_refused_with_the_reason(place: str, reason: str) -> None:
    with pytest.raises(ApplicationInvalid, match=reason) as refusal:
        applications([place])
    assert refusal.value.application in (place, "misfit", "messages", "ledger", "worker")
    assert exit_code(refusal.value) == USAGE


@pytest.mark.parametrize("reason", misfits.MOUNTS)
def test_its_paths_are_its_own_and_ask_for_a_scope(reason: str) -> None:
    with pytest.raises(ApplicationInvalid) as refusal:
        built(misfits.mounted(reason))
    assert reason in str(refusal.value)
    assert refusal.value.application == "misfit"


def test_what_it_names_must_be_there() -> None:
    with pytest.raises(ApplicationInvalid, match="nothing_here"):
        built(misfits.NO_SERVICE)


@pytest.mark.parametrize(
    ("application", "reason"),
    [
        (misfits.NO_TABLES, "NOTHING"),
        (misfits.OTHER_TABLES, r"TABLES_OF_ANOTHER is not Tables\('misfit', …\)"),
    ],
)
def test_its_tables_are_its_own(application: Application, reason: str) -> None:
    with pytest.raises(ApplicationInvalid, match=reason):
        tables_of([application])


def test_a_table_that_is_taken_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"misfit.*towpath_jobs"):
        Ledger("sqlite:///never-opened.db", tables=tables_of([misfits.TAKEN_TABLE]))
