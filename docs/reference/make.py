"""Writes the reference pages that can be read off the code: `make docs`."""

import inspect
import logging
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from pkgutil import walk_packages

import towpath
from docs.reference.commands import commands_page, settings_page
from docs.reference.http import http_page
from docs.reference.strings import figures, strings_page
from docs.reference.tables import database_page
from docs.reference.tree import PAGE, architecture_page
from towpath import errors
from towpath.apps.application import applications
from towpath.engine.options import QueueOptions
from towpath.errors import TowpathError
from towpath.files import PUBLIC, replace_file
from towpath.options import sentences_of
from towpath.telemetry import events, measures

HERE = Path(__file__).parent

ERRORS = """# Errors

All derive from `TowpathError`: `code` is stable, `remedy` is the way out, `retry` says whether the
same again can help (`safe`: the outcome is unknown, a repeat with the same job id adds nothing).
"""

ERRORS_OF = """
## {module}

| error | code | when | what to do | retry |
|---|---|---|---|---|
"""

OPTIONS = """# Queue options

Handlers declare `keep`, `retry` and `max_attempts` of their queues;
`engine.queues.declare(queue, keep=…)` declares any of them. A declaration holds if the queue is new
or the option still is what was declared last. What an operator changes (`towpath queues configure`,
`engine.queues.change_options`, `engine.queues.reconfigure`) is in force at once, for everybody, and
stays when workers start; `towpath doctor` shows it, `towpath queues reset` takes it back.

`engine.queues.configure(queue, QueueOptions(…))` insists on its options instead: the first to use a
queue decides, and others are refused.

| option | default | meaning |
|---|---|---|
"""

LOG_EVENTS = """# Log events

Every line that Towpath writes is one of these, with exactly these fields. In a terminal it is
written for people, otherwise as JSON, one object per line: `time` (UTC), `level`, `event`, the
fields, `worker`, and inside of a span `trace_id` and `span_id`; from level warning on also the
`sentence`.
`exception` holds a traceback where there is one. Times are in seconds.

Payloads, results and credentials are never written. The logger is `towpath`, of Python's own
`logging`. Lines of other loggers are written in the same form, with `logger` instead of fields;
those that a handler writes name its `job`, `queue`, `handler` and `attempt` too, in the loop and in
threads. A handler with `processes=` runs in a process of its own, which logs as its module sets up.

| event | level | when | fields |
|---|---|---|---|
"""

LOG_FIELDS = """
## Fields

| field | meaning |
|---|---|
"""

METRICS = """# Metrics

For Prometheus. Labels are the queue and the handler, never a job or a user: the number of series
stays that of your handlers. Counters are those of one process and begin at 0 with it; the gauges
are read from the queues at each scrape.

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
    return [kind for kind in found if issubclass(kind, TowpathError) and kind is not TowpathError]


def _error(kind: type[TowpathError]) -> str:
    told = (f"`{kind.__name__}`", f"`{kind.code}`", _first_line(kind), kind.remedy, str(kind.retry))
    return f"| {' | '.join(told)} |\n"


def options_page() -> str:
    """One row per option of a queue, with its default and its sentence."""
    sentences, defaults = sentences_of(QueueOptions), QueueOptions()
    return OPTIONS + "".join(
        f"| `{name}` | `{getattr(defaults, name)}` | {sentences[name]} |\n"
        for name in QueueOptions.__struct_fields__
    )


def log_events_page() -> str:
    """One row per event, and one per field."""
    rows = [
        f"| `{event.name}` | {logging.getLevelName(event.level).lower()} | {event.sentence} "
        f"| {_code(event.fields)} |\n"
        for event in events.CATALOGUE
    ]
    fields = [f"| `{name}` | {meaning} |\n" for name, meaning in events.FIELDS.items()]
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
    replace_file(HERE / "strings.md", strings_page(), mode=PUBLIC)
    sys.stdout.write(figures() + "\n")
