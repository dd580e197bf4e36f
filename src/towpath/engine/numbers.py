"""The numbers of a queue: which there are, and how they are packed in its `meta`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NUMBERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "in": {"tick": "i6", "submitted": "i6"},
        "out": {"token": "i7", "asked_at": "i6", "completed": "i6", "service_ms": "d"},
        "state": dict.fromkeys(("minute", "watched", "awaited", "paused", "trimmed_at"), "i6"),
        "totals": dict.fromkeys(
            (
                *("failed", "died", "cancelled", "reaped", "promoted", "trimmed", "released"),
                *("retried", "deleted", "moved", "replaced", "unhandled"),
            ),
            "i6",
        ),
    }
)
"""Field of `{queue}:meta` -> the numbers in it, each in the form that Lua's struct.pack knows.

A script reads and writes a whole field: submits change `in`, claims and completions change `out`,
`state` is read often and changed seldom. Never add a number to a field: an older release would
write the field back without it. Add a field.
"""

FIELD_OF: Mapping[str, str] = MappingProxyType(
    {name: field for field, names in NUMBERS.items() for name in names}
)


def number_format(field: str) -> str:
    """The format of a field for Lua's struct.pack."""
    return "<" + "".join(NUMBERS[field].values())


def number_bytes(field: str) -> int:
    """The length of a field in bytes."""
    return sum(8 if form == "d" else int(form[1:]) for form in NUMBERS[field].values())
