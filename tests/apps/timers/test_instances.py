"""Instances of applications: registered, alive by the clock of Redis, limited, and forgotten."""

import re
from contextlib import suppress
from typing import cast

import pytest

from tests.architecture.sources import ROOT
from towpath.apps.timers.errors import InstanceNotFound, TimerTypeTaken, TooManyInstances
from towpath.apps.timers.instances import (
    ALIVE_FOR,
    LISTED_FOR,
    MOST_OF_APP,
    Instances,
    Roster,
    instance_id,
)
from towpath.apps.timers.log import FiringLog
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service_mode import ServiceMode, secrets_of
from towpath.apps.timers.types import Types
from towpath.calls.signature import new_secret
from towpath.clock import ManualClock, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption

SECRET = new_secret()
WHERE = "http://10.0.0.7:8000/timers"


@pytest.fixture
def instances(engine: Engine) -> Instances:
    return Instances(engine)


@pytest.fixture
def types(engine: Engine) -> Types:
    return Types(engine, TimersOptions())


@pytest.fixture
def mode(engine: Engine, types: Types) -> ServiceMode:
    options = TimersOptions(secrets=(SECRET,), allow=("10.0.0.0/8",))
    return ServiceMode(engine, options, types, log=FiringLog(engine, options))


async def addresses(instances: Instances) -> list[str]:
    return sorted(instance.address for instance in (await instances.roster()).alive())


class TestAnInstance:
    async def test_is_alive_for_30_seconds_without_a_heartbeat(
        self, instances: Instances, clock: ManualClock
    ) -> None:
        await instances.register("shop", WHERE, ["t"])
        clock.advance(ALIVE_FOR - seconds(1))
        assert await addresses(instances) == [WHERE]
        clock.advance(seconds(1))
        assert await addresses(instances) == []

    async def test_has_no_key_with_an_expiry(
        self, instances: Instances, engine_url: str, server: EmbeddedServer
    ) -> None:
        """Expiry is a score that is compared with Redis's clock, never a TTL."""
        await instances.register("shop", WHERE, ["t"])
        found = cast("list[bytes]", server.ask("KEYS", "timers.instances:*"))
        keys = [key.decode() for key in found if b":call:" not in key]
        assert keys
        assert [server.ask("PTTL", key) for key in keys] == [-1] * len(keys)

    async def test_stays_alive_by_heartbeats(
        self, instances: Instances, clock: ManualClock
    ) -> None:
        instance = await instances.register("shop", WHERE, ["t"])
        for _ in range(3):
            clock.advance(ALIVE_FOR - seconds(1))
            await instances.beat("shop", instance.id)
        assert await addresses(instances) == [WHERE]

    async def test_that_is_silent_is_listed_for_a_while_and_may_come_back(
        self, instances: Instances, clock: ManualClock
    ) -> None:
        instance = await instances.register("shop", WHERE, ["t"])
        clock.advance(minutes(5))
        assert len((await instances.roster()).all()) == 1
        await instances.beat("shop", instance.id)
        assert await addresses(instances) == [WHERE]

    async def test_that_is_silent_for_long_is_forgotten(
        self, instances: Instances, clock: ManualClock
    ) -> None:
        instance = await instances.register("shop", WHERE, ["t"])
        clock.advance(ALIVE_FOR + LISTED_FOR)
        await instances.register("mail", WHERE, ["t"])
        assert [other.app for other in (await instances.roster()).all()] == ["mail"]
        with pytest.raises(InstanceNotFound):
            await instances.beat("shop", instance.id)

    async def test_replaces_the_one_at_the_same_address(self, instances: Instances) -> None:
        first = await instances.register("shop", WHERE, ["a"])
        second = await instances.register("shop", WHERE, ["b"], weight=3)
        [found] = (await instances.roster()).all()
        assert first.id == second.id == found.id
        assert (found.types, found.weight) == (("b",), 3)

    async def test_at_the_same_address_of_another_app_is_another_instance(
        self, instances: Instances
    ) -> None:
        await instances.register("shop", WHERE, ["t"])
        await instances.register("mail", WHERE, ["t"])
        assert await addresses(instances) == [WHERE, WHERE]

    async def test_that_leaves_is_deleted(self, instances: Instances) -> None:
        instance = await instances.register("shop", WHERE, ["t"])
        await instances.leave("shop", instance.id)
        assert (await instances.roster()).all() == []
        with pytest.raises(InstanceNotFound):
            await instances.leave("shop", instance.id)

    async def test_of_another_app_cannot_be_changed(self, instances: Instances) -> None:
        instance = await instances.register("shop", WHERE, ["t"])
        for verb in (instances.beat, instances.leave):
            with pytest.raises(InstanceNotFound):
                await verb("mail", instance.id)
        assert await addresses(instances) == [WHERE]


