"""A few bytes block no other client: only received bytes and arriving bodies take room."""

import asyncio
import base64
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha1
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.uploads.requests import ROOT, pause, put, start
from tests.apps.uploads.serving import uploads_app
from tests.apps.uploads.tus_client import TUS, create, patch
from tests.server.in_process import client_of, listening
from tests.waiting import eventually_async
from towpath.apps.uploads.options import KIB, MIB
from towpath.apps.uploads.records import BodyLease
from towpath.apps.uploads.service import UploadService
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

FEW = bytes(64 * KIB)
SMALL = {"size": 200 * MIB, "chunk_size": 64 * KIB}
PER_PART = 128
"""Chunks of 64 KiB in a part of 8 MiB."""
BUDGET = 64 * MIB


@pytest.fixture
async def app(
    server: EmbeddedServer, prepared_file_url: str, tmp_path: Path
) -> AsyncIterator[FastAPI]:
    """A server with a budget of eight parts, and the usual share of two for each owner."""
    async with uploads_app(
        server, prepared_file_url, tmp_path, budget=BUDGET, owner_share=25
    ) as app:
        yield app


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers check often whether a body is too slow."""
    monkeypatch.setattr("towpath.apps.uploads.room._HOLD_AFTER", 0.002)


def uploads_of(app: FastAPI) -> UploadService:
    return app.state.services["uploads"]


async def used(app: FastAPI) -> int:
    return await uploads_of(app).lifecycle.records.budget.used()


@asynccontextmanager
async def keyed(app: FastAPI, owner: str = "") -> AsyncGenerator[httpx.AsyncClient]:
    """A client with a key of its own, which is its owner unless *owner* names one."""
    ledger: Ledger = app.state.ledger
    more: dict[str, Any] = {"owner": owner} if owner else {}
    made = await ledger.keys.create("test", scopes=("read", "submit"), **more)
    async with client_of(app, made.secret.get_secret_value()) as client:
        yield client


def code_of(answer: httpx.Response) -> str:
    return answer.json()["type"].rpartition("/")[2]


async def begin_parts(client: httpx.AsyncClient, count: int) -> list[httpx.Response]:
    """Send the first 64 KiB of each of *count* parts of one upload."""
    upload = await start(client, **SMALL)
    return [await put(client, upload, part * PER_PART, FEW) for part in range(count)]


class TestBegunParts:
    async def test_many_begun_parts_of_one_key_do_not_lock_it_out(self, app: FastAPI) -> None:
        async with keyed(app) as client:
            answers = await begin_parts(client, 14)
            assert [answer.status_code for answer in answers] == [200] * 14
            assert await used(app) == 14 * 64 * KIB
            upload = await start(client, size=8 * MIB, chunk_size=8 * MIB)
            assert (await put(client, upload, 0, bytes(8 * MIB))).status_code == 200

    async def test_begun_parts_of_two_keys_do_not_lock_out_others(self, app: FastAPI) -> None:
        async with keyed(app) as one, keyed(app) as two, keyed(app) as three:
            for client in (one, two):
                answers = await begin_parts(client, 15)
                assert [answer.status_code for answer in answers] == [200] * 15
            upload = await start(three, size=16 * MIB, chunk_size=8 * MIB)
            for number in (0, 1):
                assert (await put(three, upload, number, bytes(8 * MIB))).status_code == 200

    async def test_parts_begun_by_tus_do_not_lock_out_others(self, app: FastAPI) -> None:
        async with keyed(app) as client:
            client.headers.update(TUS)
            for _ in range(14):
                path = await create(client, 8 * MIB)
                assert (await patch(client, path, 0, FEW)).status_code == 204
            assert await used(app) == 14 * 64 * KIB


async def test_an_abandoned_part_blocks_its_owner_only_until_it_is_silent(
    server: EmbeddedServer, prepared_file_url: str, tmp_path: Path
) -> None:
    """A part is as large as the share; it is silent after four leases."""
    small: dict[str, Any] = {"budget": 32 * MIB, "owner_share": 25, "body_lease": seconds(1)}
    async with (
        uploads_app(server, prepared_file_url, tmp_path, **small) as app,
        keyed(app) as client,
    ):
        left = await start(client, size=8 * MIB, chunk_size=64 * KIB)
        assert (await put(client, left, 0, FEW)).status_code == 200
        upload = await start(client, size=8 * MIB, chunk_size=8 * MIB)

        async def has_room() -> bool:
            answer = await put(client, upload, 0, bytes(8 * MIB))
            if answer.status_code == 200:
                return True
            assert (answer.status_code, code_of(answer)) == (429, "share-full")
            assert answer.json()["missing"] == []
            assert int(answer.headers["Retry-After"]) >= 1
            return False

        await eventually_async(has_room)
        missing = await client.get(f"{ROOT}/{left['upload_id']}/missing")
        assert missing.json()["missing"] == [[0, 127]]


async def test_a_chunk_of_an_upload_without_a_size_reserves_only_its_own_bytes(
    app: FastAPI,
) -> None:
    async with keyed(app) as client:
        upload = await start(client, chunk_size=16 * MIB)
        answer = await put(client, upload, 0, bytes(81_000))
        assert answer.status_code == 200
        assert await used(app) == 81_000


# ── connections ──────────────────────────────────────────────────────────────────────────


class Dripping:
    """A connection that announces a chunk and sends a few bytes of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def begin(
        cls, url: str, client: httpx.AsyncClient, upload: dict[str, Any], number: int, size: int
    ) -> "Dripping":
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = (
            f"PUT {ROOT}/{upload['upload_id']}/chunks/{number} HTTP/1.1\r\nHost: x\r\n"
            f"X-API-Key: {client.headers['X-API-Key']}\r\nContent-Length: {size}\r\n\r\n"
        )
        writer.write(head.encode() + b"drip")
        await writer.drain()
        return cls(reader, writer)

    async def status(self) -> int:
        return int((await self.reader.readline()).split()[1])

    async def hang_up(self) -> None:
        self.writer.close()

    async def reset(self) -> None:
        own: socket.socket = self.writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def dripping(app: FastAPI, owners: int, each: int) -> AsyncGenerator[list[Dripping]]:
    """Connections of several owners, each of which begins a part of 8 MiB; and their room."""
    drips: list[Dripping] = []
    async with listening(app) as url:
        for _ in range(owners):
            async with keyed(app) as client:
                upload = await start(client, size=200 * MIB, chunk_size=8 * MIB)
                drips += [
                    await Dripping.begin(url, client, upload, number, 8 * MIB)
                    for number in range(each)
                ]

        async def all_have_room() -> bool:
            return await used(app) == owners * each * 8 * MIB

        await eventually_async(all_have_room)
        yield drips
        for drip in drips:
            drip.writer.close()


