"""A queue's options as people write them: `1h`, `fixed:30s`, `listed:1s,5s`."""

from __future__ import annotations

from towpath.clock import Duration
from towpath.durations import spelled
from towpath.engine.options import LanePolicy
from towpath.engine.retry import Exponential, Fixed, Listed, Never, RetryPolicy


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
