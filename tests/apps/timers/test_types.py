"""Types of timers: any text, a limited number, and one owner if no app is named."""

import asyncio

import pytest

from tests.waiting import HANGS
from towpath.apps.timers.errors import TimerTypeAmbiguous, TimerTypesFull, TimerTypeTaken
from towpath.apps.timers.model import TypeKey
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.types import ALIVE, Owner, TypeInfo, Types, queue_of
from towpath.clock import ManualClock, instant, minutes, seconds
from towpath.engine.engine import Engine
from towpath.errors import InvalidName

ODD = [
    "取消 订单",
    "a/b%2F",
    "Order.Timeout",
    "a--b",
    "a__b",
    "-a",
    "a-",
    ".",
    "x" * 128,
    "😀" * 32,
]


@pytest.fixture
def types(engine: Engine) -> Types:
    return Types(engine, TimersOptions())


async def the(types: Types, task_type: str, app: str | None = None) -> TypeInfo:
    found = {info.key: info for info in await types.all()}
    return found[TypeKey(task_type, app)]


class TestNames:
    def test_that_a_queue_can_have_are_used_unchanged(self) -> None:
        assert queue_of(TypeKey("order.timeout")) == "timers.order.timeout"
        assert queue_of(TypeKey("order.timeout", "shop")) == "timers.shop--order.timeout"

    def test_that_differ_never_share_a_queue(self) -> None:
        names = [*ODD, "a", "b", "order-timeout", "order timeout", "a-b", "a_b", "A", "x" * 57]
        keys = [TypeKey(name, app) for name in names for app in (None, *names)]
        assert len({queue_of(key) for key in keys}) == len(keys)

    def test_that_a_queue_can_not_have_stay_readable(self) -> None:
        assert queue_of(TypeKey("Order timeout")).startswith("timers.order-timeout__")

    @pytest.mark.parametrize("name", ["", "x" * 129, "取" * 43, "a\nb", "a\u2028b", "\ud800"])
    def test_that_are_no_text_of_128_bytes_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidName, match="task_type"):
            TypeKey(name)
        with pytest.raises(InvalidName, match="app"):
            TypeKey("t", name)

    @pytest.mark.parametrize("name", ODD)
    async def test_are_listed_as_they_were_given(self, types: Types, name: str) -> None:
        await types.ensure(TypeKey(name))
        await types.ensure(TypeKey(name, name))
        assert {info.key for info in await types.all()} == {TypeKey(name), TypeKey(name, name)}


class TestTheLimitOfTypes:
    async def test_refuses_one_type_more(self, engine: Engine) -> None:
        types = Types(engine, TimersOptions(types=2))
        await types.ensure(TypeKey("a"))
        await types.serve("shop", ["b"], who="i1")
        with pytest.raises(TimerTypesFull):
            await types.ensure(TypeKey("c"))
        with pytest.raises(TimerTypesFull):
            await types.serve("shop", ["b", "c"], who="i1")
        await types.ensure(TypeKey("a"))
        await types.serve("shop", ["b"], who="i2")
        assert len(await types.all()) == 2


