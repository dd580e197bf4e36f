"""How long this process has been running."""

from __future__ import annotations

import os
import time
from pathlib import Path

from towpath.clock import Duration, seconds

_IMPORTED = time.monotonic()
_START_FIELD = 19
"""Index of the start time (in ticks since the boot) among the fields of `/proc/self/stat` that come
after the program's name."""


def process_age() -> Duration:
    """The time since this process began; without /proc, the time since this import."""
    imported = time.monotonic() - _IMPORTED
    try:
        behind_name = Path("/proc/self/stat").read_text().rpartition(")")[2]
        began = int(behind_name.split()[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return seconds(max(imported, time.clock_gettime(time.CLOCK_BOOTTIME) - began))
    except (OSError, ValueError, LookupError, AttributeError):
        return seconds(imported)
