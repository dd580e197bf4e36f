"""A figure: the measured value, its target, and whether that was reached."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from statistics import median

import msgspec


class Bound(StrEnum):
    """How a figure is compared with its target."""

    AT_LEAST = ">="
    AT_MOST = "<="
    BELOW = "<"

    def holds(self, value: float, number: float) -> bool:
        match self:
            case Bound.AT_LEAST:
                return value >= number
            case Bound.AT_MOST:
                return value <= number
            case Bound.BELOW:
                return value < number


class Target(msgspec.Struct, frozen=True):
    """A target: a number, or (*times*) a multiple of another value of the same run."""

    sense: Bound
    number: float
    times: str = ""

    def said(self, unit: str) -> str:
        return f"{self.sense} {self.number:g} {f'x {self.times}' if self.times else unit}".strip()


def at_least(number: float, times: str = "") -> Target:
    return Target(Bound.AT_LEAST, number, times)


def at_most(number: float, times: str = "") -> Target:
    return Target(Bound.AT_MOST, number, times)


def below(number: float) -> Target:
    return Target(Bound.BELOW, number)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. A figure without a target is there for comparison."""

    name: str
    what: str
    unit: str
    value: float
    """The median of the rounds."""
    low: float
    high: float
    rounds: int
    ratio: float | None = None
    """To the target's number; or to what is beside it, the median of the rounds' own ratios."""
    beside: str = ""
    beside_value: float | None = None
    target: str = ""
    reached: bool | None = None
    bound: str = ""
    """What bounds it, in measured facts: printed where the target is not reached."""


class Reference(msgspec.Struct, frozen=True):
    """Another value, measured in the same rounds."""

    what: str
    rounds: Sequence[float]


def measured(
    name: str,
    what: str,
    unit: str,
    rounds: Sequence[float],
    target: Target | None = None,
    *,
    beside: Reference | None = None,
    bound: str = "",
) -> Figure:
    """A figure from one value per round, compared with its target."""
    value = median(rounds)
    ratio = _ratio(rounds, target, beside)
    return Figure(
        name=name,
        what=what,
        unit=unit,
        value=value,
        low=min(rounds),
        high=max(rounds),
        rounds=len(rounds),
        ratio=ratio,
        beside=beside.what if beside else "",
        beside_value=median(beside.rounds) if beside else None,
        target=target.said(unit) if target else "",
        reached=_reached(value, ratio, target),
        bound=bound,
    )


def not_measured(name: str, what: str, unit: str, *, why: str) -> Figure:
    """A figure that could not be measured on this machine, with the reason."""
    none = float("nan")
    return Figure(
        name=name, what=what, unit=unit, value=none, low=none, high=none, rounds=0, bound=why
    )


def _ratio(
    rounds: Sequence[float], target: Target | None, beside: Reference | None
) -> float | None:
    """The ratio to the target's number, or else to the reference, round by round."""
    if target and not target.times:
        return median(rounds) / target.number if target.number else None
    if beside is None:
        return None
    # CPU is counted in ticks of 10 ms, so a short round may have none, which gives no ratio.
    pairs = [pair for pair in zip(rounds, beside.rounds, strict=True) if pair[1]]
    return median(mine / other for mine, other in pairs) if pairs else None


def _reached(value: float, ratio: float | None, target: Target | None) -> bool | None:
    if target is None:
        return None
    held = ratio if target.times else value
    return held is not None and target.sense.holds(held, target.number)