class TestConnectionsThatSendSlowly:
    @pytest.mark.usefixtures("quickly")
    async def test_slow_connections_give_way_to_other_owners_who_need_room(
        self, app: FastAPI
    ) -> None:
        async with dripping(app, owners=3, each=2) as drips, keyed(app) as client:
            upload = await start(client, size=8 * MIB, chunk_size=8 * MIB)

            async def has_room() -> bool:
                answer = await put(client, upload, 0, bytes(8 * MIB))
                assert answer.status_code in (200, 503)
                return answer.status_code == 200

            await eventually_async(has_room)
            answers = [asyncio.create_task(drip.status()) for drip in drips]
            done, rest = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            assert {answer.result() for answer in done} == {503}
            for answer in rest:
                answer.cancel()

    @pytest.mark.usefixtures("quickly")
    async def test_slow_connections_give_way_to_others_of_their_owner(self, app: FastAPI) -> None:
        async with listening(app) as url, keyed(app) as client:
            slow = await start(client, size=200 * MIB, chunk_size=8 * MIB)
            drips = [await Dripping.begin(url, client, slow, n, 8 * MIB) for n in range(2)]

            async def both_have_room() -> bool:
                return await used(app) == 16 * MIB

            await eventually_async(both_have_room)
            upload = await start(client, size=8 * MIB, chunk_size=8 * MIB)

            async def has_room() -> bool:
                return (await put(client, upload, 0, bytes(8 * MIB))).status_code == 200

            await eventually_async(has_room)
            for drip in drips:
                drip.writer.close()

    @pytest.mark.usefixtures("quickly")
    async def test_slow_connections_continue_while_nobody_needs_their_room(
        self, app: FastAPI
    ) -> None:
        async with dripping(app, owners=1, each=1) as [drip]:
            budget = uploads_of(app).lifecycle.records.budget
            before = await budget.leases()

            async def was_held() -> bool:
                return min((await budget.leases()).values()) > min(before.values())

            await eventually_async(was_held)
            drip.writer.write(bytes(8 * MIB - 4))
            assert await drip.status() == 200

    @pytest.mark.parametrize("end", [Dripping.hang_up, Dripping.reset])
    async def test_the_room_of_a_closed_connection_is_released(
        self, app: FastAPI, end: Any
    ) -> None:
        async with dripping(app, owners=2, each=2) as drips:
            for drip in drips:
                await end(drip)

            async def room_is_back() -> bool:
                return await used(app) == 0

            await eventually_async(room_is_back, within=60)


