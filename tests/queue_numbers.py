"""A queue's numbers as Redis has them, read and changed without the engine."""

import struct
from collections.abc import Callable
from typing import Any

from towpath.engine.numbers import FIELD_OF, NUMBERS


def unpacked(field: str, stored: bytes | None) -> dict[str, float]:
    """The numbers of a field; zeros for a missing one."""
    rest, found = stored or bytes(100), dict[str, float]()
    for name, form in NUMBERS[field].items():
        size = 8 if form == "d" else int(form[1:])
        part, rest = rest[:size], rest[size:]
        whole = int.from_bytes(part, "little", signed=True)
        found[name] = struct.unpack("<d", part)[0] if form == "d" else whole
    return found


def packed(field: str, numbers: dict[str, float]) -> bytes:
    """The field with these numbers."""
    return b"".join(
        struct.pack("<d", numbers[name])
        if form == "d"
        else int(numbers[name]).to_bytes(int(form[1:]), "little", signed=True)
        for name, form in NUMBERS[field].items()
    )


def changed(stored: bytes | None, **numbers: float) -> tuple[str, bytes]:
    """The field of these numbers, which must all be in one, and its contents after the change."""
    [field] = {FIELD_OF[name] for name in numbers}
    return field, packed(field, unpacked(field, stored) | numbers)


def number(ask: Callable[..., Any], meta: str, name: str) -> float:
    """One of a queue's numbers; 0 if the queue does not exist."""
    field = FIELD_OF[name]
    return unpacked(field, ask("HGET", meta, field))[name]


def set_numbers(ask: Callable[..., Any], meta: str, **numbers: float) -> None:
    """Changes some of a queue's numbers, all of one field."""
    field = FIELD_OF[next(iter(numbers))]
    ask("HSET", meta, *changed(ask("HGET", meta, field), **numbers))
