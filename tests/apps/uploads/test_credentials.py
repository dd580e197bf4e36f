"""Credentials for web pages: what their holder may do, and what is refused."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from tests.apps.uploads.requests import ROOT
from tests.apps.uploads.serving import ORIGIN, uploads_app
from tests.apps.uploads.tus_client import BODY, TUS, create, patch
from tests.server.in_process import client_of, listening
from tests.waiting import HANGS, eventually_async
from towpath.apps.uploads.credentials import Credentials, UploadGrant
from towpath.apps.uploads.model import NewUpload
from towpath.apps.uploads.options import UploadsOptions
from towpath.calls.signature import new_secret
from towpath.clock import hours, instant, minutes, seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.errors import InvalidOption
from towpath.ledger.keys.key import NewKey
from towpath.ledger.ledger import Ledger

DATA = b"0123456789" * 20_000
SECRET = new_secret()
HALF = 65536


@pytest.fixture
async def app(
    server: EmbeddedServer, prepared_file_url: str, tmp_path: Path
) -> AsyncIterator[FastAPI]:
    async with uploads_app(server, prepared_file_url, tmp_path, secrets=(SECRET,)) as app:
        yield app


async def new_key(app: FastAPI, *scopes: str, owner: str | None = None, **more: Any) -> NewKey:
    ledger: Ledger = app.state.ledger
    return await ledger.keys.create(
        "backend", scopes=scopes or ("submit", "read"), owner=owner, **more
    )


@pytest.fixture
async def key(app: FastAPI) -> NewKey:
    return await new_key(app)


@pytest.fixture
def backend(app: FastAPI, key: NewKey) -> httpx.AsyncClient:
    return client_of(app, key.secret.get_secret_value())


def page_with(app: FastAPI, credential: str, origin: str | None = ORIGIN) -> httpx.AsyncClient:
    """A client of a page of *origin* with the credential; None = a program."""
    page = client_of(app)
    page.headers.update(TUS | {"Authorization": f"Bearer {credential}"})
    if origin is not None:
        page.headers["Origin"] = origin
    return page


async def begin(backend: httpx.AsyncClient, size: int = len(DATA), **more: Any) -> dict[str, Any]:
    """An upload that was started together with its credential, in one call."""
    wish = {"origin": ORIGIN, **more}
    body = {"name": "a.bin", "size": size, "chunk_size": HALF, "credential": wish}
    answer = await backend.post(ROOT, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition("/")[2]


async def finished(page: httpx.AsyncClient, id: str) -> str:
    status = ""

    async def ended() -> bool:
        nonlocal status
        status = (await page.get(f"{ROOT}/{id}")).json()["status"]
        return status not in ("PENDING", "UPLOADING", "COMPLETING")

    await eventually_async(ended)
    return status


class TestThePage:
    async def test_a_page_sends_chunks_and_follows_the_upload(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload = await begin(backend)
        id, page = upload["upload_id"], page_with(app, upload["credential"]["credential"])
        for number, at in enumerate(range(0, len(DATA), HALF)):
            sent = await page.put(f"{ROOT}/{id}/chunks/{number}", content=DATA[at : at + HALF])
            assert sent.status_code == 200, sent.text
        assert (await page.get(f"{ROOT}/{id}/missing")).json() == {"missing": []}
        assert (await page.post(f"{ROOT}/{id}/complete")).status_code == 200
        assert await finished(page, id) == "COMPLETED"
        assert "event: completed" in (await page.get(f"{ROOT}/{id}/events")).text
        assert (await backend.get(f"{ROOT}/{id}/content")).content == DATA

    async def test_a_page_sends_by_tus(self, app: FastAPI, backend: httpx.AsyncClient) -> None:
        upload = await begin(backend)
        page = page_with(app, upload["credential"]["credential"])
        path = upload["credential"]["url"]
        assert (await patch(page, path, 0, DATA[:1000])).status_code == 204
        assert (await page.head(path)).headers["Upload-Offset"] == "1000"
        override = BODY | {"Upload-Offset": "1000", "X-HTTP-Method-Override": "PATCH"}
        assert (await page.post(path, headers=override, content=DATA[1000:])).status_code == 204
        assert await finished(page, upload["upload_id"]) == "COMPLETED"

    async def test_a_page_aborts_its_upload(self, app: FastAPI, backend: httpx.AsyncClient) -> None:
        for path in ("/files", ROOT):
            upload = await begin(backend)
            page = page_with(app, upload["credential"]["credential"])
            ended = await page.delete(f"{path}/{upload['upload_id']}")
            assert ended.status_code in (200, 204)
            assert await finished(backend, upload["upload_id"]) == "ABORTED"

    async def test_a_page_gets_a_credential_for_an_existing_upload(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        backend.headers.update(TUS)
        path = await create(backend, len(DATA))
        answer = await backend.post(
            f"{ROOT}/{path.rpartition('/')[2]}/credential", json={"origin": ORIGIN, "ttl": 60}
        )
        assert answer.status_code == 201
        assert answer.headers["Cache-Control"] == "no-store"
        left = datetime.fromisoformat(answer.json()["expires_at"]).timestamp() * 1000 - wall_ms()
        assert 0 < left <= 60_000
        page = page_with(app, answer.json()["credential"])
        assert (await patch(page, answer.json()["url"], 0, DATA)).status_code == 204

    async def test_requests_of_a_page_count_for_the_key_that_issued_its_credential(
        self, app: FastAPI, backend: httpx.AsyncClient, key: NewKey
    ) -> None:
        upload = await begin(backend)
        page = page_with(app, upload["credential"]["credential"])
        ledger: Ledger = app.state.ledger
        await ledger.keys.note_uses()
        before = {info.id: info.last_used_at for info in await ledger.keys.list()}[key.info.id]
        assert (await page.head(upload["credential"]["url"])).status_code == 200
        await ledger.keys.note_uses()
        after = {info.id: info.last_used_at for info in await ledger.keys.list()}[key.info.id]
        assert before is not None
        assert after is not None
        assert after >= before

    async def test_a_credential_has_no_scope_that_its_key_lacks(self, app: FastAPI) -> None:
        sender = client_of(app, (await new_key(app, "submit")).secret.get_secret_value())
        upload = await begin(sender)
        page = page_with(app, upload["credential"]["credential"])
        assert (await page.head(upload["credential"]["url"])).status_code == 200
        assert code(await page.get(f"{ROOT}/{upload['upload_id']}")) == (403, "scope-missing")


class TestACredential:
    async def test_a_credential_is_refused_for_another_upload(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload, other = await begin(backend), await begin(backend)
        page = page_with(app, upload["credential"]["credential"])
        for id in (other["upload_id"], "01ARZ3NDEKTSV4RRFFQ69G5FAV", "{id}"):
            assert code(await page.get(f"{ROOT}/{id}")) == (403, "credential-forbidden")
            sent = await page.put(f"{ROOT}/{id}/chunks/0", content=DATA[:HALF])
            assert code(sent) == (403, "credential-forbidden")
            assert (await patch(page, f"/files/{id}", 0, DATA)).status_code == 403

    async def test_a_credential_is_refused_on_every_other_path(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload = await begin(backend)
        page, id = page_with(app, upload["credential"]["credential"]), upload["upload_id"]
        open_paths = {"/livez", "/readyz"}
        allowed: set[tuple[str, str]] = set()
        description = app.openapi()
        tried = 0
        for path, methods in description["paths"].items():
            for method, operation in methods.items():
                if operation["security"] == [] or path.startswith("/api/v1/webhooks/"):
                    open_paths.add(path)
                    continue
                for value in (id, "1"):
                    named = path.replace("{id}", id)
                    named = re.sub(r"{[^}]+}", value, named)
                    if named.endswith("/events") and "uploads" in named:
                        continue  # another test follows it
                    tried += 1
                    answer = await page.request(method, named)
                    if answer.status_code != 403 or "credential" not in answer.text:
                        allowed.add((method.upper(), path))
        assert tried > 100
        assert allowed == {
            ("GET", "/api/v1/uploads/{id}"),
            ("DELETE", "/api/v1/uploads/{id}"),
            ("GET", "/api/v1/uploads/{id}/missing"),
            ("POST", "/api/v1/uploads/{id}/complete"),
            ("PUT", "/api/v1/uploads/{id}/chunks/{number}"),
        }
        for method, path in (
            ("GET", "/ui/uploads"), ("GET", "/ui/"), ("POST", "/mcp"), ("GET", "/mcp"),
            ("GET", "/openapi.json"), ("GET", "/metrics"), ("POST", "/files"), ("GET", "/nothing"),
            ("GET", f"/files/{id}"), ("PUT", f"/files/{id}"), ("GET", f"{ROOT}/{id}/"),
            ("GET", f"{ROOT}/{id}%2Fmissing"), ("GET", f"{ROOT}//{id}"),
            ("GET", f"{ROOT}/{id}/../{id}/content"), ("GET", f"{ROOT}/{id}/content"),
            ("POST", f"{ROOT}/{id}/resume"), ("POST", f"{ROOT}/{id}/credential"),
        ):  # fmt: skip
            answer = await page.request(method, path)
            assert answer.status_code == 403, (method, path)

    async def test_a_credential_is_refused_from_another_origin(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload = await begin(backend)
        path, token = upload["credential"]["url"], upload["credential"]["credential"]
        for origin in (None, "null", "https://files.example.org", "http://files.example"):
            page = page_with(app, token, origin)
            assert (await page.head(path)).status_code == 403
            answer = await page.get(f"{ROOT}/{upload['upload_id']}")
            assert code(answer) == (403, "credential-origin")

    async def test_a_credential_without_an_origin_is_refused_to_pages(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload = await begin(backend, origin=None)
        token = upload["credential"]["credential"]
        id = upload["upload_id"]
        assert (await page_with(app, token, None).get(f"{ROOT}/{id}")).status_code == 200
        assert (await page_with(app, token, ORIGIN).get(f"{ROOT}/{id}")).status_code == 403

    async def test_a_credential_works_for_a_page_of_the_servers_own_origin(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        """A browser sends no `Origin` with GET and HEAD to the page's own origin."""
        upload = await begin(backend, origin="http://towpath")
        page = page_with(app, upload["credential"]["credential"], None)
        path = upload["credential"]["url"]
        assert (await page.head(path)).status_code == 403
        for site, status in (("same-origin", 200), ("same-site", 403), ("none", 403)):
            assert (await page.head(path, headers={"Sec-Fetch-Site": site})).status_code == status
        elsewhere = {"Sec-Fetch-Site": "same-origin", "Host": "other"}
        assert (await page.head(path, headers=elsewhere)).status_code == 403

    async def test_a_credential_allows_no_more_bytes_than_its_size(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload = await begin(backend, 10)
        page, path = page_with(app, upload["credential"]["credential"]), upload["credential"]["url"]
        assert (await patch(page, path, 0, b"x" * 11)).status_code == 413
        assert (await patch(page, path, 0, b"x", Upload_Length="11")).status_code == 409
        id = upload["upload_id"]
        assert (await page.put(f"{ROOT}/{id}/chunks/1", content=b"x")).status_code == 422

    @pytest.mark.parametrize(
        "change",
        [
            {"size": 7},
            {"mime_type": "text/html"},
            {"upload_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
            {"key": "aaaaaaaaaa"},
            {"expires_at": 1},
        ],
        ids=lambda change: next(iter(change)),
    )
    async def test_a_credential_that_does_not_match_its_upload_is_refused(
        self, app: FastAPI, backend: httpx.AsyncClient, change: dict[str, Any]
    ) -> None:
        """Though its signature is right."""
        upload = await begin(backend)
        token = upload["credential"]["credential"]
        grant = signer().read(token)
        assert grant is not None
        assert signer().sign(grant) == token
        forged = msgspec.structs.replace(grant, **change)
        page = page_with(app, signer().sign(forged))
        assert code(await page.get(f"{ROOT}/{forged.upload_id}")) == (401, "unauthorized")

    async def test_a_credential_with_a_wrong_signature_is_refused(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload = await begin(backend)
        token = upload["credential"]["credential"]
        said, _, signature = token.removeprefix("tpu_").partition(".")
        grant = json.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
        grant[1] = 5
        other = base64.urlsafe_b64encode(json.dumps(grant).encode()).decode().rstrip("=")
        flipped = signature[:-2] + ("AA" if signature[-2:] != "AA" else "BB")
        foreign = signer(new_secret())
        read = signer().read(token)
        assert read is not None
        for wrong in (
            f"tpu_{other}.{signature}", f"tpu_{said}.{flipped}", f"tpu_{said}.", f"tpu_{said}",
            f"tpu_.{signature}", "tpu_", "tpu_.", f"tpu_{said}.{signature}A", f"{token}.{token}",
            "tpu_" + "A" * 5000, foreign.sign(read), f"{said}.{signature}",
        ):  # fmt: skip
            page = page_with(app, wrong)
            answer = await page.get(f"{ROOT}/{upload['upload_id']}")
            assert code(answer) == (401, "unauthorized"), wrong

    async def test_a_credential_ends_with_the_key_that_issued_it(
        self, app: FastAPI, backend: httpx.AsyncClient, key: NewKey
    ) -> None:
        upload = await begin(backend)
        page = page_with(app, upload["credential"]["credential"])
        assert (await page.head(upload["credential"]["url"])).status_code == 200
        await app.state.ledger.keys.revoke(key.info.id)
        assert (await page.head(upload["credential"]["url"])).status_code == 401

    async def test_a_credential_ends_when_its_key_expires(self, app: FastAPI) -> None:
        ends = instant(wall_ms()) + timedelta(seconds=2)
        key = await new_key(app, expires_at=ends)
        upload = await begin(client_of(app, key.secret.get_secret_value()))
        page = page_with(app, upload["credential"]["credential"])

        async def refused() -> bool:
            return (await page.head(upload["credential"]["url"])).status_code == 401

        await eventually_async(refused)
        assert wall_ms() >= ends.timestamp() * 1000

    async def test_a_credential_expires(self, app: FastAPI, backend: httpx.AsyncClient) -> None:
        upload = await begin(backend, ttl=1)
        page = page_with(app, upload["credential"]["credential"])
        ends = datetime.fromisoformat(upload["credential"]["expires_at"]).timestamp() * 1000

        async def refused() -> bool:
            return (await page.head(upload["credential"]["url"])).status_code == 401

        await eventually_async(refused)
        assert wall_ms() >= ends

    async def test_the_end_of_a_credential_ends_its_event_stream(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload = await begin(backend, ttl=2)
        async with listening(app) as url, httpx.AsyncClient(base_url=url, timeout=HANGS) as page:
            page.headers["Authorization"] = f"Bearer {upload['credential']['credential']}"
            page.headers["Origin"] = ORIGIN
            async with asyncio.timeout(HANGS):
                events = await page.get(f"{ROOT}/{upload['upload_id']}/events")
        assert "event: progress" in events.text
        assert "event: completed" not in events.text

    async def test_a_credential_is_accepted_while_its_secret_is_rotated(self) -> None:
        old, new = new_secret(), new_secret()
        grant = a_grant()
        token = signer(old).sign(grant)
        assert Credentials((new, old), longest=hours(1)).read(token) == grant
        assert Credentials((new,), longest=hours(1)).read(token) is None


class TestIssuing:
    async def test_a_credential_is_issued_only_to_keys_of_the_owner(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        upload = await begin(backend)
        path = f"{ROOT}/{upload['upload_id']}/credential"
        other = client_of(app, (await new_key(app)).secret.get_secret_value())
        assert (await other.post(path, json={})).status_code == 404
        reader = client_of(app, (await new_key(app, "read")).secret.get_secret_value())
        assert (await reader.post(path, json={})).status_code == 403
        admin = client_of(app, (await new_key(app, "admin")).secret.get_secret_value())
        issued = await admin.post(path, json={"origin": ORIGIN})
        page = page_with(app, issued.json()["credential"])
        assert (await page.head(issued.json()["url"])).status_code == 200
        assert (await page.get(f"{ROOT}/{upload['upload_id']}/content")).status_code == 403

    async def test_an_admin_issues_a_credential_for_an_upload_without_an_owner(
        self, app: FastAPI
    ) -> None:
        view, _ = await app.state.services["uploads"].start(NewUpload(name="a", size=5))
        admin = client_of(app, (await new_key(app, "admin")).secret.get_secret_value())
        path = f"{ROOT}/{view.upload.upload_id}"
        issued = await admin.post(f"{path}/credential", json={"origin": ORIGIN})
        page = page_with(app, issued.json()["credential"])
        assert (await page.get(path)).status_code == 200
        assert (await page.get(ROOT)).status_code == 403

    async def test_a_credential_needs_an_upload_with_a_size(
        self, backend: httpx.AsyncClient
    ) -> None:
        refused = await backend.post(ROOT, json={"name": "a", "credential": {"origin": ORIGIN}})
        assert refused.status_code == 422
        assert (await backend.get(ROOT)).json()["uploads"] == []
        upload = (await backend.post(ROOT, json={"name": "a"})).json()
        answer = await backend.post(f"{ROOT}/{upload['upload_id']}/credential", json={})
        assert code(answer) == (409, "upload-unsized")

    async def test_a_credential_is_issued_once_the_size_is_known(
        self, app: FastAPI, backend: httpx.AsyncClient
    ) -> None:
        backend.headers.update(TUS)
        path = await create(backend)
        assert (await patch(backend, path, 0, b"01234", Upload_Length="10")).status_code == 204
        answer = await backend.post(
            f"{ROOT}/{path.rpartition('/')[2]}/credential", json={"origin": ORIGIN}
        )
        page = page_with(app, answer.json()["credential"])
        assert (await patch(page, path, 5, b"56789")).status_code == 204

    @pytest.mark.parametrize(
        "wish",
        [
            {"origin": "files.example"},
            {"origin": "https://files.example/page"},
            {"origin": "https://u@files.example"},
            {"origin": "*"},
            {"origin": "null"},
            {"ttl": 0},
            {"ttl": 3601},
            {"ttl": "60"},
            {"size": 5},
        ],
        ids=str,
    )
    async def test_invalid_terms_of_a_credential_are_refused(
        self, backend: httpx.AsyncClient, wish: dict[str, Any]
    ) -> None:
        body = {"name": "a", "size": 5, "credential": wish}
        assert (await backend.post(ROOT, json=body)).status_code == 422
        assert (await backend.get(ROOT)).json()["uploads"] == []

    async def test_no_credential_is_issued_without_a_signing_secret(
        self, server: EmbeddedServer, prepared_file_url: str, tmp_path: Path
    ) -> None:
        async with uploads_app(server, prepared_file_url, tmp_path) as app:
            backend = client_of(app, (await new_key(app)).secret.get_secret_value())
            body: dict[str, Any] = {"name": "a", "size": 5, "credential": {}}
            assert code(await backend.post(ROOT, json=body)) == (503, "credentials-off")
            page = page_with(app, signer().sign(a_grant()))
            assert (await page.get(f"{ROOT}/x")).status_code == 401

    def test_a_credential_lasts_an_hour_at_most(self) -> None:
        assert UploadsOptions(credential_ttl=minutes(5)).credential_ttl == minutes(5)
        for wrong in (hours(2), seconds(0)):
            with pytest.raises(InvalidOption):
                UploadsOptions(credential_ttl=wrong)
        with pytest.raises(InvalidOption):
            Credentials((SECRET,), longest=minutes(5)).terms(origin=None, ttl=minutes(6))


def signer(secret: str = SECRET) -> Credentials:
    """Signs arbitrary grants with the secret of the server."""
    return Credentials((secret,), longest=hours(1))


def a_grant() -> UploadGrant:
    return UploadGrant("u", 5, "text/plain", None, "k", wall_ms() + 1_000_000)
