"""The address is pinned, and the certificate must still be for the name."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence

import pytest
import trustme

from tests.calls.receivers import Receiver, answering, receiving
from towpath.calls.caller import Caller
from towpath.calls.errors import CallFailed, CallRefused
from towpath.errors import RetryAdvice


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certified(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """The TLS context of a server with a certificate for *names*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)  # pyright: ignore[reportUnknownMemberType] -- also for pyOpenSSL, which is not here
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)  # pyright: ignore[reportUnknownMemberType] -- also for pyOpenSSL, which is not here
    return context


def calling(authority: trustme.CA, *, allow: Sequence[str] = ("127.0.0.1",)) -> Caller:
    """A caller for which every name resolves to this machine."""
    return Caller(allow=allow, resolve=answering("127.0.0.1"), tls=trusting(authority))


class TestACallOverTls:
    async def test_asks_for_the_name_and_accepts_its_certificate(
        self, authority: trustme.CA
    ) -> None:
        here = receiving(Receiver(), tls=certified(authority, "worker.example.com"))
        async with here as receiver, calling(authority) as caller:
            answer = await caller.post(receiver.url("worker.example.com", scheme="https"), b"work")
        assert answer.status == 200
        assert receiver.server_names == ["worker.example.com"]
        assert receiver.requests[0].headers["host"].startswith("worker.example.com:")

    async def test_refuses_the_certificate_of_another_name(self, authority: trustme.CA) -> None:
        """It is refused even from the right address, and even if it is valid for that address."""
        here = receiving(Receiver(), tls=certified(authority, "other.example.com", "127.0.0.1"))
        async with here as receiver, calling(authority) as caller:
            with pytest.raises(
                CallFailed, match=r"not valid for 'worker\.example\.com'"
            ) as failure:
                await caller.post(receiver.url("worker.example.com", scheme="https"), b"work")
        assert failure.value.retry is RetryAdvice.LATER
        assert receiver.requests == []

    async def test_does_not_use_the_connection_of_one_name_for_another(
        self, authority: trustme.CA
    ) -> None:
        """Both names have one address, as behind a load balancer, and each has its own
        certificate.
        """
        here = receiving(Receiver(), tls=certified(authority, "a.example.com"))
        async with here as receiver, calling(authority) as caller:
            await caller.post(receiver.url("a.example.com", scheme="https"), b"")
            with pytest.raises(CallFailed, match="not valid for"):
                await caller.post(receiver.url("b.example.com", scheme="https"), b"")
        assert len(receiver.requests) == 1

    async def test_refuses_a_certificate_of_an_unknown_authority(
        self, authority: trustme.CA
    ) -> None:
        here = receiving(Receiver(), tls=certified(trustme.CA(), "worker.example.com"))
        async with here as receiver, calling(authority) as caller:
            with pytest.raises(CallFailed, match="certificate verify failed"):
                await caller.post(receiver.url("worker.example.com", scheme="https"), b"work")
        assert receiver.requests == []

    async def test_trusts_the_systems_authorities_by_default(self, authority: trustme.CA) -> None:
        """A private authority is not one of them."""
        here = receiving(Receiver(), tls=certified(authority, "127.0.0.1"))
        async with here as receiver, Caller(allow=["127.0.0.1"]) as caller:
            with pytest.raises(CallFailed, match="certificate verify failed"):
                await caller.post(receiver.url(scheme="https"), b"work")

    async def test_accepts_a_certificate_for_an_address(self, authority: trustme.CA) -> None:
        here = receiving(Receiver(), tls=certified(authority, "127.0.0.1"))
        async with here as receiver, calling(authority) as caller:
            assert (await caller.post(receiver.url(scheme="https"), b"")).status == 200

    async def test_is_not_made_where_calls_may_not_go(self, authority: trustme.CA) -> None:
        """A valid certificate gives no permission."""
        here = receiving(Receiver(), tls=certified(authority, "worker.example.com"))
        async with here as receiver, calling(authority, allow=[]) as caller:
            with pytest.raises(CallRefused):
                await caller.post(receiver.url("worker.example.com", scheme="https"), b"work")
        assert receiver.connections == 0

    async def test_is_not_made_without_tls_on_the_other_side(self, authority: trustme.CA) -> None:
        with socket.create_server(("127.0.0.1", 0)) as plain:
            task = asyncio.create_task(answer_plainly(plain))
            url = f"https://worker.example.com:{plain.getsockname()[1]}/"
            async with calling(authority) as caller:
                with pytest.raises(CallFailed) as failure:
                    await caller.post(url, b"work")
        assert not failure.value.sent
        assert b"POST" not in await task


async def answer_plainly(listening: socket.socket) -> bytes:
    """Answers the first bytes without TLS; returns those bytes."""
    listening.setblocking(False)
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listening)
    with connection:
        first = await loop.sock_recv(connection, 1 << 16)
        await loop.sock_sendall(connection, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    return first
