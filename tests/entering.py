"""Enters an engine on a machine that may be busy.

An engine probes Redis for two seconds when it is entered. If Redis is too busy to answer by then,
the engine is entered as if Redis were away: it has no facts about Redis and refuses nothing.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest

from tests.waiting import eventually_async
from towpath.engine.durability import ServerFacts
from towpath.engine.engine import Engine
from towpath.errors import ServerUnreachable

E = TypeVar("E", bound=Exception)
Enter = Callable[[], AbstractAsyncContextManager[Engine]]


async def refusal_on_entering(error: type[E], enter: Enter, *, servers: int = 1) -> E:
    """Returns the *error* that *enter* raises. Enters again if fewer nodes than expected answered;
    fails at once if they answered and the engine was entered all the same.
    """
    raised: list[E] = []

    async def answered() -> bool:
        try:
            async with enter() as engine:
                if _answers(engine) >= servers:
                    pytest.fail(f"did not raise {error.__name__}")
        except error as refusal:
            raised.append(refusal)
        return bool(raised)

    await eventually_async(answered)
    return raised[0]


async def facts_of(engine: Engine, *, servers: int = 1) -> ServerFacts:
    """Returns what the nodes reported in their probes, as soon as so many of them have answered."""

    async def answered() -> bool:
        if _answers(engine) < servers:
            try:
                await engine.check()
            except ServerUnreachable:
                return False
        return _answers(engine) >= servers

    await eventually_async(answered)
    return engine.facts


def _answers(engine: Engine) -> int:
    """How many nodes answered the last probe."""
    try:
        return engine.facts.servers
    except ServerUnreachable:
        return 0
