"""A call returns the answer as it was sent; redirects, cookies and encodings are ignored."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.calls.receivers import LocalResolver, Receiver, answering, http, receiving
from towpath.calls.caller import Caller
from towpath.calls.errors import CallerClosed, CallFailed, CallRefused
from towpath.calls.signature import new_secret, verify
from towpath.clock import milliseconds, seconds
from towpath.errors import InvalidOption, RetryAdvice


class TestACall:
    async def test_returns_the_answer(self, caller: Caller, receiver: Receiver) -> None:
        receiver.answer = http("201 Created", b"done", (("X-Seen", "a"), ("x-seen", "b")))
        answer = await caller.post(receiver.url(), b"work")
        assert (answer.status, answer.body) == (201, b"done")
        assert answer.headers["x-seen"] == "a, b"

    @pytest.mark.parametrize("status", ["202 Accepted", "404 Not Found", "500 Oh"])
    async def test_returns_an_answer_of_any_status(
        self, caller: Caller, receiver: Receiver, status: str
    ) -> None:
        receiver.answer = http(status)
        assert (await caller.post(receiver.url(), b"")).status == int(status[:3])

    async def test_sends_path_query_headers_and_body(
        self, caller: Caller, receiver: Receiver
    ) -> None:
        url = receiver.url(path="/a b?c=d#e")
        await caller.post(url, b"\x00work", headers={"Content-Type": "text/x", "X-A": ""})
        [request] = receiver.requests
        assert request.line == "POST /a%20b?c=d HTTP/1.1"
        assert request.body == b"\x00work"
        assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert request.headers["content-type"] == "text/x"
        assert request.headers["user-agent"] == "towpath"

    async def test_sends_the_host_as_the_url_names_it(self, receiver: Receiver) -> None:
        async with Caller(allow=["127.0.0.1"], resolve=answering("127.0.0.1")) as caller:
            await caller.post(receiver.url("Hook.Example.com"), b"")
        assert receiver.requests[0].headers["host"] == f"hook.example.com:{receiver.port}"

    async def test_is_signed_for_each_attempt_under_one_id(
        self, caller: Caller, receiver: Receiver
    ) -> None:
        old, new = new_secret(), new_secret()
        for _ in range(2):
            await caller.post(receiver.url(), b"work", message="m1", secrets=[old, new])
        for request in receiver.requests:
            for secret in (old, new):
                assert verify([secret], request.headers, request.body).id == "m1"

    async def test_works_with_an_ipv6_address(self) -> None:
        here = receiving(Receiver(), address="::1")
        async with here as receiver, Caller(allow=["::1"]) as caller:
            await caller.post(receiver.url("[::1]"), b"")
        assert receiver.requests[0].headers["host"] == f"[::1]:{receiver.port}"

    async def test_tries_the_next_address_when_one_does_not_answer(
        self, receiver: Receiver
    ) -> None:
        names = answering("127.0.0.3", "127.0.0.1")
        async with Caller(allow=["127.0.0.0/8"], resolve=names) as caller:
            assert (await caller.post(receiver.url("a.example.com"), b"")).status == 200

    async def test_keeps_its_connection_for_the_next_call(
        self, caller: Caller, receiver: Receiver
    ) -> None:
        for _ in range(3):
            await caller.post(receiver.url(), b"")
        assert receiver.connections == 1

    async def test_may_be_one_of_many_at_once(self, receiver: Receiver) -> None:
        few = Caller(allow=["127.0.0.1"], connections=4)
        async with few as caller, asyncio.TaskGroup() as tasks:
            for _ in range(40):
                tasks.create_task(caller.post(receiver.url(), b"work"))
        assert len(receiver.requests) == 40
        assert receiver.connections <= 4


class TestFeaturesOfUsualClients:
    @pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Again", "308 Moved"])
    async def test_a_redirect_to_a_private_address_is_not_followed(
        self, receiver: Receiver, status: str
    ) -> None:
        async with receiving(Receiver(), address="127.0.0.2") as private:
            receiver.answer = http(status, headers=(("Location", private.url("127.0.0.2")),))
            async with Caller(allow=["127.0.0.0/8"]) as caller:
                answer = await caller.post(receiver.url(), b"work")
        assert answer.status == int(status[:3])
        assert private.connections == 0

    async def test_a_proxy_of_the_environment_is_not_used(
        self, caller: Caller, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with receiving(Receiver()) as proxy:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, proxy.url(path=""))
            async with Caller(allow=["127.0.0.1"]) as inside:
                await inside.post(receiver.url(), b"")
            await caller.post(receiver.url(), b"")
        assert (len(receiver.requests), proxy.connections) == (2, 0)

    async def test_a_cookie_is_not_kept(self, caller: Caller, receiver: Receiver) -> None:
        receiver.answer = http(headers=(("Set-Cookie", "a=b; Path=/"),))
        for _ in range(2):
            await caller.post(receiver.url(), b"")
        assert not any("cookie" in request.headers for request in receiver.requests)

    async def test_an_answer_is_not_unpacked(self, caller: Caller, receiver: Receiver) -> None:
        """A megabyte of zeros in a kilobyte stays a kilobyte; the call asked for no encoding."""
        bomb = gzip.compress(bytes(1 << 20))
        receiver.answer = http("200 OK", bomb, (("Content-Encoding", "gzip"),))
        answer = await caller.post(receiver.url(), b"")
        assert answer.body == bomb
        assert receiver.requests[0].headers["accept-encoding"] == "identity"


class TestAHeader:
    @pytest.mark.parametrize(
        "name", ["Host", "content-length", "Transfer-Encoding", "Accept-Encoding", "Connection"]
    )
    async def test_about_the_connection_cannot_be_set_by_callers(
        self, caller: Caller, receiver: Receiver, name: str
    ) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await caller.post(receiver.url(), b"", headers={name: "1"})
        assert (refusal.value.option, refusal.value.value) == ("headers", name)
        assert receiver.connections == 0

    @pytest.mark.parametrize(
        "value", ["a\r\nX-B: c", "a\nb", "a\x00b", " secret", "secret ", "ä", "x" * 9000]
    )
    async def test_has_its_value_in_one_line(self, caller: Caller, value: str) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await caller.post("http://127.0.0.1:1/", b"", headers={"X-A": value})
        assert (refusal.value.option, refusal.value.value) == ("headers", "X-A")
        assert value not in str(refusal.value)

    @pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "ä"])
    async def test_has_a_valid_name(self, caller: Caller, name: str) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await caller.post("http://127.0.0.1:1/", b"", headers={name: "b"})
        assert (refusal.value.option, refusal.value.value) == ("headers", "…")


class TestACallThatFails:
    async def test_was_not_sent_if_no_server_listens(self, caller: Caller) -> None:
        async with receiving(Receiver()) as gone:
            pass
        with pytest.raises(CallFailed) as failure:
            await caller.post(gone.url(), b"")
        assert (failure.value.place, failure.value.sent) == (f"127.0.0.1:{gone.port}", False)
        assert failure.value.retry is RetryAdvice.LATER

    async def test_was_not_sent_if_the_name_has_no_address(self) -> None:
        async with Caller(resolve=answering()) as caller:
            with pytest.raises(CallFailed) as failure:
                await caller.post("http://nowhere.example.com/", b"")
        assert (failure.value.place, failure.value.sent) == ("nowhere.example.com:80", False)

    async def test_was_not_sent_if_the_system_does_not_know_the_name(self) -> None:
        async with Caller() as caller:
            with pytest.raises(CallFailed) as failure:
                await caller.post("http://nowhere.invalid/", b"")
        assert (failure.value.place, failure.value.sent) == ("nowhere.invalid:80", False)
        assert failure.value.retry is RetryAdvice.LATER

    async def test_does_not_wait_for_ever_for_a_resolver(self) -> None:
        async with Caller(resolve=SilentResolver(), connect_timeout=milliseconds(50)) as caller:
            with pytest.raises(CallFailed, match=r"0\.05 s") as failure:
                await caller.post("http://slow.example.com/", b"")
        assert (failure.value.place, failure.value.sent) == ("slow.example.com:80", False)

    async def test_does_not_try_all_of_very_many_addresses(self, receiver: Receiver) -> None:
        """No server listens at the first four."""
        names = answering(*(f"127.0.0.{n}" for n in range(2, 200)), "127.0.0.1")
        async with Caller(allow=["127.0.0.0/8"], resolve=names) as caller:
            with pytest.raises(CallFailed):
                await caller.post(receiver.url("many.example.com"), b"")
        assert receiver.connections == 0


class TestACaller:
    async def test_that_is_not_open_makes_no_call(self, receiver: Receiver) -> None:
        caller = Caller(allow=["127.0.0.1"])
        with pytest.raises(CallerClosed):
            await caller.post(receiver.url(), b"")
        async with caller:
            await caller.post(receiver.url(), b"")
        with pytest.raises(CallerClosed):
            await caller.post(receiver.url(), b"")

    async def test_may_be_opened_again(self, receiver: Receiver) -> None:
        caller = Caller(allow=["127.0.0.1"])
        for _ in range(2):
            async with caller:
                await caller.post(receiver.url(), b"")
        assert receiver.connections == 2

    @pytest.mark.parametrize(
        "options",
        [
            {"timeout": seconds(0)},
            {"connect_timeout": seconds(-1)},
            {"largest_answer": -1},
            {"connections": 0},
        ],
    )
    def test_refuses_invalid_options(self, options: dict[str, object]) -> None:
        with pytest.raises(InvalidOption) as refusal:
            Caller(**options)  # pyright: ignore[reportArgumentType] -- that is the point
        assert refusal.value.option in options

    async def test_without_secrets_signs_nothing(self, caller: Caller, receiver: Receiver) -> None:
        await caller.post(receiver.url(), b"")
        assert "webhook-id" not in receiver.requests[0].headers

    async def test_refuses_an_id_that_cannot_be_signed(self, caller: Caller) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await caller.post("http://127.0.0.1:1/", b"", message="a.b", secrets=[new_secret()])
        assert (refusal.value.option, refusal.value.value) == ("id", "a.b")

    async def test_refuses_a_url_that_is_too_long(self, caller: Caller) -> None:
        with pytest.raises(CallRefused, match="2048"):
            await caller.post("http://127.0.0.1/" + "a" * 2048, b"")


class SilentResolver(LocalResolver):
    """A resolver that never answers."""

    def __init__(self) -> None:
        super().__init__(lambda _: ())

    async def __call__(self, host: str, port: int) -> tuple[str, ...]:
        await asyncio.Event().wait()
        return ()