class TestOwnersOfTypes:
    async def test_do_not_exist_for_a_type_that_only_has_timers(self, types: Types) -> None:
        await types.ensure(TypeKey("t"))
        info = await the(types, "t")
        assert (info.owner, info.alive, info.last_alive) == (None, 0, None)

    async def test_are_plug_in_workers_for_the_type_they_serve(self, types: Types) -> None:
        assert await types.serve(None, ["t"], who="w1") == ["timers.t"]
        await types.serve(None, ["t"], who="w2")
        info = await the(types, "t")
        assert (info.owner, info.alive) == (Owner(), 2)

    async def test_have_a_last_alive_time_that_is_never_in_the_future(
        self, types: Types, clock: ManualClock
    ) -> None:
        await types.serve(None, ["t"], who="w1")
        assert (await the(types, "t")).last_alive == instant(int(clock.stamp()))
        clock.advance(minutes(1))
        assert (await the(types, "t")).last_alive == instant(int(clock.stamp()) - 30_000)

    async def test_that_are_workers_keep_apps_from_registering_their_type(
        self, types: Types
    ) -> None:
        await types.serve(None, ["t"], who="w1")
        with pytest.raises(TimerTypeTaken) as refused:
            await types.serve("shop", ["own", "t"], who="i1")
        assert (refused.value.task_type, refused.value.owner) == ("t", str(Owner()))
        assert [info.key for info in await types.all()] == [TypeKey("t")]

    async def test_of_a_type_without_an_app_are_the_only_app_that_serves_it(
        self, types: Types
    ) -> None:
        await types.serve("shop", ["t"], who="i1")
        await types.ensure(TypeKey("t"))
        info = await the(types, "t")
        assert (info.owner, info.alive) == (Owner("shop"), 1)
        for app in ("mail", None):
            with pytest.raises(TimerTypeTaken) as refused:
                await types.serve(app, ["t"], who="other")
            assert (refused.value.task_type, refused.value.owner) == ("t", str(Owner("shop")))

    async def test_of_a_type_that_was_used_before_are_the_first_app_to_serve_it(
        self, types: Types
    ) -> None:
        await types.ensure(TypeKey("t"))
        await types.serve("shop", ["t"], who="i1")
        assert (await the(types, "t")).owner == Owner("shop")

    async def test_are_several_apps_for_a_type_that_is_never_used_without_one(
        self, types: Types
    ) -> None:
        await types.serve("shop", ["t"], who="i1")
        await types.serve("mail", ["t"], who="i2")
        with pytest.raises(TimerTypeAmbiguous, match="mail, shop"):
            await types.ensure(TypeKey("t"))
        assert await types.ensure(TypeKey("t", "mail")) == "timers.mail--t"
        assert {info.key.app for info in await types.all()} == {"shop", "mail"}

    async def test_that_are_gone_keep_their_type_for_a_while(
        self, types: Types, clock: ManualClock
    ) -> None:
        await types.serve(None, ["t"], who="w1")
        clock.advance(ALIVE + minutes(5) - seconds(1))
        with pytest.raises(TimerTypeTaken):
            await types.serve("shop", ["t"], who="i1")
        clock.advance(seconds(1))
        await types.serve("shop", ["t"], who="i1")
        assert (await the(types, "t")).owner == Owner("shop")

    async def test_that_leave_are_gone_at_once_and_keep_their_type(self, types: Types) -> None:
        await types.serve("shop", ["t"], who="i1")
        await types.ensure(TypeKey("t"))
        await types.leave("shop", ["t", "never"], who="i1")
        info = await the(types, "t")
        assert (info.owner, info.alive) == (Owner("shop"), 0)
        with pytest.raises(TimerTypeTaken):
            await types.serve("mail", ["t"], who="i2")

    async def test_that_were_silent_for_30_seconds_are_not_alive(
        self, types: Types, clock: ManualClock
    ) -> None:
        await types.serve(None, ["t"], who="w1")
        clock.advance(seconds(20))
        await types.serve(None, ["t"], who="w2")
        clock.advance(seconds(10))
        assert (await the(types, "t")).alive == 1


class TestChanges:
    async def test_of_types_are_yielded_within_a_second(self, types: Types, engine: Engine) -> None:
        elsewhere = Types(engine, TimersOptions())
        following = elsewhere.follow()
        assert await anext(following) == []
        await types.serve(None, ["t"], who="w1")
        async with asyncio.timeout(HANGS):
            [info] = await anext(following)
        assert info.key == TypeKey("t")
        await following.aclose()

    async def test_are_not_yielded_for_a_heartbeat(self, types: Types) -> None:
        await types.serve("shop", ["t"], who="i1")
        await types.ensure(TypeKey("t", "shop"))
        before = await types.version()
        await types.serve("shop", ["t"], who="i1")
        await types.ensure(TypeKey("t", "shop"))
        assert await types.version() == before


class TestRemoval:
    async def test_deletes_a_type_unless_it_was_used_since(
        self, types: Types, clock: ManualClock
    ) -> None:
        await types.ensure(TypeKey("t"))
        seen = await the(types, "t")
        clock.advance(minutes(1))
        await types.serve(None, ["t"], who="w1")
        assert not await types.delete(seen)
        assert not await types.delete(await the(types, "t"))
        clock.advance(minutes(1))
        assert await types.delete(await the(types, "t"))
        assert await types.all() == []
