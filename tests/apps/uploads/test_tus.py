"""tus 1.0 over HTTP: resumed uploads, the status of every refusal, and the protocol itself."""

import asyncio
import base64
from collections.abc import AsyncIterator
from hashlib import sha1
from typing import cast
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from tests.apps.uploads.requests import pause
from tests.apps.uploads.serving import ORIGIN
from tests.apps.uploads.tus_client import (
    BODY,
    TUS,
    P,
    content,
    create,
    encoded,
    fill_budget,
    head_of_patch,
    offset_of,
    patch,
)
from tests.server.in_process import client_of, key_of, listening
from tests.waiting import HANGS, eventually_async
from towpath.apps.uploads.options import MIB
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.web.limits import DEFAULTS


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a body without room for its next part wait longer than any test."""
    monkeypatch.setattr("towpath.apps.uploads.appending._ROOM_WITHIN", 2 * HANGS)


class TestAnUpload:
    async def test_bodies_of_any_size_continue_at_the_offset(
        self, tus: httpx.AsyncClient, data: bytes
    ) -> None:
        """The bodies end in the middle of chunks, and span several."""
        metadata = encoded(filename="ä.pdf", filetype="application/pdf", note="")
        path = await create(tus, len(data), Upload_Metadata=metadata)
        at = 0
        for size in (3, 100_000, P - 100_003, 5, P + 1, len(data)):
            answer = await patch(tus, path, at, data[at : at + size])
            at = min(at + size, len(data))
            assert (answer.status_code, answer.headers["Upload-Offset"]) == (204, str(at))
            assert answer.headers["Upload-Expires"].endswith(" GMT")
            assert await offset_of(tus, path) == at
        assert await content(tus, path) == data
        found = await tus.head(path)
        assert found.headers["Upload-Length"] == found.headers["Upload-Offset"] == str(len(data))
        assert found.headers["Upload-Metadata"] == metadata.replace("note ", "note")
        assert found.headers["Cache-Control"] == "no-store"
        row = (await tus.get(f"/api/v1/uploads/{path.rpartition('/')[2]}")).json()
        assert (row["name"], row["mime_type"]) == ("ä.pdf", "application/pdf")

    async def test_the_creation_may_have_the_first_bytes(
        self, tus: httpx.AsyncClient, data: bytes
    ) -> None:
        headers = BODY | {"Upload-Length": "9"}
        answer = await tus.post("/files", content=b"12345", headers=headers)
        assert (answer.status_code, answer.headers["Upload-Offset"]) == (201, "5")
        path = answer.headers["Location"]
        assert (await patch(tus, path, 5, b"6789")).status_code == 204
        assert await content(tus, path) == b"123456789"

    @pytest.mark.parametrize(
        ("told", "kept"),
        [
            ("text/csv", "text/csv"),
            ("text/csv;charset=utf-8", "text/csv;charset=utf-8"),
            ("x", "application/octet-stream"),
        ],
    )
    async def test_an_upload_has_the_media_type_of_its_metadata(
        self, tus: httpx.AsyncClient, told: str, kept: str
    ) -> None:
        path = await create(tus, 3, Upload_Metadata=encoded(filetype=told))
        await patch(tus, path, 0, b"a;b")
        assert await content(tus, path) == b"a;b"
        answer = await tus.get(f"/api/v1/uploads/{path.rpartition('/')[2]}/content")
        assert answer.headers["content-type"] == kept

    async def test_an_upload_may_be_empty(self, tus: httpx.AsyncClient) -> None:
        path = await create(tus, 0)
        assert await offset_of(tus, path) == 0
        assert await content(tus, path) == b""

    @pytest.mark.parametrize("size", [0, 5, P, P + 5])
    async def test_the_length_may_be_given_later(
        self, tus: httpx.AsyncClient, data: bytes, size: int
    ) -> None:
        path = await create(tus)
        assert (await patch(tus, path, 0, data[:size])).status_code == 204
        found = (await tus.head(path)).headers
        assert found["Upload-Defer-Length"] == "1"
        assert "Upload-Length" not in found
        if size:
            less = await patch(tus, path, size, b"", Upload_Length=str(size - 1))
            assert less.status_code == 409
        end = await patch(tus, path, size, b"", Upload_Length=str(size))
        assert (end.status_code, end.headers["Upload-Offset"]) == (204, str(size))
        assert await content(tus, path) == data[:size]

    async def test_the_same_idempotency_key_returns_the_same_upload(
        self, tus: httpx.AsyncClient
    ) -> None:
        first = await create(tus, 5, Idempotency_Key="one")
        assert await create(tus, 5, Idempotency_Key="one") == first

    async def test_tus_needs_a_key_with_the_scope(self, app: FastAPI) -> None:
        headers = TUS | {"Upload-Length": "5"}
        async with client_of(app) as nobody:
            assert (await nobody.post("/files", headers=headers)).status_code == 401
        async with client_of(app, await key_of(app, "read")) as reader:
            answer = await reader.post("/files", headers=headers)
            assert (answer.status_code, answer.headers["Tus-Resumable"]) == (403, "1.0.0")

    async def test_an_upload_continues_from_the_stored_parts_after_a_loss_of_redis(
        self, tus: httpx.AsyncClient, data: bytes, server: EmbeddedServer
    ) -> None:
        path = await create(tus, len(data))
        assert (await patch(tus, path, 0, data[: P + 5])).status_code == 204

        async def stored() -> bool:
            api = f"/api/v1/uploads/{path.rpartition('/')[2]}"
            return (await tus.get(api)).json()["uploaded_chunks"] == 1

        await eventually_async(stored)
        for key in cast("list[str]", server.ask("KEYS", "upload*")):
            server.ask("DEL", key)
        assert await offset_of(tus, path) == P
        lost = await patch(tus, path, P + 5, data[P + 5 :])
        assert (lost.status_code, lost.headers["Upload-Offset"]) == (409, str(P))
        assert (await patch(tus, path, P, data[P:])).status_code == 204
        assert await content(tus, path) == data


class TestTusRefuses:
    async def test_another_version_of_tus_is_refused(self, tus: httpx.AsyncClient) -> None:
        for version in ("0.2.2", ""):
            headers = {"Tus-Resumable": version, "Upload-Length": "5"}
            answer = await tus.post("/files", headers=headers)
            assert (answer.status_code, answer.headers["Tus-Version"]) == (412, "1.0.0")

    async def test_an_invalid_creation_is_refused(self, tus: httpx.AsyncClient) -> None:
        for headers in (
            {},
            {"Upload-Length": "-1"},
            {"Upload-Length": "x"},
            {"Upload-Length": "5", "Upload-Defer-Length": "1"},
            {"Upload-Defer-Length": "2"},
            {"Upload-Length": "5", "Upload-Metadata": "filename *"},
            {"Upload-Length": "5", "Upload-Metadata": "a QQ==,a QQ=="},
            {"Upload-Length": "5", "Upload-Metadata": "a /w=="},
            {"Upload-Length": "5", "Upload-Concat": "nonsense"},
            {"Upload-Concat": "final;"},
            {"Upload-Concat": "final;/elsewhere/x"},
        ):
            answer = await tus.post("/files", headers=headers)
            assert (answer.status_code, answer.headers["Tus-Resumable"]) == (400, "1.0.0"), headers
        for metadata in (encoded(filename="a\0b"), encoded(drive="../x")):
            headers = {"Upload-Length": "5", "Upload-Metadata": metadata}
            assert (await tus.post("/files", headers=headers)).status_code == 422
        most = (await tus.options("/files")).headers["Tus-Max-Size"]
        answer = await tus.post("/files", headers={"Upload-Length": str(int(most) + 1)})
        assert answer.status_code == 413

    async def test_an_invalid_patch_is_refused(self, tus: httpx.AsyncClient) -> None:
        path = await create(tus, 9)
        assert (await patch(tus, path, 0, b"12345")).status_code == 204
        for offset in (0, 4, 6, 9):
            answer = await patch(tus, path, offset, b"6")
            assert (answer.status_code, answer.headers["Upload-Offset"]) == (409, "5"), offset
        assert (await patch(tus, path, 5, b"67890")).status_code == 413
        answer = await tus.patch(path, content=b"6", headers=BODY)
        assert answer.status_code == 400
        answer = await tus.patch(path, content=b"6", headers={"Upload-Offset": "5"})
        assert answer.status_code == 415
        assert (await patch(tus, path, 5, b"6", Upload_Length="8")).status_code == 409
        assert await offset_of(tus, path) == 5

        async def endless() -> AsyncIterator[bytes]:
            yield b"6789"
            yield b"0"

        headers = BODY | {"Upload-Offset": "5"}
        answer = await tus.patch(path, content=endless(), headers=headers)
        assert answer.status_code == 413

    async def test_an_unknown_or_ended_upload_is_refused(self, tus: httpx.AsyncClient) -> None:
        assert (await tus.head("/files/nobody")).status_code == 404
        assert (await patch(tus, "/files/nobody", 0, b"x")).status_code == 404
        assert (await tus.delete("/files/nobody")).status_code == 404
        path = await create(tus, 5)
        assert (await patch(tus, path, 0, b"123")).status_code == 204
        assert (await tus.delete(path)).status_code == 204
        assert (await tus.head(path)).status_code == 410
        assert (await patch(tus, path, 3, b"45")).status_code == 410
        done = await create(tus, 1)
        assert (await patch(tus, done, 0, b"x")).status_code == 204
        assert await content(tus, done) == b"x"
        assert (await tus.delete(done)).status_code == 409
        assert (await patch(tus, done, 1, b"")).status_code == 204
        assert (await patch(tus, done, 0, b"y")).status_code == 409

    async def test_bytes_before_a_full_share_count(
        self, app: FastAPI, tus: httpx.AsyncClient, data: bytes, patient: None
    ) -> None:
        """Four uploads have a part each, so the share has no room for a fifth."""
        await pause(app)
        begun = [await create(tus, len(data)) for _ in range(4)]
        for path in begun:
            assert (await patch(tus, path, 0, data[:P])).status_code == 204
        path = await create(tus, len(data))
        answer = await patch(tus, path, 0, data)
        assert answer.status_code == 503  # tus-js-client gives up at 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert (await tus.delete(begun[0])).status_code == 204
        assert (await patch(tus, path, 0, data[:5])).status_code == 204

    async def test_head_succeeds_while_others_resume_the_same_upload(
        self, app: FastAPI, tus: httpx.AsyncClient
    ) -> None:
        path = await create(tus, 5)
        assert (await patch(tus, path, 0, b"123")).status_code == 204
        lifecycle = app.state.services["uploads"].lifecycle
        await lifecycle.fail(path.rpartition("/")[2], 1, "no luck")
        answers = await asyncio.gather(*(tus.head(path) for _ in range(5)))
        assert [answer.status_code for answer in answers] == [200] * 5
        assert (await patch(tus, path, await offset_of(tus, path), b"45")).status_code == 204
        assert await content(tus, path) == b"12345"

    async def test_the_bytes_of_a_stalled_body_count(
        self, app: FastAPI, tus: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a 408 clients would give up: they do not repeat what is refused with 4xx."""
        quick = msgspec.structs.replace(DEFAULTS, body_within=seconds(0.2))
        monkeypatch.setattr("towpath.apps.uploads.http.tus.DEFAULTS", quick)
        path = await create(tus, P)
        async with listening(app) as url:
            place = urlsplit(url)
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(head_of_patch(tus, path, length=P).encode() + b"1234567")
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANGS)
            writer.close()
        assert answer.startswith(b"HTTP/1.1 204")
        assert b"upload-offset: 7\r\n" in answer.lower()

    @pytest.mark.parametrize("checked", [False, True])
    async def test_a_full_budget_refuses_new_parts_and_takes_bytes_of_begun_ones(
        self, app: FastAPI, tus: httpx.AsyncClient, patient: None, *, checked: bool
    ) -> None:
        path, other = await create(tus, P), await create(tus, P)
        assert (await patch(tus, path, 0, b"12")).status_code == 204
        await fill_budget(app)
        body = bytes(2 * MIB)
        named = base64.b64encode(sha1(body, usedforsecurity=False).digest()).decode()
        headers = {"Upload_Checksum": f"sha1 {named}"} if checked else {}
        answer = await patch(tus, other, 0, body, **headers)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert await offset_of(tus, other) == 0
        assert (await patch(tus, path, 2, bytes(P - 2))).status_code == 204
        assert await content(tus, path) == b"12" + bytes(P - 2)

    async def test_a_full_budget_is_refused_before_the_body_is_read(
        self, app: FastAPI, tus: httpx.AsyncClient, patient: None
    ) -> None:
        path = await create(tus, P)
        await fill_budget(app)
        async with listening(app) as url:
            place = urlsplit(url)
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(head_of_patch(tus, path, length=P).encode())
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANGS)
            writer.close()
        assert answer.startswith(b"HTTP/1.1 503")

    async def test_a_creation_whose_bytes_have_no_room_still_succeeds(
        self, app: FastAPI, tus: httpx.AsyncClient, patient: None
    ) -> None:
        """The upload exists without bytes: its client continues with a PATCH."""
        await fill_budget(app)
        answer = await tus.post("/files", content=b"123", headers=BODY | {"Upload-Length": "3"})
        assert (answer.status_code, answer.headers["Upload-Offset"]) == (201, "0")
        path = urlsplit(answer.headers["Location"]).path
        assert (await patch(tus, path, 0, b"123")).status_code == 503

    async def test_bytes_that_another_client_sent_first_are_refused(
        self, tus: httpx.AsyncClient, data: bytes
    ) -> None:
        path = await create(tus, len(data))
        answers = await asyncio.gather(*(patch(tus, path, 0, data) for _ in range(4)))
        assert {answer.status_code for answer in answers} <= {204, 409}
        at = await offset_of(tus, path)
        if at < len(data):
            assert (await patch(tus, path, at, data[at:])).status_code == 204
        assert await content(tus, path) == data


