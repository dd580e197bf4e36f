"""Log lines: `Log.emit` writes an event of the catalogue, `configure` says where and how.

The lines are stdlib logging's records under the logger `towpath`, so that a program which hosts a
worker handles them as it handles its own. `configure` is for whoever owns the process.
"""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from typing import Any, TextIO

from towpath.errors import InvalidOption
from towpath.telemetry.events import COMMON, WARNING, LogEvent
from towpath.telemetry.lines import Form, Line, formatter, shown, trace_of_line

LEVELS = ("debug", "info", "warning", "error", "critical")


class CatalogueMismatch(RuntimeWarning):
    """An event was written with other fields than the catalogue says.

    A warning, because it must not end a worker; in our tests warnings are errors.
    """


class Log:
    """Writes events of the catalogue, with what it is bound to (`worker`) in each line."""

    __slots__ = ("_common", "_logger")

    def __init__(self, name: str = "towpath", **common: str) -> None:
        if not set(common) <= set(COMMON):
            raise InvalidOption("common", sorted(common), rule=f"only {', '.join(COMMON)}")
        self._logger = logging.getLogger(name)
        self._common = {field: shown(field, value) for field, value in common.items()}

    def wants(self, event: LogEvent) -> bool:
        """Whether *event* would be written: ask once per batch where its fields cost something."""
        return self._logger.isEnabledFor(event.level)

    def emit(
        self, event: LogEvent, raised: BaseException | None = None, /, **fields: object
    ) -> None:
        """Write one line with exactly the fields of *event*; half a µs if its level is off.

        Durations are timedeltas or seconds. *raised* adds a traceback, with the exception's own
        words in it: never give it an error that quotes a payload. A field that the catalogue does
        not know is left out; that, and one that lacks, is a CatalogueMismatch.
        """
        if self._logger.isEnabledFor(event.level):
            self._write(event, raised, fields)

    def _write(
        self, event: LogEvent, raised: BaseException | None, fields: dict[str, object]
    ) -> None:
        if fields.keys() != set(event.fields):
            warnings.warn(_mismatch(event, fields), CatalogueMismatch, stacklevel=3)
        line = Line(event=event.name)
        if event.level >= WARNING:
            line["sentence"] = event.sentence  # read at night, by somebody without the catalogue
        for field in event.fields:
            if field in fields:
                line[field] = shown(field, fields[field])
        line.update(self._common, **trace_of_line())
        # Without the caller's place: looking for it takes longer than all the rest, and the
        # event's name already says where.
        triple = None if raised is None else (type(raised), raised, raised.__traceback__)
        record = logging.LogRecord(self._logger.name, event.level, "", 0, line, (), triple)
        if raised is not None:
            # Written out here: a host's own handler would stumble over what is no UTF-8.
            text = "".join(traceback.format_exception(raised)).rstrip("\n")
            record.exc_text = text.encode(errors="backslashreplace").decode()
        self._logger.handle(record)


class Silent(Log):
    """For a part whose trouble somebody else tells."""

    __slots__ = ()

    def wants(self, event: LogEvent) -> bool:
        return False

    def emit(
        self, event: LogEvent, raised: BaseException | None = None, /, **fields: object
    ) -> None:
        """Write nothing."""


def _mismatch(event: LogEvent, fields: dict[str, object]) -> str:
    lacks = ", ".join(sorted(set(event.fields) - set(fields))) or "none"
    unknown = ", ".join(sorted(set(fields) - set(event.fields))) or "none"
    return f"{event.name}: fields that lack: {lacks}; fields that it does not have: {unknown}"


# ── where and how ────────────────────────────────────────────────────────────────────────


class _OurHandler(logging.StreamHandler[Any]):
    """Known by its class, so that configuring twice replaces it and touches nobody else's."""


def configure(*, form: str = Form.AUTO, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all log lines of this process to *stream* (stderr), those of other loggers too.

    Called again, it replaces what it did before. Python's warnings become lines as well, so that
    a stream of JSON stays one. Raises InvalidOption for an unknown form or level.
    """
    if form not in set(Form):
        raise InvalidOption("log format", form, rule=f"one of {', '.join(Form)}")
    if level.lower() not in LEVELS:
        raise InvalidOption("log level", level, rule=f"one of {', '.join(LEVELS)}")
    handler = _OurHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(formatter(Form(form), handler.stream))
    reset()
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(level.upper())
    logging.captureWarnings(capture=True)


def reset() -> None:
    """Undo `configure`; without effect if there was none."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, _OurHandler)]
    for handler in ours:
        root.removeHandler(handler)
    if ours:
        root.setLevel(logging.WARNING)
        logging.captureWarnings(capture=False)
