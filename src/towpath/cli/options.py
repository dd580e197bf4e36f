"""A queue's options as texts, one by one: `keep=1h`, `retry=fixed:30s`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from towpath.clock import Duration, parse_duration
from towpath.engine import spelling
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.errors import InvalidOption


def written(options: QueueOptions) -> dict[str, Any]:
    """Every option as `changed` reads it; numbers stay numbers."""
    return {name: spelling.written(getattr(options, name)) for name in options.__struct_fields__}


def changed(stored: QueueOptions, texts: Mapping[str, str]) -> QueueOptions:
    """*stored* with these options instead. Raises InvalidOption."""
    values = {name: _value(name, text) for name, text in texts.items()}
    return msgspec.structs.replace(stored, **values)


def _value(name: str, text: str) -> Any:
    fields = QueueOptions.__struct_fields__
    if name not in fields:
        near = difflib.get_close_matches(name, fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
        raise InvalidOption(name, text, rule=f"is no option of a queue; {hint}")
    match getattr(QueueOptions(), name):
        case Duration():
            return parse_duration(name, text)
        case LanePolicy():
            return _lane_policy(text)
        case int():
            return whole_number(name, text)
        case _:
            return spelling.read_retry(text)


def whole_number(name: str, text: str) -> int:
    """The number that *text* is. Raises InvalidOption."""
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise InvalidOption(name, text, rule="must be a whole number")
    return int(text)


def _lane_policy(text: str) -> LanePolicy:
    if text not in set(LanePolicy):
        raise InvalidOption("lanes", text, rule=f"must be {', '.join(LanePolicy)}")
    return LanePolicy(text)
