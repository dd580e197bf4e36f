"""The bodies of webhooks: whoever sends one has no key, so all of them share a bounded room."""

import asyncio
from typing import Any

import pytest

from towpath.clock import seconds
from towpath.server.limits import Deliveries
from towpath.server.problems import Refused

SCOPE: dict[str, Any] = {"type": "http", "headers": [], "method": "POST", "path": "/hook"}


def sending(*parts: bytes, ends: bool = True) -> Any:
    """A client that sends these parts, and maybe never the rest."""
    waiting = list(parts)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(waiting) or not ends}

    return receive


async def test_what_finds_no_room_is_refused_until_there_is_some() -> None:
    deliveries = Deliveries(largest=100, within=seconds(5), together=150)
    async with deliveries.read(SCOPE, sending(b"x" * 100)) as first:
        assert first == b"x" * 100
        with pytest.raises(Refused, match="at once") as refused:
            async with deliveries.read(SCOPE, sending(b"x" * 40, b"x" * 40)):
                pass
        assert refused.value.status == 503
    async with deliveries.read(SCOPE, sending(b"x" * 40, b"x" * 40)) as second:
        assert second == b"x" * 80


async def test_what_does_not_come_in_time_is_given_up_and_leaves_its_room() -> None:
    deliveries = Deliveries(largest=100, within=seconds(0.05), together=100)
    with pytest.raises(Refused) as refused:
        async with deliveries.read(SCOPE, sending(b"x" * 90, ends=False)):
            pass
    assert refused.value.status == 408
    async with deliveries.read(SCOPE, sending(b"x" * 100)) as body:
        assert body == b"x" * 100


async def test_one_that_is_too_large_is_refused_before_its_end() -> None:
    deliveries = Deliveries(largest=100, within=seconds(5))
    with pytest.raises(Refused) as refused:
        async with deliveries.read(SCOPE, sending(b"x" * 60, b"x" * 60, ends=False)):
            pass
    assert refused.value.status == 413
    assert "reviews.delivery" in (refused.value.remedy or "")
