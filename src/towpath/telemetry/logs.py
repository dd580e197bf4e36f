"""Log lines: `Log.emit` writes an event of the catalogue, `configure` sets the format and stream.

Events are records of the standard library's logger `towpath`, so that a program that runs a worker
handles them like its own. `configure` is for programs that own their process.
"""

from __future__ import annotations

import logging
import re
import select
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from types import FunctionType
from typing import Any, NamedTuple, TextIO, cast

import msgspec

from towpath.clock import wall_ns
from towpath.errors import InvalidOption
from towpath.telemetry import traces
from towpath.telemetry.events import COMMON, WARNING, LogEvent
from towpath.telemetry.options import DEFAULTS, Level, LogForm, LogOptions

LONGEST = 1_000
"""Maximum number of characters of one text in a line; the rest is replaced by '…'."""
_LONGEST_BLOCK = 20_000
_BLOCKS = {"exception", "stack"}

NAMES = frozenset({"job", "queue", "queues", "handler", "worker", "schedule"})
"""Fields that are names: they may look like `user:word@place`, and people search for them."""

_HIDDEN = "***"
# Greedy up to the last '@', because a password may contain one. Rather hide too much.
_IN_URL = re.compile(r"(?<=://)\S*@")
_BEFORE_HOST = re.compile(r"[^\s:@/'\"=]*:(?!//)[^\s@]+@(?=[\w.\[-])")
_NAMED = re.compile(r"(?i)((?:password|passwd|secret)[\"']?\s*[=:]\s*)(?!\*\*\*)[^\s&,;]+")
_QUOTED = re.compile(r"[ \t=\r\n\"']")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class JobLine(NamedTuple):
    """The job that a handler's own log lines are about."""

    job: str
    queue: str
    handler: str
    attempt: int


current_job: ContextVar[JobLine | None] = ContextVar("towpath_current_job", default=None)
"""Set while a handler runs, so that the lines of its own loggers have the job's fields."""


# ── values ───────────────────────────────────────────────────────────────────────────────


def scrub(text: str, *, name: bool = False) -> str:
    """*text* without credentials: in URLs, after `password=`, and, unless a *name*, bare ones."""
    if "@" in text:
        text = _IN_URL.sub(f"{_HIDDEN}@", text)
        if not name:
            text = _BEFORE_HOST.sub(f"{_HIDDEN}@", text)
    return _NAMED.sub(rf"\1{_HIDDEN}", text) if "=" in text or ":" in text else text


def shown(field: str, value: object) -> Any:
    """*value* for a log line: numbers, times in seconds, scrubbed texts of bounded length.

    Of other values only the type is shown, so that a payload in a field is never written.
    """
    if isinstance(value, str):
        return _text(value, name=field in NAMES)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, (tuple, list)):
        return [shown(field, element) for element in cast("list[object]", value[:100])]
    return _shown_otherwise(value)


def _shown_otherwise(value: object) -> float | str:
    match value:
        case timedelta():
            return round(value.total_seconds(), 6)
        case datetime():
            return value.isoformat()
        case BaseException():
            return _text(str(value))
        case _:
            return f"<{type(value).__name__}>"


