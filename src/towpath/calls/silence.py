"""The HTTP library logs what it receives, at level debug; of our calls it shall not.

An answer's headers hold cookies, and a receiver may send back what it was sent. The level of its
loggers is the host program's to choose, so only the lines of our own calls are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_LOGGERS = ("httpcore.connection", "httpcore.http11")
_calling: ContextVar[bool] = ContextVar("towpath_calling", default=False)


def _not_ours(record: logging.LogRecord) -> bool:
    return not _calling.get()


@contextmanager
def silence() -> Generator[None]:
    """Until the end of the block this task's calls leave no lines of the library."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_not_ours)  # without effect the second time
    token = _calling.set(True)
    try:
        yield
    finally:
        _calling.reset(token)
