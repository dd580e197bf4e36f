"""The kinds of fields of a job: how each is checked, stored with the job, and read from there.

A kind knows nothing of HTTP and the command line: each of them has a form of its own per kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from towpath.clock import (
    ZERO,
    Duration,
    DurationLike,
    duration_ms,
    instant,
    instant_ms,
    milliseconds,
)
from towpath.engine.check import integer
from towpath.engine.retry import RetryPolicy, retry_policy
from towpath.errors import InvalidOption

LARGEST_HEADERS = 4096
_HEADER = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_decode_retry = msgspec.json.Decoder(RetryPolicy).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class Number(NamedTuple):
    """A whole number in a range."""

    least: int
    most: int

    def kept(self, name: str, value: int) -> int:
        """*value* in its stored form. Raises InvalidOption."""
        return integer(name, value, self.least, self.most)

    def read(self, kept: int) -> int:
        """The caller's value of a stored one. May raise MsgspecError or InvalidOption."""
        return int(kept)


class Span(NamedTuple):
    """A duration, stored in ms."""

    least: Duration = ZERO

    def kept(self, name: str, value: DurationLike) -> int:
        return duration_ms(name, value, least=self.least)

    def read(self, kept: int) -> Duration:
        return milliseconds(kept)


class Moment(NamedTuple):
    """An instant, stored in ms."""

    def kept(self, name: str, value: datetime) -> int:
        return instant_ms(name, value)

    def read(self, kept: int) -> datetime:
        return instant(kept)


class Text(NamedTuple):
    """Text. *check* returns its stored form, or raises InvalidOption."""

    check: Callable[[str], str]

    def kept(self, name: str, value: str) -> str:
        return self.check(value)

    def read(self, kept: bytes) -> str:
        return kept.decode()


class Policy(NamedTuple):
    """A retry policy, stored as JSON."""

    def kept(self, name: str, value: RetryPolicy) -> bytes:
        return msgspec.json.encode(retry_policy(value))

    def read(self, kept: bytes) -> RetryPolicy:
        return _decode_retry(kept)


class Pairs(NamedTuple):
    """Texts by name, stored as JSON."""

    def kept(self, name: str, value: Mapping[str, str]) -> bytes:
        if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption(name, value, rule="must map names to texts")
        for key, text in value.items():
            if not isinstance(text, str) or not isinstance(key, str) or not _HEADER.fullmatch(key):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
                rule = "must be text under a name of a-z, 0-9, dot, dash and underscore"
                raise InvalidOption(f"{name}[{key!r}]", text, rule=rule)
        packed = msgspec.json.encode(dict(value))
        if len(packed) > LARGEST_HEADERS:
            raise InvalidOption(name, f"{len(packed)} bytes", rule=f"at most {LARGEST_HEADERS}")
        return packed

    def read(self, kept: bytes) -> dict[str, str]:
        return _decode_headers(kept)


Kind = Number | Span | Moment | Text | Policy | Pairs


class JobField(NamedTuple):
    """One field of a job, as declared."""

    kind: Any
    """A Kind. Its type is Any, because it takes unchecked values of callers."""
    about: str
    """A sentence for help texts and docs."""
    may_be_none: bool


def declared(options: type) -> dict[str, JobField]:
    """The fields of a TypedDict whose annotations have the kind and a sentence."""
    fields: dict[str, JobField] = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        kind, about = hint.__metadata__
        fields[name] = JobField(kind, about, type(None) in get_args(hint.__origin__))
    return fields
