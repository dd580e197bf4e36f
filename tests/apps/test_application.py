"""The declaration of an application. An invalid one is refused before anything starts."""

from typing import Any

import pytest

from tests.applications import greetings, misfits
from tests.applications.greetings import GreetingsOptions
from tests.applications.greetings.service import NobodyThere
from tests.architecture.sources import ROOT, SOURCE
from towpath.apps import BUILT_IN
from towpath.apps.application import Application, ApplicationInvalid, applications, tables_of
from towpath.console.exits import USAGE, exit_code
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption
from towpath.ledger.ledger import Ledger
from towpath.server.build import ServerSetup, build
from towpath.telemetry.events import LogEvent, LogEvents
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits

HERE = "tests.applications"


def built(*more: Application) -> Any:
    return build(
        ServerSetup(
            engine=Engine("redis://localhost"),
            ledger=Ledger("sqlite:///never-opened.db"),
            limits=ServerLimits(),
            metrics=Metrics(),
            log=Log(),
            version="-",
            applications=(*applications(), *more),
        )
    )


def test_the_built_in_applications_need_no_setting() -> None:
    assert [application.name for application in applications()] == list(BUILT_IN)


def test_nothing_outside_of_an_application_knows_its_error_log_event_or_metric() -> None:
    """One folder and one line: the greetings of `tests/applications` work without an edit in the
    package (`tests/server/test_applications.py`).
    """
    [event] = greetings.LOG_EVENTS.events
    words = (
        NobodyThere.__name__,
        NobodyThere.code,
        event.name,
        *greetings.LOG_EVENTS.fields.values(),
        greetings.GREETED.name,
        GreetingsOptions.__name__,
        greetings.__name__,
    )
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.py")]
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.lua"), *pages, ROOT / "pyproject.toml"]
    texts = {path: path.read_text() for path in files}
    assert [(path, word) for path, text in texts.items() for word in words if word in text] == []


@pytest.mark.parametrize(
    ("place", "application", "named"),
    [
        ("no.such.module:APPLICATION", "", "ModuleNotFoundError: No module named 'no'"),
        ("tests.applications.broken:APPLICATION", "", "RuntimeError: no luck today"),
        (f"{HERE}.misfits:NOWHERE", "", "has no attribute 'NOWHERE'"),
        (f"{HERE}.misfits", "", "MODULE:NAME"),
        (f"{HERE}.misfits:NO_APPLICATION", "", r"\bdict\b"),
        (f"{HERE}.misfits:NO_WORD", "", "'Mis fit'"),
        (f"{HERE}.misfits:NAME_TAKEN", "messages", None),
        (f"{HERE}.misfits:PART_TAKEN", "ledger", None),
        (f"{HERE}.misfits:SETTING_TAKEN", "worker", None),
        (f"{HERE}.misfits:NO_OPTIONS", "", r"towpath\.options\.Options"),
        (f"{HERE}.misfits:QUEUE_TAKEN", "misfit", r"\breviews\.post\b.*\breviews\b"),
        (f"{HERE}.misfits:PREFIX_TAKEN", "misfit", r"messages\*.*\bmessages\b"),
        (f"{HERE}.misfits:NO_QUEUE", "", "'Not a queue'"),
        (f"{HERE}.misfits:ALL_QUEUES", "", "''"),
        (f"{HERE}.misfits:RAW_ELSEWHERE", "", r"\bmails\b"),
        (f"{HERE}.misfits:RAW_UNKNOWN", "", r"\bsteal\b.*\bclaim\b"),
        (f"{HERE}.misfits:CALLS_OF_ANOTHER", "misfit", r"\bcallback\b"),
        (f"{HERE}.misfits:EVENT_OF_ANOTHER", "", r"worker\.started"),
        (f"{HERE}.misfits:FIELD_UNKNOWN", "", r"misfit\.met\b.*\bheight\b"),
        (f"{HERE}.misfits:FIELD_OF_ANOTHER", "", r"\bqueue\b"),
        (f"{HERE}.misfits:METRIC_OF_ANOTHER", "", "towpath_jobs_total.*towpath_misfit_"),
    ],
)
def test_an_invalid_application_is_refused_by_name(
    place: str, application: str, named: str | None
) -> None:
    """*application* is the name in the refusal; the place where the application has none yet."""
    with pytest.raises(ApplicationInvalid, match=named) as refusal:
        applications([place])
    assert refusal.value.application == (application or place)
    assert exit_code(refusal.value) == USAGE


