"""The bodies of webhooks: their senders have no key, so all of them share a bounded memory."""

import asyncio
from typing import Any

import pytest

from towpath.clock import seconds
from towpath.web.bodies import Deliveries
from towpath.web.problems import Refused

SCOPE: dict[str, Any] = {"type": "http", "headers": [], "method": "POST", "path": "/hook"}


def from_address(address: str) -> dict[str, Any]:
    return SCOPE | {"client": (address, 4711)}


async def held_back(deliveries: Deliveries, scope: dict[str, Any], size: int) -> int:
    """Sends *size* bytes and never the last one; returns the status of the final refusal."""
    try:
        async with deliveries.read(scope, sending(b"x" * size, ends=False)):
            raise AssertionError("it never ends")
    except Refused as refused:
        return refused.status


def sending(*parts: bytes, ends: bool = True) -> Any:
    """A client that sends these parts, and perhaps never the rest."""
    waiting = list(parts)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(waiting) or not ends}

    return receive


async def test_a_delivery_that_finds_the_memory_used_up_is_refused_until_some_is_free() -> None:
    deliveries = Deliveries(largest=100, within=seconds(5), together=150)
    async with deliveries.read(SCOPE, sending(b"x" * 100)) as first:
        assert first == b"x" * 100
        with pytest.raises(Refused) as refused:
            async with deliveries.read(SCOPE, sending(b"x" * 40, b"x" * 40)):
                pass
        assert (refused.value.status, refused.value.code) == (503, "too_many_deliveries")
    async with deliveries.read(SCOPE, sending(b"x" * 40, b"x" * 40)) as second:
        assert second == b"x" * 80


async def test_a_delivery_that_is_too_slow_is_refused_and_frees_its_memory() -> None:
    deliveries = Deliveries(largest=100, within=seconds(0.05), together=100)
    with pytest.raises(Refused) as refused:
        async with deliveries.read(SCOPE, sending(b"x" * 90, ends=False)):
            pass
    assert refused.value.status == 408
    async with deliveries.read(SCOPE, sending(b"x" * 100)) as body:
        assert body == b"x" * 100


async def test_a_delivery_that_is_too_large_is_refused_before_its_end() -> None:
    deliveries = Deliveries(largest=100, within=seconds(5), setting="reviews.delivery")
    with pytest.raises(Refused) as refused:
        async with deliveries.read(SCOPE, sending(b"x" * 60, b"x" * 60, ends=False)):
            pass
    assert refused.value.status == 413
    assert "reviews.delivery" in (refused.value.remedy or "")


class TestUnfinishedDeliveries:
    async def test_are_evicted_for_later_ones_the_oldest_first(self) -> None:
        deliveries = Deliveries(largest=100, within=seconds(30), together=250)
        async with asyncio.TaskGroup() as tasks:
            old = tasks.create_task(held_back(deliveries, from_address("203.0.113.1"), 90))
            await asyncio.sleep(0)
            new = tasks.create_task(held_back(deliveries, from_address("203.0.113.2"), 90))
            await asyncio.sleep(0)
            async with deliveries.read(from_address("203.0.113.3"), sending(b"x" * 100)) as body:
                assert body == b"x" * 100
            assert await old == 503
            assert not new.done()
            new.cancel()

    async def test_of_an_address_that_has_used_up_its_share_are_evicted_first(self) -> None:
        deliveries = Deliveries(largest=100, within=seconds(30), together=1000, each=150)
        async with asyncio.TaskGroup() as tasks:
            other = tasks.create_task(held_back(deliveries, from_address("203.0.113.1"), 90))
            await asyncio.sleep(0)
            own = tasks.create_task(held_back(deliveries, from_address("203.0.113.2"), 90))
            await asyncio.sleep(0)
            async with deliveries.read(from_address("203.0.113.2"), sending(b"x" * 90)) as body:
                assert body == b"x" * 90
            assert await own == 503
            assert not other.done()
            other.cancel()

    @pytest.mark.parametrize(
        ("one", "other"),
        [("2001:db8::1", "2001:db8::ffff"), ("::ffff:203.0.113.1", "203.0.113.1")],
    )
    async def test_are_counted_by_network_for_ipv6_and_by_address_for_ipv4(
        self, one: str, other: str
    ) -> None:
        """One customer has a whole IPv6 network; an IPv4 address may be written as IPv6."""
        deliveries = Deliveries(largest=100, within=seconds(30), together=1000, each=150)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(held_back(deliveries, from_address(one), 90))
            await asyncio.sleep(0)
            async with deliveries.read(from_address(other), sending(b"x" * 90)):
                assert await first == 503

    async def test_that_end_just_after_their_eviction_are_refused(self) -> None:
        """The beginning of an evicted body was freed, so the rest of it must not be accepted."""
        deliveries = Deliveries(largest=100, within=seconds(30), together=150)
        last = asyncio.Event()

        async def in_two_parts() -> dict[str, Any]:
            if not last.is_set():
                last.set()
                return {"type": "http.request", "body": b"x" * 60, "more_body": True}
            await came.wait()
            return {"type": "http.request", "body": b"y", "more_body": False}

        async def read() -> int:
            try:
                async with deliveries.read(SCOPE, in_two_parts) as body:
                    raise AssertionError(body)
            except Refused as refused:
                return refused.status

        came = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            slow = tasks.create_task(read())
            await asyncio.sleep(0)
            came.set()
            async with deliveries.read(SCOPE, sending(b"x" * 100)) as body:
                assert body == b"x" * 100
            assert await slow == 503
