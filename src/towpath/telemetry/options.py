"""The options of log lines."""

from __future__ import annotations

from enum import StrEnum

from towpath.options import Options


class LogForm(StrEnum):
    """How lines are written."""

    AUTO = "auto"
    """HUMAN in a terminal, JSON otherwise."""
    HUMAN = "human"
    """Aligned, with colours in a terminal."""
    PLAIN = "plain"
    """Aligned, without colours."""
    JSON = "json"
    """One object per line."""


class Level(StrEnum):
    """How important a line is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class LogOptions(Options, frozen=True, kw_only=True):
    """What a worker says about its work, on stderr."""

    format: LogForm = LogForm.AUTO
    """human, plain (without colours), json, or auto: human in a terminal, JSON otherwise."""
    level: Level = Level.INFO
    """The lowest level that is logged: debug, info, warning, error, critical."""


DEFAULTS = LogOptions()
