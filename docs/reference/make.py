"""Writes the reference pages that can be read off the code: `make docs`."""

import inspect
import logging
from importlib import import_module
from itertools import groupby
from pathlib import Path
from pkgutil import walk_packages

import towpath
from docs.reference.commands import commands_page, settings_page
from docs.reference.http import http_page
from docs.reference.tables import database_page
from docs.reference.tree import PAGE, architecture_page
from towpath import errors
from towpath.apps.application import applications
from towpath.engine.options import QueueOptions
from towpath.engine.spelling import written
from towpath.errors import TowpathError
from towpath.files import PUBLIC, replace_file
from towpath.options import sentences_of
from towpath.telemetry import events, measures

HERE = Path(__file__).parent

ERRORS = """# Errors

All errors derive from `TowpathError`. `code` is stable, `remedy` says what to do, and `retry` says
whether a repeat can help. `safe` means that the outcome is unknown, and that a repeat with the same
job id adds no second job.
"""

ERRORS_OF = """
## {module}

| error | code | when | what to do | retry |
|---|---|---|---|---|
"""

OPTIONS = """# Queue options

Handlers declare `keep`, `retry` and `max_attempts` of their queues;
`engine.queues.declare(queue, keep=…)` declares any option. A declaration applies if the queue is
new, or if nobody has changed the option since it was last declared. Operators change options with
`towpath queues configure`, `engine.queues.change_options` or `engine.queues.reconfigure`. Their
changes apply everywhere at once, and stay when workers start. `towpath doctor` shows such changes;
`towpath queues reset` undoes them.

`engine.queues.configure(queue, QueueOptions(…))` requires its options instead: the first caller
sets the options of the queue, and callers with other options are refused.

These are the defaults of a queue that nobody declared. A handler declares `keep` with its own
default of one hour, and a job that is submitted over HTTP is kept for an hour too.

| option | default | meaning |
|---|---|---|
"""

LOG_EVENTS = """# Log events

Every line that Towpath logs is one of these events, with exactly these fields. In a terminal, lines
are text. Otherwise each line is a JSON object with `time` (UTC), `level`, `event`, the fields,
`worker`, and inside a span `trace_id` and `span_id`. From level warning on it also has `sentence`;
`exception` has the traceback, if there is one. Durations are in seconds.

Payloads, results and credentials are never logged. The logger is `towpath`, of Python's `logging`.
Lines of other loggers have the same form, with `logger` instead of the fields. Lines that a handler
logs also have `job`, `queue`, `handler` and `attempt`. The worker also writes the lines of handlers
with `processes=`, unless the handler's module sets up its own logging.

| event | level | when | fields |
|---|---|---|---|
"""

LOG_FIELDS = """
## Fields

| field | meaning |
|---|---|
"""

METRICS = """# Metrics

Metrics for Prometheus. No label names a job or a user, so the number of series does not grow with
your load. Each process has its own counters, which start at 0 with it. Gauges of queues are read
from the store at each scrape.

| metric | kind | labels | what it counts | which question it answers |
|---|---|---|---|---|
"""


def errors_page() -> str:
    """One table per module, one row per error: those of the engine first, then by their modules."""
    kinds = sorted(
        _errors(), key=lambda kind: (kind.__module__ != errors.__name__, kind.__module__)
    )
    return ERRORS + "".join(
        ERRORS_OF.format(module=f"`{module}`") + "".join(map(_error, found))
        for module, found in groupby(kinds, key=lambda kind: kind.__module__)
    )


def _errors() -> list[type[TowpathError]]:
    """Every error of every module of the package, in the order of its module."""
    found: list[type] = []
    for info in walk_packages(towpath.__path__, "towpath."):
        if not info.name.endswith("__main__"):
            kinds = vars(import_module(info.name)).values()
            found += [
                kind for kind in kinds if inspect.isclass(kind) and kind.__module__ == info.name
            ]
    ours = [kind for kind in found if issubclass(kind, TowpathError) and kind is not TowpathError]
    return [kind for kind in ours if not kind.__name__.startswith("_")]


def _error(kind: type[TowpathError]) -> str:
    told = (f"`{kind.__name__}`", f"`{kind.code}`", _first_line(kind), kind.remedy, str(kind.retry))
    return f"| {' | '.join(told)} |\n"


def options_page() -> str:
    """One row per option of a queue, with its default and its sentence."""
    sentences, defaults = sentences_of(QueueOptions), QueueOptions()
    return OPTIONS + "".join(
        f"| `{name}` | `{written(getattr(defaults, name))}` | {sentences[name]} |\n"
        for name in QueueOptions.__struct_fields__
    )


def log_events_page() -> str:
    """One row per event, and one per field."""
    rows = [
        f"| `{event.name}` | {logging.getLevelName(event.level).lower()} | {event.sentence} "
        f"| {_code(event.fields)} |\n"
        for event in (
            *events.CATALOGUE,
            *(event for app in applications() for event in app.log_events.events),
        )
    ]
    meanings = dict(events.FIELDS)
    for app in applications():
        meanings |= app.log_events.fields
    fields = [f"| `{name}` | {meanings[name]} |\n" for name in sorted(meanings)]
    return "".join([LOG_EVENTS, *rows, LOG_FIELDS, *fields])


def metrics_page() -> str:
    """One row per metric, with its question."""
    return METRICS + "".join(
        f"| `{spec.name}` | {spec.kind} | {_code(spec.labels)} | {spec.sentence} "
        f"| {spec.question} |\n"
        for spec in (*measures.CATALOGUE, *(own for app in applications() for own in app.metrics))
    )


def _code(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


if __name__ == "__main__":
    replace_file(HERE / "errors.md", errors_page(), mode=PUBLIC)
    replace_file(HERE / "queue-options.md", options_page(), mode=PUBLIC)
    replace_file(HERE / "cli.md", commands_page(), mode=PUBLIC)
    replace_file(HERE / "settings.md", settings_page(), mode=PUBLIC)
    replace_file(HERE / "database.md", database_page(), mode=PUBLIC)
    replace_file(HERE / "http-api.md", http_page(), mode=PUBLIC)
    replace_file(HERE / "log-events.md", log_events_page(), mode=PUBLIC)
    replace_file(HERE / "metrics.md", metrics_page(), mode=PUBLIC)
    replace_file(PAGE, architecture_page(), mode=PUBLIC)
