"""S4: calls reach the public Internet and addresses on the allow list, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.calls.address_spellings import GLOBAL, NOT_GLOBAL, THIS_MACHINE
from tests.calls.receivers import LocalResolver, Receiver, answering, http, receiving
from towpath.calls.caller import Caller
from towpath.calls.errors import CallRefused
from towpath.calls.guard import Guard
from towpath.errors import InvalidOption, RetryAdvice


def test_the_list_of_address_spellings_is_long_enough() -> None:
    assert len(set(THIS_MACHINE)) == len(THIS_MACHINE) >= 60


class TestAnAddressOfThisMachine:
    @pytest.mark.parametrize("url", THIS_MACHINE)
    async def test_is_refused_in_every_spelling(self, receiver: Receiver, url: str) -> None:
        """The system's own resolver reads many of them as this machine."""
        async with Caller() as caller:
            with pytest.raises(CallRefused) as refusal:
                await caller.post(url.format(receiver.port), b"")
        assert refusal.value.retry is RetryAdvice.NEVER
        assert receiver.connections == 0

    async def test_is_reached_where_it_is_allowed(self, receiver: Receiver) -> None:
        """A server listens there: the refusals above come from the guard alone."""
        async with Caller(allow=["127.0.0.0/8"]) as caller:
            answer = await caller.post(receiver.url(), b"")
        assert answer.status == 200

    @pytest.mark.parametrize("url", ["http://127.1:{}/", "http://0x7f000001:{}/", "http://0:{}/"])
    async def test_stays_refused_in_odd_spellings_where_it_is_allowed(
        self, receiver: Receiver, url: str
    ) -> None:
        names = answering("127.0.0.1")
        async with Caller(allow=["0.0.0.0/0"], resolve=names) as caller:
            with pytest.raises(CallRefused):
                await caller.post(url.format(receiver.port), b"")
        assert (names.asked, receiver.connections) == ([], 0)

    @pytest.mark.parametrize("user", ["user", "user:password", ":password", ":", "a%40b"])
    async def test_stays_refused_with_credentials_where_it_is_allowed(
        self, caller: Caller, receiver: Receiver, user: str
    ) -> None:
        """They would be in the logs of every program that keeps the URL."""
        with pytest.raises(CallRefused):
            await caller.post(receiver.url(f"{user}@127.0.0.1"), b"")
        assert receiver.connections == 0

    @pytest.mark.parametrize("url", THIS_MACHINE)
    def test_is_refused_before_the_call(self, url: str) -> None:
        """No resolver is needed, so a caller learns it as soon as the URL is given."""
        with pytest.raises(CallRefused):
            Caller().check(url.format(8080))


class TestAName:
    @pytest.mark.parametrize("address", NOT_GLOBAL)
    async def test_that_resolves_to_a_private_address_is_refused(self, address: str) -> None:
        async with Caller(resolve=answering(address)) as caller:
            with pytest.raises(CallRefused) as refusal:
                await caller.post("https://hook.example.com/", b"")
        assert refusal.value.place == "hook.example.com:443"

    @pytest.mark.parametrize("address", GLOBAL)
    def test_that_resolves_to_a_global_address_is_permitted(self, address: str) -> None:
        assert Guard().permit("hook.example.com", 443, [address])

    async def test_is_refused_if_one_of_its_addresses_is(self, receiver: Receiver) -> None:
        """It is the last of many addresses, after one that could be called."""
        names = answering("127.0.0.1", "8.8.8.8", "2606:4700:4700::1111", "10.0.0.1")
        async with Caller(resolve=names, allow=["127.0.0.1"]) as caller:
            with pytest.raises(CallRefused, match=r"10\.0\.0\.0/8"):
                await caller.post(receiver.url("hook.example.com"), b"")
        assert receiver.connections == 0

    async def test_of_this_machine_is_refused_wherever_it_resolves_to(self) -> None:
        names = answering("8.8.8.8")
        async with Caller(resolve=names) as caller:
            with pytest.raises(CallRefused) as refusal:
                await caller.post("https://api.localhost/", b"")
        assert refusal.value.place == "api.localhost:443"
        assert names.asked == []

    async def test_is_refused_without_its_address_in_the_message(self) -> None:
        """A user who may only give a host name does not learn its address."""
        async with Caller(resolve=answering("10.11.12.13")) as caller:
            with pytest.raises(CallRefused) as refusal:
                await caller.post("https://intranet.example.com/", b"")
        assert "10.11.12.13" not in str(refusal.value)
        assert "10.0.0.0/8" in str(refusal.value)


