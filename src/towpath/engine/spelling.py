"""Options as people write them: `1h`, `fixed:30s`, `listed:1s,5s`."""

from __future__ import annotations

from towpath.clock import Duration, parse_duration, spelled
from towpath.engine.options import LanePolicy
from towpath.engine.retry import Exponential, Fixed, Listed, Never, RetryPolicy
from towpath.errors import InvalidOption

POLICIES = "exponential[:FIRST[:LONGEST]], fixed:EVERY, listed:WAIT,WAIT,… or never"


def written(value: Duration | LanePolicy | RetryPolicy | int) -> str | int:
    """One option's value, short and without Python's words; a number stays one."""
    match value:
        case Duration():
            return spelled(value)
        case LanePolicy():
            return value.value
        case int():
            return value
        case _:
            return _retry(value)


def _retry(policy: RetryPolicy) -> str:
    match policy:
        case Exponential():
            return f"exponential:{spelled(policy.first)}:{spelled(policy.longest)}"
        case Fixed():
            return f"fixed:{spelled(policy.every)}"
        case Listed():
            return f"listed:{','.join(spelled(wait) for wait in policy.waits)}"
        case Never():
            return "never"


def read_retry(text: str) -> RetryPolicy:
    """The policy that *text* is. Raises InvalidOption."""
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
            raise InvalidOption("retry", text, rule=f"must be {POLICIES}")