class TestTheLimitOfInstances:
    async def test_per_app_is_enforced(self, instances: Instances, clock: ManualClock) -> None:
        for n in range(MOST_OF_APP):
            await instances.register("shop", f"{WHERE}{n}", ["t"])
        with pytest.raises(TooManyInstances, match="shop") as refused:
            await instances.register("shop", WHERE, ["t"])
        assert (refused.value.limit, refused.value.most) == ("app", MOST_OF_APP)
        await instances.register("shop", f"{WHERE}7", ["t"])  # it replaces one of those
        await instances.register("mail", WHERE, ["t"])
        clock.advance(ALIVE_FOR)
        await instances.register("shop", WHERE, ["t"])
        assert await addresses(instances) == [WHERE]

    async def test_per_owner_is_enforced_until_some_have_left(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        instances = Instances(engine, TimersOptions(instances_per_owner=3))
        for n in range(3):
            await instances.register(f"app{n}", WHERE, ["t"], owner="eve")
        with pytest.raises(TooManyInstances) as refused:
            await instances.register("app3", WHERE, ["t"], owner="eve")
        assert (refused.value.limit, refused.value.most) == ("owner", 3)
        await instances.register("app0", WHERE, ["other"], owner="eve")  # it replaces one of those
        await instances.register("app0", WHERE, ["t"], owner="ann")
        await instances.register("app0", WHERE, ["t"])
        await instances.leave("app0", instance_id("app0", WHERE, "eve"), owner="eve")
        await instances.register("app3", WHERE, ["t"], owner="eve")
        clock.advance(ALIVE_FOR)
        for n in range(3):
            await instances.register(f"new{n}", WHERE, ["t"], owner="eve")
        with pytest.raises(TooManyInstances):
            await instances.register("new3", WHERE, ["t"], owner="eve")

    async def test_in_total_is_enforced(self, engine: Engine) -> None:
        instances = Instances(engine, TimersOptions(instances=3))
        for n in range(3):
            await instances.register(f"app{n}", WHERE, ["t"])
        with pytest.raises(TooManyInstances) as refused:
            await instances.register("app3", WHERE, ["t"])
        assert (refused.value.limit, refused.value.most) == ("total", 3)
        await instances.leave("app0", instance_id("app0", WHERE))
        await instances.register("app3", WHERE, ["t"])

    async def test_is_not_exceeded_by_many_registrations(
        self, instances: Instances, server: EmbeddedServer
    ) -> None:
        """One address is one instance; many addresses are as many as an app may have."""
        for n in range(300):
            await instances.register("shop", WHERE, [f"t{n % 5}"])
            with suppress(TooManyInstances):
                await instances.register("shop", f"{WHERE}{n}", ["t"])
        assert len((await instances.roster()).all()) == MOST_OF_APP

    async def test_of_types_and_bytes_per_instance_is_enforced(self, instances: Instances) -> None:
        with pytest.raises(InvalidOption, match="100") as too_many:
            await instances.register("shop", WHERE, [f"t{n}" for n in range(101)])
        assert (too_many.value.option, too_many.value.value) == ("task_types", 101)
        with pytest.raises(InvalidOption, match="8192") as too_long:
            await instances.register("shop", WHERE, [f"{n:0128}" for n in range(100)])
        assert too_long.value.option == "task_types"


class TestARoster:
    async def test_reads_all_changes_and_nothing_else(self, instances: Instances) -> None:
        roster = Roster(instances)
        await roster.refresh()
        assert roster.all() == []
        for n in range(150):
            await instances.register(f"app{n % 2}", f"{WHERE}{n}", ["t"])
        await roster.refresh()
        assert len(roster.alive()) == 150
        await instances.register("app0", f"{WHERE}0", ["other"])
        await instances.leave("app1", instance_id("app1", f"{WHERE}1"))
        await roster.refresh()
        found = {instance.address: instance.types for instance in roster.all()}
        assert len(found) == 149
        assert found[f"{WHERE}0"] == ("other",)

    async def test_reads_new_registrations_after_redis_was_emptied(
        self, instances: Instances, server: EmbeddedServer, clock: ManualClock
    ) -> None:
        roster = Roster(instances)
        for n in range(3):
            await instances.register("shop", f"{WHERE}{n}", ["t"])
        await roster.refresh()
        server.ask("FLUSHALL")
        clock.advance(seconds(1))
        for n in range(3):
            await instances.register("shop", f"{WHERE}{n}", ["other"])
        await roster.refresh()
        assert {instance.types for instance in roster.all()} == {("other",)}


class TestServiceMode:
    async def test_returns_the_secret_of_the_app(self, mode: ServiceMode) -> None:
        shop = await mode.register("shop", WHERE, ["t"])
        again = await mode.register("shop", WHERE + "/2", ["t"])
        mail = await mode.register("mail", WHERE, ["m"])
        assert shop.secret == again.secret == secrets_of("shop", (SECRET,))[0]
        assert mail.secret != shop.secret
        assert shop.secret not in repr(shop)

    async def test_without_a_secret_accepts_no_registration(
        self, engine: Engine, types: Types
    ) -> None:
        options = TimersOptions(allow=("10.0.0.0/8",))
        log = FiringLog(engine, options)
        mode = ServiceMode(engine, options, types, log=log)
        with pytest.raises(InvalidOption, match=r"calls\.secrets"):
            await mode.register("shop", WHERE, ["t"])

    @pytest.mark.parametrize(
        "address",
        [
            "http://127.0.0.1/",
            "http://169.254.169.254/",
            "http://[::ffff:192.168.0.1]/",
            "http://localhost/",
            "http://0x7f.1/",
            "ftp://10.0.0.7/",
            "http://user:pass@10.0.0.7/",
            "http://8.8.8.8:22/",
        ],
    )
    async def test_refuses_addresses_that_may_not_be_called(
        self, mode: ServiceMode, address: str
    ) -> None:
        with pytest.raises(InvalidOption, match="address") as refusal:
            await mode.register("shop", address, ["t"])
        assert address not in str(refusal.value)
        assert await mode.all() == []

    async def test_a_refused_registration_changes_nothing(
        self, mode: ServiceMode, types: Types
    ) -> None:
        await types.serve(None, ["taken"], who="a worker")
        with pytest.raises(TimerTypeTaken):
            await mode.register("shop", WHERE, ["own", "taken"])
        assert await mode.all() == []
        await mode.register("shop", WHERE, ["own"], weight=2)
        with pytest.raises(TimerTypeTaken):
            await mode.register("shop", WHERE, ["own", "taken"])
        [found] = await mode.all()
        assert (found.instance.types, found.instance.weight) == (("own",), 2)

    async def test_a_type_that_a_new_registration_drops_is_not_served(
        self, mode: ServiceMode, types: Types
    ) -> None:
        await mode.register("shop", WHERE, ["a", "b"])
        await mode.register("shop", WHERE, ["b"])
        assert {view.key.task_type: view.alive for view in await types.all()} == {"a": 0, "b": 1}

    async def test_an_instance_that_leaves_serves_nothing(
        self, mode: ServiceMode, types: Types
    ) -> None:
        told = await mode.register("shop", WHERE, ["a"])
        await mode.leave(await mode.get("shop", told.instance_id))
        assert [view.alive for view in await types.all()] == [0]
        assert await mode.all() == []

    async def test_shows_which_instances_schedulers_avoid(
        self, mode: ServiceMode, instances: Instances, clock: ManualClock
    ) -> None:
        told = await mode.register("shop", WHERE, ["a"])
        await instances.publish_breaker(told.instance_id, "s1", seconds(10))
        await instances.publish_breaker(told.instance_id, "s2", seconds(20))
        [found] = await mode.all("shop")
        assert (found.breaker, found.avoided_by) == ("open", ("s1", "s2"))
        clock.advance(seconds(11))
        await instances.publish_breaker(told.instance_id, "s2", seconds(0))
        [found] = await mode.all("shop")
        assert (found.breaker, found.avoided_by) == ("closed", ())


def test_the_page_about_redis_users_names_every_command() -> None:
    page = (ROOT / "docs" / "how-to" / "connect-over-tls.md").read_text()
    scripts = (ROOT / "src" / "towpath" / "apps" / "timers" / "lua").rglob("*.lua")
    text = "".join(path.read_text() for path in scripts)
    used = {word.lower() for word in re.findall(r"redis\.p?call\('([A-Z]+)'", text)}
    assert used
    assert [word for word in sorted(used) if f"+{word}" not in re.findall(r"\+\w+", page)] == []
    assert "~timers.instances:*" in page