class TestAResolverThatChangesItsAnswer:
    async def test_is_asked_once_and_the_call_connects_to_that_answer(self) -> None:
        """Nothing can change between check and connection."""
        names = alternating("127.0.0.1", "127.0.0.2")
        changing = Caller(resolve=names, allow=["127.0.0.1"])
        async with two_receivers() as (meant, other), changing as caller:
            answer = await caller.post(meant.url("rebind.example.com"), b"")
        assert answer.status == 200
        assert names.asked == ["rebind.example.com"]
        assert (meant.connections, other.connections) == (1, 0)

    async def test_is_asked_again_for_the_next_connection(self) -> None:
        """Each connection is checked with the answer that it uses."""
        names = alternating("127.0.0.1", "127.0.0.2")
        async with two_receivers() as (meant, other):
            meant.answer = http(headers=(("Connection", "close"),))
            async with Caller(resolve=names, allow=["127.0.0.1"]) as caller:
                await caller.post(meant.url("rebind.example.com"), b"")
                with pytest.raises(CallRefused):
                    await caller.post(meant.url("rebind.example.com"), b"")
        assert names.asked == ["rebind.example.com"] * 2
        assert (meant.connections, other.connections) == (1, 0)

    async def test_has_no_effect_on_a_kept_connection(self, receiver: Receiver) -> None:
        names = alternating("127.0.0.1", "127.0.0.2")
        async with Caller(resolve=names, allow=["127.0.0.1"]) as caller:
            for _ in range(3):
                await caller.post(receiver.url("rebind.example.com"), b"")
        assert len(names.asked) == receiver.connections == 1

    async def test_does_not_give_the_connection_of_one_name_to_another(
        self, receiver: Receiver
    ) -> None:
        names = answering("127.0.0.1")
        async with Caller(resolve=names, allow=["a.example.com"]) as caller:
            await caller.post(receiver.url("a.example.com"), b"")
            with pytest.raises(CallRefused):
                await caller.post(receiver.url("b.example.com"), b"")


class TestTheAllowList:
    @pytest.mark.parametrize(
        ("entry", "host", "address"),
        [
            ("10.0.0.0/8", "a.example.com", "10.1.2.3"),
            ("10.1.2.3", "a.example.com", "10.1.2.3"),
            ("fd00::/8", "a.example.com", "fd00::1"),
            ("10.0.0.0/8", "a.example.com", "64:ff9b::10.1.2.3"),
            ("worker.internal", "worker.internal", "10.1.2.3"),
            (" Worker.Internal ", "worker.internal", "10.1.2.3"),
            ("localhost", "localhost", "::1"),
        ],
    )
    def test_permits_its_networks_and_names(self, entry: str, host: str, address: str) -> None:
        assert Guard([entry]).permit(host, 25, [address])

    @pytest.mark.parametrize(
        ("entry", "host", "address"),
        [
            ("10.0.0.0/8", "a.example.com", "11.1.2.3"),
            ("10.0.0.0/8", "a.example.com", "192.168.0.1"),
            ("10.0.0.0/8", "a.example.com", "::ffff:10.1.2.3"),
            ("worker.internal", "a.worker.internal", "10.1.2.3"),
            ("worker.internal", "internal", "10.1.2.3"),
            ("worker.internal", "xworker.internal", "10.1.2.3"),
            ("worker.internal", "worker.internal", "fe80::1%eth0"),
        ],
    )
    def test_permits_nothing_else(self, entry: str, host: str, address: str) -> None:
        with pytest.raises(CallRefused):
            Guard([entry]).permit(host, 25, [address])

    @pytest.mark.parametrize(
        "entry",
        ["10.0.0.1/8", "10.0.0.0/33", "127.1", "2130706433", "http://a/", "a:80", "*.a", "a.", ""],
    )
    def test_refuses_entries_that_are_neither_network_nor_name(self, entry: str) -> None:
        with pytest.raises(InvalidOption) as refusal:
            Caller(allow=[entry])
        assert (refusal.value.option, refusal.value.value) == ("allow", entry)

    async def test_permits_this_machine_by_its_name(self, receiver: Receiver) -> None:
        """The system's resolver may return an IPv6 address first."""
        async with Caller(allow=["localhost"]) as caller:
            assert (await caller.post(receiver.url("localhost"), b"")).status == 200

    def test_must_be_a_list(self) -> None:
        """A single text would be read letter by letter."""
        with pytest.raises(InvalidOption) as refusal:
            Caller(allow="worker.internal")
        assert (refusal.value.option, refusal.value.value) == ("allow", "worker.internal")


class TestAPort:
    @pytest.mark.parametrize("port", [80, 443, 1024, 8080, 8443, 65535])
    def test_of_the_web_or_above_1023_is_permitted(self, port: int) -> None:
        assert Guard().permit("a.example.com", port, ["8.8.8.8"])

    @pytest.mark.parametrize("port", [1, 22, 25, 53, 110, 389, 587, 1023])
    def test_of_another_protocol_is_refused(self, port: int) -> None:
        with pytest.raises(CallRefused, match=r"\b80\b.*\b443\b"):
            Guard().permit("a.example.com", port, ["8.8.8.8"])

    @pytest.mark.parametrize("port", ["0", "65536", "-1", "99999999"])
    def test_that_does_not_exist_is_refused(self, port: str) -> None:
        with pytest.raises(CallRefused):
            Caller().check(f"http://a.example.com:{port}/")


@asynccontextmanager
async def two_receivers() -> AsyncGenerator[tuple[Receiver, Receiver]]:
    """Two receivers on one port of two addresses, so only the address decides which one is
    reached.
    """
    async with (
        receiving(Receiver()) as meant,
        receiving(Receiver(), address="127.0.0.2", port=meant.port) as other,
    ):
        yield meant, other


def alternating(first: str, then: str) -> LocalResolver:
    """A resolver whose first answer differs from all later ones."""
    return LocalResolver(lambda asked: (first if asked == 1 else then,))