LOG_GREETED = LogEvent("greeting.asked", "A misfit was asked for a greeting.", ())
OTHER_PERSON = LogEvents(
    (LogEvent("misfit.met", "A misfit was met.", ("person",)),), {"person": "Who was met."}
)


@pytest.mark.parametrize(
    ("log_events", "named"),
    [(LogEvents((LOG_GREETED,)), r"greeting\.asked\b"), (OTHER_PERSON, r"\bperson\b")],
)
def test_a_log_event_or_field_of_another_application_is_refused(
    log_events: LogEvents, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    misfit = misfits.application(log_events=log_events)
    monkeypatch.setattr(misfits, "MISFIT", misfit, raising=False)
    with pytest.raises(ApplicationInvalid, match=rf"{named}.*\bgreetings\b") as refusal:
        applications([f"{HERE}.greetings:APPLICATION", f"{HERE}.misfits:MISFIT"])
    assert refusal.value.application == "misfit"


NAMED_IN_REFUSAL = {
    "/api/v1/reviews/{id} belongs to reviews": r"/api/v1/reviews/\{id\} .*\breviews: ",
    "/api/v1/{any} belongs to": r"/api/v1/\{any\} ",
    "/{rest:path} belongs to": r"/\{rest:path\} ",
    "/livez belongs to the server": r"/livez .*\bserver: ",
    "/openapi.json belongs to the server": r"/openapi\.json .*\bserver: ",
    "/api/v1/webhooks/github belongs to the server": r"/api/v1/webhooks/github .*\bserver: ",
    "/api/v1/misfit requires no scope": r"/api/v1/misfit (?!.*BodyRoute)",
    "/api/v1/misfit takes a body": r"/api/v1/misfit .*\broute_class=BodyRoute\b",
    "/api/v1/misfit declares nothing for the audit log": r"/api/v1/misfit .*@audited\b",
    "is not a FastAPI route": r"Route\(path='/api/v1/misfit'",
    "/api/v1/reviews is not one of its own paths": r" /api/v1/reviews ",
    "OPTIONS /api/v1/reviews is not one of its own paths": r" OPTIONS /api/v1/reviews ",
    "its path /api/v1/misfit requires no scope": r"/api/v1/misfit (?!.*BodyRoute)",
    "must begin with misfit/": r"\breviews/github .*\bmisfit/",
    "it registers github twice": r"\bgithub\b",
}
"""The paths and names that the refusal of each declaration has to name, by its key in `misfits`."""


@pytest.mark.parametrize("routes", misfits.ROUTES_REFUSED)
def test_routes_with_a_wrong_path_or_a_missing_declaration_are_refused(routes: str) -> None:
    with pytest.raises(ApplicationInvalid, match=NAMED_IN_REFUSAL[routes]) as refusal:
        built(misfits.with_routes(routes))
    assert refusal.value.application == "misfit"


def test_a_service_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ApplicationInvalid, match="nothing_here"):
        built(misfits.NO_SERVICE)


@pytest.mark.parametrize(
    ("application", "named"),
    [(misfits.NO_TABLES, "NOTHING"), (misfits.OTHER_TABLES, "TABLES_OF_ANOTHER")],
)
def test_tables_that_are_missing_or_belong_to_another_application_are_refused(
    application: Application, named: str
) -> None:
    with pytest.raises(ApplicationInvalid, match=named) as refusal:
        tables_of([application])
    assert refusal.value.application == "misfit"


def test_a_table_that_is_taken_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"misfit.*towpath_jobs"):
        Ledger("sqlite:///never-opened.db", tables=tables_of([misfits.TAKEN_TABLE]))