def _text(value: str, *, name: bool = False, longest: int = LONGEST) -> str:
    if value.isalnum() and value.isascii() and len(value) <= longest:
        return value  # as most ids and names are
    # Cut after scrubbing, because half a URL would not be recognized. Cut to a multiple first, so
    # that an enormous text takes no longer than a long one.
    text = value if len(value) <= 8 * longest else value[: 8 * longest]
    text = scrub(text, name=name)
    if not text.isascii():
        text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def one_line(text: str) -> str:
    """*text* with control characters escaped, so that it can't forge a line or a colour."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class LogLine(dict[str, Any]):
    """The fields of one event. Its text is one line, for formatters that are not ours."""

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in self.items() if key != "event"]
        return one_line(" ".join([self["event"], *words]))


# ── lines ────────────────────────────────────────────────────────────────────────────────


class Formatter(logging.Formatter):
    """Formats events and lines of other loggers in the same way.

    structlog's own formatter copies every record first and takes 10 µs longer, so only its
    renderer is used.
    """

    def __init__(self, render: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._render = render

    def format_lines(self, level: int, lines: Sequence[LogLine]) -> list[str]:
        """Format *lines* of one level, with the current time."""
        head = {"time": _time(wall_ns() / 1e9), "level": logging.getLevelName(level).lower()}
        return [self._render(head | line) for line in lines]

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": _time(record.created), "level": record.levelname.lower()}
        message = record.msg
        line |= message if isinstance(message, LogLine) else _fields_of_record(record)
        if record.exc_info is not None and record.exc_info[1] is not None:
            line["exception"] = _block("".join(traceback.format_exception(record.exc_info[1])))
        if record.stack_info is not None:
            line["stack"] = _block(record.stack_info)
        return self._render(line)


def formatter(form: LogForm, stream: TextIO) -> Formatter:
    """The formatter for lines that go to *stream*."""
    in_terminal = stream.isatty()
    if form is LogForm.JSON or (form is LogForm.AUTO and not in_terminal):
        return Formatter(_as_json)
    return Formatter(_human(colours=in_terminal and form is not LogForm.PLAIN))


_encode = msgspec.json.Encoder().encode


def _as_json(line: dict[str, Any]) -> str:
    text = _encode(line).decode()
    # JSON allows U+2028 and U+0085 unescaped, but some readers end a line there.
    return text if text.isascii() else _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _human(*, colours: bool) -> Callable[[dict[str, Any]], str]:
    # Imported here: it takes 100 ms, and only a process at a terminal needs it.
    from structlog.dev import ConsoleRenderer  # noqa: PLC0415 -- see above

    # Pass tracebacks as text: structlog would print local variables, which may hold payloads.
    console = ConsoleRenderer(
        colors=colours, timestamp_key="time", sort_keys=False, pad_event_to=18
    )
    return lambda line: console(
        None, "", {key: _format_for_terminal(key, value) for key, value in line.items()}
    )


def trace_of_line() -> dict[str, str]:
    """The fields of the current trace for a line; empty outside of a span."""
    ids = traces.current_ids()
    return {} if ids is None else {"trace_id": ids[0], "span_id": ids[1]}


def _fields_of_record(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a line of another logger: scrubbed, with the job that is running."""
    job = current_job.get()
    about = {} if job is None else job._asdict()
    text = _text(record.getMessage())
    return {"event": text, "logger": record.name} | about | trace_of_line()


def _time(created: float) -> str:
    at = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")
    return at[:-6] + "Z"


def _block(text: str) -> str:
    return _text(text.rstrip(), longest=_LONGEST_BLOCK)


def _format_for_terminal(key: str, value: object) -> object:
    """*value* for the terminal: on one line, except for blocks."""
    if isinstance(value, list):
        value = ",".join(str(element) for element in cast("list[object]", value))
    if not isinstance(value, str):
        return value
    if key in _BLOCKS:
        # Indented, so that no line of a message looks like a line of the log.
        return "\n".join(f"    {one_line(line)}" for line in value.split("\n"))
    # The renderer itself quotes and escapes a value with a space or a quote.
    return value if key != "event" and _QUOTED.search(value) else one_line(value)


class CatalogueMismatch(RuntimeWarning):
    """An event was written with other fields than the catalogue declares.

    A warning, because it must not end a worker. In the tests, warnings are errors.
    """


class Log:
    """Writes events of the catalogue, with common fields (`worker`) in each line."""

    __slots__ = ("_common", "_logger")

    def __init__(self, name: str = "towpath", **common: str) -> None:
        if not set(common) <= set(COMMON):
            raise InvalidOption("common", sorted(common), rule=f"only {', '.join(COMMON)}")
        self._logger = logging.getLogger(name)
        self._common = {field: shown(field, value) for field, value in common.items()}

    def wants(self, event: LogEvent) -> bool:
        """Whether *event* would be written. Ask once per batch if its fields are expensive."""
        return self._logger.isEnabledFor(event.level)

    def emit(
        self, event: LogEvent, raised: BaseException | None = None, /, **fields: object
    ) -> None:
        """Write one line with exactly the fields of *event*. Takes half a µs if its level is off.

        Durations are timedeltas or seconds. *raised* adds a traceback with the text of the
        exception: never pass an error that quotes a payload. Unknown fields are left out; unknown
        and missing fields cause a CatalogueMismatch.
        """
        if self._logger.isEnabledFor(event.level):
            line = self._line(event, fields)
            line.update(self._common, **trace_of_line())
            self._handle(event, line, raised)

    def emit_each(self, event: LogEvent, each: Sequence[Mapping[str, object]]) -> None:
        """Write a line for each mapping of fields, like `emit`. A line costs a third of that if all
        lines only go to the stream of `configure`.
        """
        if not each or not self._logger.isEnabledFor(event.level):
            return
        common = self._common | trace_of_line()
        lines = [self._line(event, fields) for fields in each]
        for line in lines:
            line.update(common)
        if (only := _sole_handler(self._logger)) is not None:
            only.write_lines(event.level, lines)
        else:
            for line in lines:
                self._handle(event, line, None)

    def _line(self, event: LogEvent, fields: Mapping[str, object]) -> LogLine:
        if tuple(fields) != event.fields and set(fields) != set(event.fields):
            warnings.warn(_mismatch(event, fields), CatalogueMismatch, stacklevel=3)
        line = LogLine(event=event.name)
        if event.level >= WARNING:
            line["sentence"] = event.sentence  # explains the event without the catalogue
        for field in event.fields:
            if field in fields:
                line[field] = shown(field, fields[field])
        return line

    def _handle(self, event: LogEvent, line: LogLine, raised: BaseException | None) -> None:
        # Without the caller's place: finding it takes longer than the rest, and the event's name
        # already says where.
        triple = None if raised is None else (type(raised), raised, raised.__traceback__)
        record = logging.LogRecord(self._logger.name, event.level, "", 0, line, (), triple)
        if raised is not None:
            # Formatted here, because another handler would fail on text that is not UTF-8.
            text = "".join(traceback.format_exception(raised)).rstrip("\n")
            record.exc_text = text.encode(errors="backslashreplace").decode()
        self._logger.handle(record)


