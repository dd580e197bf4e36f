"""A queue's options as texts, one by one: `keep=1h`, `retry=fixed:30s`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from towpath.clock import Duration
from towpath.durations import parse_duration
from towpath.engine import spelling
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.retry import Exponential, Fixed, Listed, Never, RetryPolicy
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
            return _whole(name, text)
        case _:
            return _retry(text)


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise InvalidOption(name, text, rule="must be a whole number")
    return int(text)


def _lane_policy(text: str) -> LanePolicy:
    if text not in set(LanePolicy):
        raise InvalidOption("lanes", text, rule=f"must be {', '.join(LanePolicy)}")
    return LanePolicy(text)


def _retry(text: str) -> RetryPolicy:
    kind, _, rest = text.partition(":")
    waits = [parse_duration("retry", part) for part in rest.replace(":", ",").split(",") if part]
    match kind, waits:
        case "never", []:
            return Never()
        case "fixed", [every]:
            return Fixed(every)
        case "listed", [_, *_]:
            return Listed(tuple(waits))
        case "exponential", []:
            return Exponential()
        case "exponential", [first]:
            return Exponential(first=first)
        case "exponential", [first, longest]:
            return Exponential(first=first, longest=longest)
        case _:
            rule = "must be exponential[:FIRST[:LONGEST]], fixed:EVERY, listed:WAIT,… or never"
            raise InvalidOption("retry", text, rule=rule)