class TestTheProtocol:
    async def test_the_protocol_is_described_to_clients_without_a_key(self, app: FastAPI) -> None:
        async with client_of(app) as stranger:
            answer = await stranger.options("/files")
            assert (answer.status_code, answer.headers["Tus-Version"]) == (204, "1.0.0")
            assert (await stranger.post("/files", headers=TUS)).status_code == 401
            assert (await stranger.get("/files")).status_code == 401
            assert (await stranger.options("/files/x")).status_code == 401
            assert (await stranger.options("/api/v1/uploads")).status_code == 401

    async def test_the_location_of_an_upload_is_absolute(self, tus: httpx.AsyncClient) -> None:
        tus.headers["Host"] = "files.example"
        headers = {"Upload-Concat": "partial", "Upload-Length": "3"}
        pieces: list[str] = []
        for _ in range(2):
            answer = await tus.post("/files", content=b"123", headers=BODY | headers)
            pieces.append(answer.headers["Location"])
        assert {url.rpartition("/")[0] for url in pieces} == {"http://files.example/files"}
        final = await tus.post("/files", headers={"Upload-Concat": f"final;{' '.join(pieces)}"})
        assert final.headers["Location"].startswith("http://files.example/files/")
        assert await content(tus, urlsplit(final.headers["Location"]).path) == b"123123"

    async def test_options_describes_the_protocol(self, tus: httpx.AsyncClient) -> None:
        del tus.headers["Tus-Resumable"]
        answer = await tus.options("/files")
        assert (answer.status_code, answer.headers["Tus-Version"]) == (204, "1.0.0")
        assert set(answer.headers["Tus-Extension"].split(",")) == {
            "creation", "creation-with-upload", "creation-defer-length", "checksum",
            "termination", "expiration", "concatenation",
        }  # fmt: skip
        assert "sha1" in answer.headers["Tus-Checksum-Algorithm"].split(",")

    async def test_pages_of_allowed_origins_may_use_tus(
        self, app: FastAPI, tus: httpx.AsyncClient
    ) -> None:
        asked = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "PATCH",
            "Access-Control-Request-Headers": "authorization,tus-resumable,upload-offset",
        }
        async with client_of(app) as browser:
            answer = await browser.options("/files/x", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "upload-offset" in answer.headers["access-control-allow-headers"]
        path = await create(tus, 5)
        found = await tus.head(path, headers={"Origin": ORIGIN})
        assert "Upload-Offset" in found.headers["access-control-expose-headers"]

    async def test_a_post_may_stand_for_another_method(self, tus: httpx.AsyncClient) -> None:
        path = await create(tus, 5)
        headers = BODY | {"Upload-Offset": "0", "X-HTTP-Method-Override": "PATCH"}
        answer = await tus.post(path, content=b"123", headers=headers)
        assert (answer.status_code, answer.headers["Upload-Offset"]) == (204, "3")
        answer = await tus.post(path, headers={"X-HTTP-Method-Override": "HEAD"})
        assert answer.headers["Upload-Offset"] == "3"
        answer = await tus.post(path, headers={"X-HTTP-Method-Override": "DELETE"})
        assert answer.status_code == 204
        answer = await tus.post(path)
        assert answer.status_code == 405