class Silent(Log):
    """A log that writes nothing, for parts whose caller reports their errors."""

    __slots__ = ()

    def wants(self, event: LogEvent) -> bool:
        return False

    def emit(
        self, event: LogEvent, raised: BaseException | None = None, /, **fields: object
    ) -> None:
        """Write nothing."""

    def emit_each(self, event: LogEvent, each: Sequence[Mapping[str, object]]) -> None:
        """Write nothing."""


def _mismatch(event: LogEvent, fields: Mapping[str, object]) -> str:
    lacks = ", ".join(sorted(set(event.fields) - set(fields))) or "none"
    unknown = ", ".join(sorted(set(fields) - set(event.fields))) or "none"
    return f"{event.name}: missing fields: {lacks}; unknown fields: {unknown}"


# ── configuration ────────────────────────────────────────────────────────────────────────


class _ConfiguredHandler(logging.StreamHandler[Any]):
    """The handler of `configure`. Its class tells it from other handlers, so that a second
    `configure` replaces only this one.
    """

    def write_lines(self, level: int, lines: Sequence[LogLine]) -> None:
        """Write lines without log records, with few writes to the stream."""
        with self.lock or nullcontext():
            try:
                ours = cast("Formatter", self.formatter)
                for part in _parts(ours.format_lines(level, lines), ending=self.terminator):
                    self.stream.write(part)
                    self.flush()
            except Exception:  # noqa: BLE001 -- as logging does: a closed stream must not end the program
                record = logging.LogRecord("towpath", level, "", 0, lines[0], (), None)
                self.handleError(record)


_PIPE_BUF: int = getattr(select, "PIPE_BUF", 512)
"""Maximum size of a write to a pipe that is not interleaved with writes of other processes."""


def _parts(lines: Iterable[str], *, ending: str) -> Iterator[str]:
    """Joins whole lines up to the size of an atomic write to a pipe. The processes of a worker
    share a pipe, and the write of another process may split a longer one.
    """
    part, size = list[str](), 0
    for line in lines:
        length = len(line if line.isascii() else line.encode(errors="replace")) + len(ending)
        if part and size + length > _PIPE_BUF:
            yield "".join(part)
            part, size = [], 0
        part.append(line + ending)
        size += length
    yield "".join(part)


def _sole_handler(logger: logging.Logger) -> _ConfiguredHandler | None:
    """The handler of `configure`, if it is the only one that gets the lines of *logger*, and no
    filter or subclass could change them.
    """
    if logger.filters or not _is_of_logging(type(logger).callHandlers):
        return None
    handlers: list[logging.Handler] = []
    above: logging.Logger | None = logger
    while above is not None:
        handlers += above.handlers
        above = above.parent if above.propagate else None
    match handlers:
        case [_ConfiguredHandler() as only] if (
            not only.filters
            and only.level == logging.NOTSET
            and isinstance(only.formatter, Formatter)
            and _is_of_logging(type(only).handle)
        ):
            return only
        case _:
            return None


def _is_of_logging(method: Callable[..., object]) -> bool:
    """Whether *method* is logging's own function. Libraries that collect logs replace it, and their
    wrapper may have the same name and module.
    """
    return isinstance(method, FunctionType) and method.__globals__ is logging.__dict__


def configure(
    *, form: str = DEFAULTS.format, level: str = DEFAULTS.level, stream: TextIO | None = None
) -> None:
    """Send all log lines of this process, also of other loggers, to *stream* (default: stderr).

    Another call replaces the one before. Python's warnings become lines, too, so that a stream of
    JSON stays one. Raises InvalidOption for an unknown form or level.
    """
    LogOptions(format=cast("LogForm", form), level=cast("Level", level.lower()))
    handler = _ConfiguredHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(formatter(LogForm(form), handler.stream))
    reset()
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(level.upper())
    logging.captureWarnings(capture=True)


def reset() -> None:
    """Undo `configure`. Has no effect if it was not called."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, _ConfiguredHandler)]
    for handler in ours:
        root.removeHandler(handler)
    if ours:
        root.setLevel(logging.WARNING)
        logging.captureWarnings(capture=False)
