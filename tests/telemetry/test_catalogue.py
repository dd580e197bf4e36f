"""The catalogue of log events: unique names, a sentence per event, and documented fields."""

import re

import pytest

from tests.applications.greetings import APPLICATION as GREETINGS
from towpath.apps.application import Application, applications
from towpath.telemetry import events
from towpath.telemetry.events import CATALOGUE, COMMON, FIELDS, LogEvent

PAST = re.compile(
    r"\b(\w+ed|was|were|began|gave|fell|came|took|held|did|ran|could not|raised|ended)\b"
)
NEVER = {"payload", "result", "headers", "url", "password", "token", "value", "args", "lane"}

APPLICATIONS = (*applications(), GREETINGS)
ALL = (*CATALOGUE, *(event for found in APPLICATIONS for event in found.log_events.events))

every_event = pytest.mark.parametrize("event", ALL, ids=lambda event: event.name)
every_application = pytest.mark.parametrize("found", APPLICATIONS, ids=lambda found: found.name)


def test_names_of_events_are_unique() -> None:
    names = [event.name for event in ALL]
    assert sorted(set(names)) == sorted(names)
    assert len(names) > 25


@every_event
def test_an_events_name_is_a_subject_and_what_happened(event: LogEvent) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)*", event.name)


@pytest.mark.parametrize("event", CATALOGUE, ids=lambda event: event.name)
def test_a_constant_has_the_name_of_its_event(event: LogEvent) -> None:
    assert getattr(events, event.name.replace(".", "_").upper()) is event


@every_event
def test_an_events_sentence_says_what_happened(event: LogEvent) -> None:
    first, *rest = event.sentence
    assert first.isupper()
    assert rest[-1] == "."
    assert PAST.search(event.sentence), event.sentence
    assert "\n" not in event.sentence
    assert "|" not in event.sentence, "would break the table of the reference page"


@every_event
def test_an_events_fields_are_documented_and_harmless(event: LogEvent) -> None:
    own = {
        name
        for found in APPLICATIONS
        if event in found.log_events.events
        for name in found.log_events.fields
    }
    assert set(event.fields) <= {*FIELDS, *own}
    assert len(set(event.fields)) == len(event.fields)
    assert not set(event.fields) & NEVER
    assert not set(event.fields) & set(COMMON), "what a Log is bound to is in every line anyway"


def test_every_field_is_used_and_says_what_it_means() -> None:
    used = {field for event in CATALOGUE for field in event.fields} | set(COMMON)
    assert set(FIELDS) == used
    assert list(FIELDS) == sorted(FIELDS)
    assert [field for field, meaning in FIELDS.items() if not meaning.endswith(".")] == []


@every_application
def test_every_field_of_an_application_is_used_and_says_what_it_means(found: Application) -> None:
    fields = found.log_events.fields
    assert set(fields) <= {field for event in found.log_events.events for field in event.fields}
    assert list(fields) == sorted(fields)
    assert [name for name, meaning in fields.items() if not meaning.endswith(".")] == []


def test_an_event_that_needs_an_operator_is_at_least_a_warning() -> None:
    quiet = {event.name for event in ALL if event.level < events.WARNING}
    loud = {"dead", "failed", "lost", "invalid", "not_found", "unreachable", "timed_out", "died"}
    assert {name for name in quiet if name.partition(".")[2] in loud} == set()
