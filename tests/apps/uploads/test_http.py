"""Uploads over HTTP: every path, every refusal with its status, and bodies that are cut."""

import asyncio
import base64
import random
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.uploads.requests import ROOT, C, finished, pause, put, start, uploaded
from tests.apps.uploads.serving import ORIGIN, uploads_app
from tests.server.in_process import client_of, key_of, listening
from tests.waiting import eventually_async
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.embedded import EmbeddedServer
from towpath.errors import InvalidOption


@pytest.fixture(scope="module")
def data() -> bytes:
    """A file of three chunks and two parts."""
    return random.Random(7).randbytes(2 * C + 7)


class TestAnUpload:
    async def test_an_upload_goes_from_its_start_to_its_content(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        checksum = {"algorithm": "sha256", "value": sha256(data).hexdigest()}
        found = await uploaded(client, data, checksum=checksum, connector_id="c1", path="docs/")
        assert found["status"] == "COMPLETED"
        assert (found["final_size"], found["total_chunks"]) == (len(data), 3)
        assert found["s3_key"] == f"connectors/c1/{found['node_id']}"
        content = await client.get(f"{ROOT}/{found['upload_id']}/content")
        assert content.content == data
        listed = (await client.get(ROOT, params={"status": "COMPLETED"})).json()
        assert [shown["upload_id"] for shown in listed["uploads"]] == [found["upload_id"]]

    async def test_the_answer_to_a_chunk_has_the_published_fields(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        upload = await start(client, size=len(data))
        answer = await put(
            client, upload, 1, data[C : 2 * C], headers={"Content-Type": "text/html"}
        )
        assert answer.json() == {
            "node_id": upload["node_id"],
            "state": "UPLOADING",
            "chunk_number": 1,
            "received_chunks": 1,
            "duplicate": False,
            "safety": "memory",
        }
        again = await put(client, upload, 1, data[C : 2 * C])
        assert (again.status_code, again.json()["duplicate"]) == (200, True)
        other = await put(client, upload, 1, data[:C])
        assert (other.status_code, other.json()["type"].rpartition("/")[2]) == (
            409,
            "chunk-differs",
        )
        missing = await client.get(f"{ROOT}/{upload['upload_id']}/missing")
        assert missing.json() == {"missing": [[0, 0], [2, 2]]}

    async def test_the_same_idempotency_key_returns_the_same_upload(
        self, client: httpx.AsyncClient
    ) -> None:
        headers = {"Idempotency-Key": "one"}
        body = {"name": "a", "size": 5}
        first = await client.post(ROOT, json=body, headers=headers)
        again = await client.post(ROOT, json=body, headers=headers)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["upload_id"] == again.json()["upload_id"]
        other = await client.post(ROOT, json={"name": "b"}, headers=headers)
        assert other.status_code == 409

    @pytest.mark.parametrize("chunks", [0, 1, 2])
    async def test_a_repeated_empty_last_chunk_is_a_duplicate(
        self, client: httpx.AsyncClient, data: bytes, chunks: int
    ) -> None:
        """While the upload is under way, and after it is completed."""
        upload = await start(client)
        last = {"params": {"is_last": "true"}}
        first = await put(client, upload, chunks, b"", **last)
        again = await put(client, upload, chunks, b"", **last)
        for number in range(chunks):
            await put(client, upload, number, data[number * C : number * C + C])
        found = await finished(client, upload)
        behind = await put(client, upload, chunks, b"", **last)
        assert (found["status"], found["final_size"]) == ("COMPLETED", chunks * C)
        assert [answer.status_code for answer in (first, again, behind)] == [200, 200, 200]
        told = [answer.json()["duplicate"] for answer in (first, again, behind)]
        assert told == [False, True, True]

    async def test_an_empty_chunk_is_refused_unless_it_follows_the_last_one(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        upload = await start(client)
        last = {"params": {"is_last": "true"}}
        await put(client, upload, 0, data[:C])
        assert (await put(client, upload, 1, b"", **last)).status_code == 200
        assert (await put(client, upload, 2, b"", **last)).status_code == 422
        assert (await put(client, upload, 1, b"")).status_code == 422
        assert (await put(client, upload, 1, b"x", **last)).status_code == 422
        assert (await put(client, upload, 0, b"", **last)).status_code in (409, 422)

    async def test_an_upload_shows_the_id_of_its_multipart_upload(
        self, client: httpx.AsyncClient, data: bytes, server: EmbeddedServer
    ) -> None:
        upload = await start(client, size=3 * C)
        path = f"{ROOT}/{upload['upload_id']}"
        for number in range(2):
            await put(client, upload, number, data[number * C : number * C + C])

        async def part_is_stored() -> bool:
            return (await client.get(path)).json()["uploaded_chunks"] == 2

        await eventually_async(part_is_stored)
        shown = (await client.get(path)).json()
        key = f"upload:{{{upload['upload_id']}}}:state"
        kept = server.ask("HGET", key, "s3_upload_id")
        assert shown["status"] == "UPLOADING"
        assert shown["s3_upload_id"]
        assert kept == shown["s3_upload_id"].encode()
        await put(client, upload, 2, data[:C])
        assert (await finished(client, upload))["s3_upload_id"] == shown["s3_upload_id"]

    async def test_an_upload_of_unknown_size_ends_with_is_last(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        upload = await start(client)
        await put(client, upload, 1, b"end", params={"is_last": "true"})
        await put(client, upload, 0, data[:C])
        found = await finished(client, upload)
        content = await client.get(f"{ROOT}/{found['upload_id']}/content")
        assert content.content == data[:C] + b"end"

    async def test_a_read_with_wait_returns_at_the_end_of_the_upload(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        """Or after the given time; at once for an upload that has ended."""
        upload = await start(client, size=len(data))
        path = f"{ROOT}/{upload['upload_id']}"
        assert (await client.get(path, params={"wait": 0.01})).json()["status"] == "PENDING"
        waiting = asyncio.create_task(client.get(path, params={"wait": 10}))
        for number in range(3):
            await put(client, upload, number, data[number * C : number * C + C])
        found = (await waiting).json()
        while found["status"] != "COMPLETED":
            found = (await client.get(path, params={"wait": 10})).json()
        assert (await client.get(path, params={"wait": 10})).json() == found

    async def test_an_upload_can_be_aborted(self, client: httpx.AsyncClient, data: bytes) -> None:
        upload = await start(client, size=len(data))
        await put(client, upload, 0, data[:C])
        path = f"{ROOT}/{upload['upload_id']}"
        assert (await client.delete(path)).json()["status"] == "ABORTED"
        assert (await put(client, upload, 1, data[C : 2 * C])).status_code == 410
        for answer in (
            await client.get(f"{path}/missing"),
            await client.get(f"{path}/content"),
            await client.post(f"{path}/complete"),
            await client.post(f"{path}/resume"),
        ):
            assert answer.status_code == 410

    async def test_an_upload_needs_a_key_with_the_scope(self, app: FastAPI) -> None:
        async with client_of(app) as nobody:
            assert (await nobody.post(ROOT, json={"name": "a"})).status_code == 401
        async with client_of(app, await key_of(app, "read")) as reader:
            assert (await reader.post(ROOT, json={"name": "a"})).status_code == 403
            assert (await reader.get(ROOT)).status_code == 200
        async with client_of(app, await key_of(app, "submit", queues=("mails",))) as other:
            assert (await other.post(ROOT, json={"name": "a"})).status_code == 403


@pytest.mark.parametrize(
    ("quota", "fits"), [({"open_per_key": 2}, 1), ({"bytes_per_key": 2 * C}, C)]
)
async def test_a_key_at_its_quota_gets_a_retry_after(
    server: EmbeddedServer,
    prepared_file_url: str,
    tmp_path: Path,
    quota: dict[str, int],
    fits: int,
) -> None:
    """A key may have two uploads under way; other keys have their own quota."""
    async with uploads_app(server, prepared_file_url, tmp_path, **quota) as app:
        keys = [await key_of(app, "read", "submit") for _ in range(2)]
        async with client_of(app, keys[0]) as one, client_of(app, keys[1]) as other:
            first, _ = [await start(one, size=fits) for _ in range(2)]
            refused = await one.post(ROOT, json={"name": "a", "chunk_size": C, "size": fits})
            assert refused.status_code == 429
            assert refused.headers["Retry-After"] == "10"
            assert refused.json()["type"].endswith("/quota-reached")
            await start(other, size=fits)
            assert (await one.delete(f"{ROOT}/{first['upload_id']}")).status_code == 200
            await start(one, size=fits)


class TestTheServerRefuses:
    async def test_an_invalid_start_is_refused(self, client: httpx.AsyncClient) -> None:
        for fields in (
            {"name": ""},
            {"name": "a\0b"},
            {"name": "x" * 1025},
            {"size": -1},
            {"size": "5"},
            {"chunk_size": 1},
            {"chunk_size": 65 * MIB},
            {"connector_id": "../x"},
            {"mime_type": "nonsense"},
            {"drive": "a/b"},
            {"checksum": {"algorithm": "md5", "value": "00"}},
            {"checksum": {"algorithm": "crc32c", "value": "zz"}},
            {"unknown": 1},
        ):
            answer = await client.post(ROOT, json={"name": "a", "size": 5, **fields})
            assert answer.status_code == 422, fields
        for fields in ({"chunk_size": 17 * MIB}, {"size": 2**43}):
            answer = await client.post(ROOT, json={"name": "a", **fields})
            assert answer.status_code == 413, fields

    async def test_a_chunk_with_an_invalid_number_or_length_is_refused(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        upload = await start(client, size=len(data))
        for number in ("-1", "3", "99999999999999999999", "x", "1.5"):
            assert (await put(client, upload, number, b"x")).status_code == 422, number
        for size in (0, 1, C - 1, C + 1):
            assert (await put(client, upload, 0, data[:size])).status_code == 422, size
        assert (await put(client, upload, 0, data[:C])).status_code == 200

    async def test_is_last_is_refused_for_another_chunk_than_the_last(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        """Whether the chunk was received before or not, with and without a known size."""
        last = {"is_last": "true"}
        upload, unsized = await start(client, size=len(data)), await start(client)
        assert (await put(client, unsized, 1, b"end", params=last)).status_code == 200
        for upload_id in (upload, unsized):
            for _ in range(2):
                answer = await put(client, upload_id, 0, data[:C], params=last)
                assert answer.status_code == 409
                assert answer.json()["type"].endswith("/last-chunk-differs")
                await put(client, upload_id, 0, data[:C])
        assert (await put(client, unsized, 2, b"end", params=last)).status_code == 422

    async def test_an_invalid_wait_is_refused(self, client: httpx.AsyncClient) -> None:
        upload = await start(client, size=1)
        for wait in ("-1", "11", "nan", "inf", "x"):
            found = await client.get(f"{ROOT}/{upload['upload_id']}", params={"wait": wait})
            assert found.status_code == 422, wait

    async def test_a_chunk_that_does_not_match_its_digest_is_refused(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        upload = await start(client, size=len(data))
        for digest, status in ((sha256(b"").digest(), 422), (sha256(data[:C]).digest(), 200)):
            header = f"sha-256=:{base64.b64encode(digest).decode()}:"
            answer = await put(client, upload, 0, data[:C], headers={"Content-Digest": header})
            assert answer.status_code == status
        answer = await put(client, upload, 1, b"", headers={"Content-Digest": "nonsense"})
        assert answer.status_code == 422

    async def test_a_chunk_with_unavailable_safety_is_refused(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        upload = await start(client, size=len(data))
        answer = await put(client, upload, 0, data[:C], params={"safety": "replica"})
        assert answer.status_code == 422
        answer = await put(client, upload, 0, data[:C], params={"safety": "nonsense"})
        assert answer.status_code == 422

    async def test_a_refusal_for_a_full_share_names_the_chunks_to_send_first(
        self, app: FastAPI, client: httpx.AsyncClient, data: bytes
    ) -> None:
        """The share is 32 MiB: three parts and half of a fourth were received."""
        await pause(app)
        upload = await start(client, size=50 * MIB)
        for number in range(7):
            assert (await put(client, upload, number, data[:C])).status_code == 200
        answer = await put(client, upload, 8, data[:C])
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["missing"] == [[7, 7]]

    async def test_a_full_budget_is_answered_with_503(self, app: FastAPI) -> None:
        """New parts get three quarters of 64 MiB, and an owner at most half."""
        await pause(app)
        answers: list[httpx.Response] = []
        for parts in (4, 2, 1):
            async with client_of(app, await key_of(app, "read", "submit")) as client:
                upload = await start(client, size=50 * MIB, chunk_size=2 * C)
                answers += [await put(client, upload, n, bytes(2 * C)) for n in range(parts)]
        assert [answer.status_code for answer in answers] == [200] * 6 + [503]
        assert int(answers[-1].headers["Retry-After"]) >= 1
        assert answers[-1].json()["missing"] == []

    async def test_an_unknown_upload_is_not_found(self, client: httpx.AsyncClient) -> None:
        for path in ("nobody", "nobody/missing", "nobody/content", "nobody/events"):
            assert (await client.get(f"{ROOT}/{path}")).status_code == 404
        assert (await put(client, {"upload_id": "nobody"}, 0, b"x")).status_code == 404

    async def test_a_truncated_body_is_refused_and_leaves_no_bytes(
        self, app: FastAPI, client: httpx.AsyncClient, data: bytes, server: EmbeddedServer
    ) -> None:
        upload = await start(client, size=len(data))
        async with listening(app) as url:
            reader, writer = await asyncio.open_connection(
                urlsplit(url).hostname, urlsplit(url).port
            )
            head = (
                f"PUT {ROOT}/{upload['upload_id']}/chunks/0 HTTP/1.1\r\nHost: x\r\n"
                f"X-API-Key: {client.headers['X-API-Key']}\r\nContent-Length: {C}\r\n\r\n"
            )
            writer.write(head.encode() + data[: 3 * MIB])
            await writer.drain()
            await eventually_async(lambda: _some(server, "upload:*:staging:*"))
            writer.close()
            await eventually_async(lambda: _none(server, "upload:*:staging:*"))
            assert reader is not None
        missing = await client.get(f"{ROOT}/{upload['upload_id']}/missing")
        assert missing.json() == {"missing": [[0, 2]]}


async def _some(server: EmbeddedServer, pattern: str) -> bool:
    return bool(server.ask("KEYS", pattern))


async def _none(server: EmbeddedServer, pattern: str) -> bool:
    return not server.ask("KEYS", pattern)


class TestTheContent:
    async def test_an_html_file_is_sent_as_an_attachment_in_a_sandbox(
        self, client: httpx.AsyncClient
    ) -> None:
        page = b"<script>alert(1)</script>"
        found = await uploaded(client, page, name='../"ü.html', mime_type="text/html")
        answer = await client.get(f"{ROOT}/{found['upload_id']}/content")
        assert answer.content == page
        assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        assert ".." not in answer.headers["content-disposition"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("sandbox")

    @pytest.mark.parametrize(
        "kind",
        [
            "text/csv",
            "text/csv; charset=iso-8859-1",
            "text/plain;charset=utf-8",
            "application/json",
            'multipart/related; boundary="a b"',
        ],
    )
    async def test_the_content_has_the_type_of_the_upload(
        self, client: httpx.AsyncClient, kind: str
    ) -> None:
        found = await uploaded(client, b"a;b", mime_type=kind)
        path = f"{ROOT}/{found['upload_id']}/content"
        for wish in ({}, {"Range": "bytes=0-1"}):
            answer = await client.get(path, headers=wish)
            assert answer.headers["content-type"] == kind
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"].startswith("sandbox")
            assert answer.headers["content-disposition"].startswith("attachment")

    async def test_the_content_can_be_read_in_ranges(self, client: httpx.AsyncClient) -> None:
        found = await uploaded(client, b"0123456789")
        path = f"{ROOT}/{found['upload_id']}/content"
        for asked, status, part in (
            ("bytes=0-3", 206, b"0123"),
            ("bytes=5-", 206, b"56789"),
            ("bytes=-4", 206, b"6789"),
            ("bytes=0-999", 206, b"0123456789"),
            ("bytes=3-2", 200, b"0123456789"),
            ("bytes=0-1,3-4", 200, b"0123456789"),
            ("lines=1-2", 200, b"0123456789"),
        ):
            answer = await client.get(path, headers={"Range": asked})
            assert (answer.status_code, answer.content) == (status, part), asked
        answer = await client.get(path, headers={"Range": "bytes=10-"})
        assert (answer.status_code, answer.headers["Content-Range"]) == (416, "bytes */10")

    async def test_an_upload_has_no_content_before_it_is_completed(
        self, client: httpx.AsyncClient
    ) -> None:
        upload = await start(client, size=5)
        answer = await client.get(f"{ROOT}/{upload['upload_id']}/content")
        assert answer.status_code == 409


class TestTheLocation:
    async def test_the_location_names_the_host_of_the_request(
        self, client: httpx.AsyncClient
    ) -> None:
        answer = await client.post(
            ROOT,
            json={"name": "a"},
            headers={"Host": "files.example:8443", "X-Forwarded-Host": "x"},
        )
        told = f"http://files.example:8443{ROOT}/{answer.json()['upload_id']}"
        assert answer.headers["Location"] == told

    @pytest.mark.parametrize("host", ["", "a b", "evil.example/x", "u@evil.example", 'a"b', "a<b"])
    async def test_the_location_is_a_path_if_the_host_is_invalid(
        self, client: httpx.AsyncClient, host: str
    ) -> None:
        answer = await client.post(ROOT, json={"name": "a"}, headers={"Host": host})
        assert answer.headers["Location"] == f"{ROOT}/{answer.json()['upload_id']}"

    async def test_the_location_is_below_the_public_url(
        self, server: EmbeddedServer, prepared_file_url: str, tmp_path: Path
    ) -> None:
        public = "https://files.example/towpath"
        async with (
            uploads_app(server, prepared_file_url, tmp_path, public_url=f"{public}/") as app,
            client_of(app, await key_of(app, "submit")) as client,
        ):
            answer = await client.post(ROOT, json={"name": "a"}, headers={"Host": "inside:7000"})
        assert answer.headers["Location"] == f"{public}{ROOT}/{answer.json()['upload_id']}"

    @pytest.mark.parametrize(
        "url", ["files.example", "ftp://files.example", "https://u:p@files.example", "https://",
                "https://files.example/?a=1", "https://files.example/#a", "https://a b/"],
    )  # fmt: skip
    def test_an_invalid_public_url_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidOption):
            UploadsOptions(public_url=url)


class TestOtherOrigins:
    async def test_a_preflight_request_needs_no_key(self, app: FastAPI) -> None:
        asked = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "PUT",
            "Access-Control-Request-Headers": "x-api-key,content-digest",
        }
        async with client_of(app) as browser:
            answer = await browser.options(f"{ROOT}/x/chunks/0", headers=asked)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            other = await browser.options(
                f"{ROOT}/x/chunks/0", headers={**asked, "Origin": "https://evil.example"}
            )
            assert "access-control-allow-origin" not in other.headers
            elsewhere = await browser.options("/api/v1/queues", headers=asked)
            assert "access-control-allow-origin" not in elsewhere.headers
