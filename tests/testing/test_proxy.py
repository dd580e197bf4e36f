"""The proxy itself, beside the faults that other tests see through it."""

import asyncio
import gc
import socket
from urllib.parse import urlsplit

from towpath.embedded import EmbeddedServer
from towpath.testing.proxy import Faults, Proxy


async def test_a_proxy_leaves_nothing_behind_though_clients_come_until_its_end(
    server: EmbeddedServer,
) -> None:
    """A connection that outlives the event loop would fail some later test."""
    before = asyncio.all_tasks()
    for rounds in range(12):
        clients = [socket.socket() for _ in range(3)]
        async with Proxy(server.address, Faults(), tcp=True) as proxy:
            place = urlsplit(proxy.url)
            for client in clients:
                client.connect((place.hostname, place.port))
            for _ in range(rounds):
                await asyncio.sleep(0)
        gc.collect()  # reports sockets that were not closed
        assert asyncio.all_tasks() == before
        for client in clients:
            client.close()


async def test_a_proxy_drops_connections_that_have_just_come(server: EmbeddedServer) -> None:
    async with Proxy(server.address, Faults(), tcp=True) as proxy:
        place = urlsplit(proxy.url)
        for rounds in range(6):
            with socket.create_connection((place.hostname, place.port)) as client:
                for _ in range(rounds):
                    await asyncio.sleep(0)
                await proxy.drop_all()
                client.setblocking(False)
            gc.collect()