# ── shares ───────────────────────────────────────────────────────────────────────────────


class TestAnOwner:
    async def test_all_keys_of_an_owner_have_one_share(self, app: FastAPI) -> None:
        async with keyed(app, "team") as one, keyed(app, "team") as two, keyed(app) as other:
            await pause(app)
            upload = await start(one, size=200 * MIB, chunk_size=8 * MIB)
            for number in (0, 1):
                assert (await put(one, upload, number, bytes(8 * MIB))).status_code == 200
            for client in (one, two):
                more = await start(client, size=8 * MIB, chunk_size=8 * MIB)
                answer = await put(client, more, 0, bytes(8 * MIB))
                assert (answer.status_code, code_of(answer)) == (429, "share-full")
            upload = await start(other, size=16 * MIB, chunk_size=8 * MIB)
            for number in (0, 1):
                assert (await put(other, upload, number, bytes(8 * MIB))).status_code == 200


class TestABegunPart:
    async def test_a_part_begun_by_tus_continues_while_the_budget_is_full(
        self, app: FastAPI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("towpath.apps.uploads.appending._ROOM_WITHIN", 0.0)
        async with keyed(app) as client:
            client.headers.update(TUS)
            path = await create(client, 8 * MIB)
            assert (await patch(client, path, 0, FEW)).status_code == 204
            await fill(app)
            other = await create(client, 8 * MIB)
            answer = await patch(client, other, 0, FEW)
            assert (answer.status_code, code_of(answer)) == (503, "budget-full")
            rest = bytes(8 * MIB - len(FEW))
            assert (await patch(client, path, len(FEW), rest)).status_code == 204


async def fill(app: FastAPI) -> None:
    """Use up all room that is for new parts."""
    budget = uploads_of(app).lifecycle.records.budget
    for other in range(5):
        lease = BodyLease(
            f"l{other}", f"u{other}", 0, f"o{other // 2}", 8 * MIB, 8 * MIB, stays=True
        )
        assert await budget.reserve(lease) is None


async def test_a_body_with_a_checksum_that_exceeds_the_share_is_too_large(app: FastAPI) -> None:
    """After a 503 its client would try forever: the share is smaller than the body."""
    body = bytes(12 * MIB)
    named = base64.b64encode(sha1(body, usedforsecurity=False).digest()).decode()
    async with keyed(app) as client:
        client.headers.update(TUS)
        path = await create(client, 24 * MIB)
        assert (await patch(client, path, 0, bytes(4 * MIB))).status_code == 204
        answer = await patch(client, path, 4 * MIB, body, Upload_Checksum=f"sha1 {named}")
        assert (answer.status_code, code_of(answer)) == (413, "upload-too-large")
        few = body[:MIB]
        named = base64.b64encode(sha1(few, usedforsecurity=False).digest()).decode()
        answer = await patch(client, path, 4 * MIB, few, Upload_Checksum=f"sha1 {named}")
        assert answer.status_code == 204
