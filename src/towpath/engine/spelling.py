"""Options as people write them: `1h`, `fixed:30s`, `listed:1s,5s`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from towpath.clock import Duration, format_duration, parse_duration
from towpath.engine.retry import Exponential, Fixed, Listed, Never, RetryPolicy
from towpath.errors import InvalidOption

DEFAULT = "default"
"""The word on the command line for an option that is not decided."""
POLICIES = (
    "exponential[:FIRST[:LONGEST[:FACTOR[:JITTER]]]], fixed:EVERY, listed:WAIT,WAIT,… or never"
)


def written(value: Duration | StrEnum | RetryPolicy | int | None) -> str | int:
    """The value of an option as short text; a number stays a number."""
    match value:
        case Duration():
            return format_duration(value)
        case StrEnum():
            return value.value
        case int():
            return value
        case None:
            return DEFAULT
        case _:
            return _write_retry(value)


def _write_retry(policy: RetryPolicy) -> str:
    usual = Exponential()
    match policy:
        case Exponential():
            words = [format_duration(policy.first), format_duration(policy.longest)]
            if (policy.factor, policy.jitter) != (usual.factor, usual.jitter):
                words += [f"{policy.factor:g}", f"{policy.jitter:g}"]
            return ":".join(["exponential", *words])
        case Fixed():
            return f"fixed:{format_duration(policy.every)}"
        case Listed():
            return f"listed:{','.join(format_duration(wait) for wait in policy.waits)}"
        case Never():
            return "never"


def read_retry(text: str) -> RetryPolicy:
    """The policy that *text* describes. Raises InvalidOption."""
    kind, _, rest = text.partition(":")
    words = [part for part in rest.replace(":", ",").split(",") if part]
    match kind, words:
        case "never", []:
            return Never()
        case "fixed", [every]:
            return Fixed(_read_wait(every))
        case "listed", [_, *_]:
            return Listed(tuple(map(_read_wait, words)))
        case "exponential", _ if len(words) <= len(_EXPONENTIAL):
            given = zip(_EXPONENTIAL.items(), words, strict=False)
            return Exponential(**{name: read(word) for (name, read), word in given})
        case _:
            raise InvalidOption("retry", text, rule=f"must be {POLICIES}")


def _read_wait(word: str) -> Duration:
    return parse_duration("retry", word)


def _read_number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InvalidOption("retry", word, rule="must be a number") from None


_EXPONENTIAL: dict[str, Callable[[str], Any]] = {
    "first": _read_wait,
    "longest": _read_wait,
    "factor": _read_number,
    "jitter": _read_number,
}
