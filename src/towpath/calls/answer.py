"""What came back from a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """The answer of a receiver, whole. Shown without its content, which belongs in no log."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case; several of one name are joined by commas."""
    body: bytes
    """As it was sent: nothing is decompressed."""

    def __repr__(self) -> str:
        return f"Answer(status={self.status}, {len(self.body)} bytes)"
