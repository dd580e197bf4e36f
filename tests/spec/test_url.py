"""URLs of Redis: which server, how to reach it, and a form that is safe to show."""

from functools import partial

import pytest

from tests.entering import refusal_on_entering
from tests.spec.jobs_in_states import REVIEWS
from towpath.clock import milliseconds, seconds
from towpath.embedded import EmbeddedSentinel, EmbeddedServer, Listen
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.tls import Tls
from towpath.engine.url import ServerUrl, Topology, parse_url
from towpath.errors import InvalidOption, ServerRefused, ServerUnreachable

SECRET = "correct-horse"  # noqa: S105 -- what must not be shown
QUICK = Limits(answer=milliseconds(500), give_up=seconds(1))


class TestARedisUrl:
    @pytest.mark.parametrize(
        ("url", "parsed"),
        [
            ("redis://localhost", ServerUrl(Topology.SINGLE, None, (("localhost", 6379),))),
            ("REDIS://h:1/3", ServerUrl(Topology.SINGLE, None, (("h", 1),), db=3)),
            ("rediss://h", ServerUrl(Topology.SINGLE, Tls(), (("h", 6379),))),
            ("valkey://h", ServerUrl(Topology.SINGLE, None, (("h", 6379),))),
            ("redis://[::1]:7", ServerUrl(Topology.SINGLE, None, (("::1", 7),))),
            ("unix:///run/a%20b.sock", ServerUrl(Topology.SINGLE, None, (), path="/run/a b.sock")),
            ("unix:///s?db=2", ServerUrl(Topology.SINGLE, None, (), path="/s", db=2)),
            (
                "redis+sentinel://a,b:7/main/2",
                ServerUrl(Topology.SENTINEL, None, (("a", 26379), ("b", 7)), path="main", db=2),
            ),
            (
                "rediss+cluster://a:1,b:2",
                ServerUrl(Topology.CLUSTER, Tls(), (("a", 1), ("b", 2))),
            ),
        ],
    )
    def test_says_where_redis_is(self, url: str, parsed: ServerUrl) -> None:
        assert parse_url(url) == parsed

    def test_may_have_a_user_and_a_password(self) -> None:
        url = parse_url("redis://towpath:p%40ss%2Fword@h")
        assert (url.username, url.password) == ("towpath", "p@ss/word")
        assert parse_url("redis://:only@h").username is None

    def test_may_have_those_of_the_sentinels_too(self) -> None:
        url = parse_url("redis+sentinel://h/main?sentinel_username=s&sentinel_password=t")
        assert (url.sentinel_username, url.sentinel_password) == ("s", "t")

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "localhost",
            "http://localhost",
            "redis:localhost",
            "redis://",
            "redis://h:port",
            "redis://h:70000",
            "redis://[::1",
            "redis://h/first",
            "redis://h/-1",
            "unix://relative/path",
            "redis+sentinel://h",
            "redis+sentinel://,/main",
            "redis+cluster://h/1",
        ],
    )
    def test_that_is_invalid_is_refused_with_the_rule(self, url: str) -> None:
        with pytest.raises(InvalidOption, match="url"):
            parse_url(url)


class TestAPasswordInAUrl:
    @pytest.mark.parametrize(
        "url",
        [
            f"redis://towpath:{SECRET}@h/0",
            f"rediss+sentinel://:{SECRET}@h/main?sentinel_password={SECRET}",
            f"unix://:{SECRET}@/run/s.sock",
        ],
    )
    def test_is_not_shown(self, url: str) -> None:
        parsed = parse_url(url)
        assert SECRET not in str(parsed)
        assert SECRET not in repr(parsed)
        assert SECRET not in f"{parsed} {parsed!r} {(parsed,)}"

    @pytest.mark.parametrize(
        "url",
        [
            f"redis://:{SECRET}@h:port",
            f"redis://:{SECRET}@",
            f"http://:{SECRET}@h",
            f"{SECRET}@h",
            f"redis://:{SECRET}@h/first",
            f"redis://:{SECRET}#x@h",
            f"redis://:{SECRET}/x@h",
            f"redis://:{SECRET}?x@h",
        ],
    )
    def test_is_not_repeated_by_an_error(self, url: str) -> None:
        """This includes passwords that were not escaped and read like another part of the URL."""
        with pytest.raises(InvalidOption) as refusal:
            parse_url(url)
        assert SECRET not in str(refusal.value)
        assert SECRET not in repr(refusal.value)


class TestConnecting:
    async def test_works_over_a_socket_and_over_a_port(self) -> None:
        with EmbeddedServer(listen=Listen.BOTH) as server:
            for url in (server.url, server.tcp_url):
                async with Engine(url) as engine:
                    await engine.submit(REVIEWS, b"")
            async with Engine(server.tcp_url) as engine:
                assert (await engine.inspect.counts(REVIEWS)).ready == 2

    async def test_goes_to_the_database_of_the_url(self, server: EmbeddedServer) -> None:
        async with Engine(f"{server.url}?db=3") as engine:
            await engine.submit(REVIEWS, b"")
        async with Engine(server.url) as engine:
            assert await engine.queues.list() == {}

    async def test_finds_the_primary_that_the_sentinels_name(self) -> None:
        with EmbeddedSentinel() as deployment:
            async with Engine(deployment.url) as engine:
                await engine.submit(REVIEWS, b"")
                assert deployment.primary.ask("EXISTS", "{reviews}:meta") == 1

    async def test_with_a_wrong_password_is_refused(self) -> None:
        with EmbeddedServer(options={"requirepass": SECRET}, listen=Listen.PORT) as server:
            async with Engine(f"redis://:{SECRET}@127.0.0.1:{server.port}") as engine:
                await engine.submit(REVIEWS, b"")
            for url in (server.tcp_url, f"redis://:wrong@127.0.0.1:{server.port}"):
                await refusal_on_entering(ServerRefused, partial(Engine, url))

    async def test_to_an_absent_redis_is_given_up_in_time(self) -> None:
        with EmbeddedServer() as server:
            url = server.url
        async with Engine(url, limits=QUICK) as engine:
            with pytest.raises(ServerUnreachable):
                await engine.check()
            with pytest.raises(ServerUnreachable):
                await engine.submit(REVIEWS, b"")

    async def test_to_a_frozen_redis_is_given_up_in_time(self) -> None:
        with EmbeddedServer() as server:
            async with Engine(server.url, limits=QUICK) as engine:
                await engine.submit(REVIEWS, b"")
                server.pause()
                with pytest.raises(ServerUnreachable):
                    await engine.submit(REVIEWS, b"")
                server.unpause()
                await engine.submit(REVIEWS, b"", id="after")


class TestTimeLimits:
    def test_have_a_range(self) -> None:
        for limits in (
            lambda: Limits(answer=seconds(0)),
            lambda: Limits(answer=seconds(20)),
            lambda: Limits(channels=0),
        ):
            with pytest.raises(InvalidOption, match="limits"):
                limits()
