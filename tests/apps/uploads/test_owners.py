"""An upload can be used by keys of its owner and by admins; for others it does not exist."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from tests.apps.uploads.requests import ROOT, finished, put, start, uploaded
from tests.apps.uploads.serving import uploads_app
from tests.apps.uploads.tus_client import BODY, TUS, create, offset_of, patch
from tests.apps.uploads.uploading import UploadServices
from tests.server.in_process import client_of
from towpath.apps.uploads.http import ROUTES
from towpath.apps.uploads.http.owning import require_own_to_read, require_own_to_send
from towpath.apps.uploads.model import NewUpload
from towpath.apps.uploads.tables import TABLES
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger
from towpath.testing import drift

DATA = b"0123456789" * 10_000


class People:
    """Clients with keys of their own, for one server."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.ledger: Ledger = app.state.ledger

    async def client(self, *scopes: str, owner: str | None = None) -> httpx.AsyncClient:
        made = await self.ledger.keys.create("test", scopes=scopes, owner=owner)
        client = client_of(self._app, made.secret.get_secret_value())
        client.headers.update(TUS)
        return client


@pytest.fixture
async def people(app: FastAPI) -> People:
    return People(app)


@pytest.fixture
async def ann(people: People) -> httpx.AsyncClient:
    return await people.client("submit", "read", owner="ann")


@pytest.fixture
async def eve(people: People) -> httpx.AsyncClient:
    return await people.client("submit", "read")


async def tries(client: httpx.AsyncClient, id: str) -> dict[str, tuple[int, Any]]:
    """The answers to *client* for every request about an upload."""
    sends = BODY | {"Upload-Offset": "0"}
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"{ROOT}/{id}", {}),
        ("GET", f"{ROOT}/{id}?wait=0.01", {}),
        ("GET", f"{ROOT}/{id}/missing", {}),
        ("GET", f"{ROOT}/{id}/events", {}),
        ("GET", f"{ROOT}/{id}/content", {}),
        ("PUT", f"{ROOT}/{id}/chunks/0", {"content": b"x" * 70_000}),
        ("PUT", f"{ROOT}/{id}/chunks/0?count=2", {"content": b"x" * 70_000}),
        ("POST", f"{ROOT}/{id}/complete", {}),
        ("POST", f"{ROOT}/{id}/resume", {}),
        ("POST", f"{ROOT}/{id}/credential", {"json": {}}),
        ("DELETE", f"{ROOT}/{id}", {}),
        ("HEAD", f"/files/{id}", {}),
        ("PATCH", f"/files/{id}", {"headers": sends, "content": b"x"}),
        ("PATCH", f"/files/{id}", {"headers": sends | {"Upload-Length": "5"}, "content": b"x"}),
        ("DELETE", f"/files/{id}", {}),
        ("POST", f"/files/{id}", {"headers": {"X-HTTP-Method-Override": "DELETE"}}),
        (
            "POST",
            f"/files/{id}",
            {"headers": sends | {"X-HTTP-Method-Override": "PATCH"}, "content": b"x"},
        ),
        ("POST", "/files", {"headers": {"Upload-Concat": f"final;/files/{id}"}}),
    ]
    found: dict[str, tuple[int, Any]] = {}
    for number, (method, path, more) in enumerate(calls):
        answer = await client.request(method, path, **more)
        told = answer.text.replace(id, "ID")
        found[f"{number} {method} {path.replace(id, 'ID')}"] = answer.status_code, told
    return found


class TestAnUploadOfAnotherKey:
    async def test_an_upload_of_another_owner_answers_like_an_unknown_one(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient
    ) -> None:
        upload = await start(ann, size=len(DATA), chunk_size=65536)
        theirs = await tries(eve, upload["upload_id"])
        nobodys = await tries(eve, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
        assert theirs == nobodys
        assert {status for status, _ in theirs.values()} == {404}
        untouched = (await ann.get(f"{ROOT}/{upload['upload_id']}")).json()
        assert (untouched["status"], untouched["received_chunks"]) == ("PENDING", 0)

    async def test_a_completed_upload_of_another_owner_is_not_readable(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient
    ) -> None:
        upload = await uploaded(ann, DATA)
        path = f"{ROOT}/{upload['upload_id']}/content"
        assert (await eve.get(path)).status_code == 404
        assert (await ann.get(path)).content == DATA

    async def test_uploads_of_other_owners_are_not_listed(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient
    ) -> None:
        mine = [(await start(ann, size=5))["upload_id"] for _ in range(3)]
        theirs = (await start(eve, size=5))["upload_id"]
        assert ids((await ann.get(ROOT)).json()) == mine[::-1]
        assert ids((await eve.get(ROOT)).json()) == [theirs]
        first = (await ann.get(ROOT, params={"size": 2})).json()
        rest = (await ann.get(ROOT, params={"size": 2, "after": first["after"]})).json()
        assert ids(first) + ids(rest) == mine[::-1]

    async def test_a_partial_upload_of_another_owner_can_not_be_joined(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient
    ) -> None:
        pieces = [await whole_piece(ann, DATA[:5]), await whole_piece(eve, DATA[5:])]
        for who in (ann, eve):
            refused = await who.post(
                "/files", headers={"Upload-Concat": f"final;{' '.join(pieces)}"}
            )
            assert refused.status_code == 404
        own = await whole_piece(ann, DATA[5:])
        joined = await ann.post("/files", headers={"Upload-Concat": f"final;{pieces[0]} {own}"})
        assert joined.status_code == 201

    async def test_the_scope_is_checked_before_the_owner(
        self, ann: httpx.AsyncClient, people: People
    ) -> None:
        """A key without the scope can't find out which uploads exist."""
        upload = await start(ann, size=5)
        worker = await people.client("work")
        for id in (upload["upload_id"], "01ARZ3NDEKTSV4RRFFQ69G5FAV"):
            assert {status for status, _ in (await tries(worker, id)).values()} == {403}


def ids(page: dict[str, Any]) -> list[str]:
    return [upload["upload_id"] for upload in page["uploads"]]


async def whole_piece(client: httpx.AsyncClient, data: bytes) -> str:
    """The path of a partial upload whose bytes were all received."""
    path = await create(client, len(data), Upload_Concat="partial")
    assert (await patch(client, path, 0, data)).status_code == 204
    return path


class TestAnUploadOfTheSameOwner:
    async def test_every_key_of_the_owner_uses_an_upload(
        self, ann: httpx.AsyncClient, people: People
    ) -> None:
        other = await people.client("submit", "read", owner="ann")
        path = await create(ann, len(DATA))
        assert (await patch(other, path, 0, DATA[:1000])).status_code == 204
        assert await offset_of(ann, path) == 1000
        assert (await patch(ann, path, 1000, DATA[1000:])).status_code == 204
        upload = {"upload_id": path.rpartition("/")[2]}
        assert (await finished(other, upload))["status"] == "COMPLETED"
        assert (await other.get(f"{ROOT}/{upload['upload_id']}/content")).content == DATA

    async def test_an_upload_continues_after_its_key_was_rotated(
        self, app: FastAPI, people: People, ann: httpx.AsyncClient
    ) -> None:
        made = await people.ledger.keys.create("test", scopes=("submit", "read"))
        first = client_of(app, made.secret.get_secret_value())
        upload = await start(first, size=len(DATA), chunk_size=65536)
        assert (await put(first, upload, 0, DATA[:65536])).status_code == 200
        rotated = await people.ledger.keys.rotate(made.info.id)
        second = client_of(app, rotated.secret.get_secret_value())
        assert (await put(second, upload, 1, DATA[65536:])).status_code == 200
        assert (await finished(second, upload))["status"] == "COMPLETED"
        assert (await ann.get(f"{ROOT}/{upload['upload_id']}")).status_code == 404

    async def test_another_key_of_the_owner_finds_an_upload_by_its_idempotency_key(
        self, ann: httpx.AsyncClient, people: People
    ) -> None:
        other, headers = await people.client("submit", owner="ann"), {"Idempotency-Key": "one"}
        body = {"name": "a", "size": 5}
        first = await ann.post(ROOT, json=body, headers=headers)
        again = await other.post(ROOT, json=body, headers=headers)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["upload_id"] == again.json()["upload_id"]

    async def test_an_owner_may_have_the_longest_name(self, people: People) -> None:
        long = await people.client("submit", "read", owner="o" * 100)
        assert ids((await long.get(ROOT)).json()) == []
        upload = await start(long, size=5)
        assert ids((await long.get(ROOT)).json()) == [upload["upload_id"]]


class TestAnAdmin:
    async def test_an_admin_uses_and_lists_every_upload(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient, people: People
    ) -> None:
        admin = await people.client("admin")
        uploads = [(await start(who, size=5))["upload_id"] for who in (ann, eve)]
        assert ids((await admin.get(ROOT)).json()) == uploads[::-1]
        for id in uploads:
            assert (await admin.delete(f"{ROOT}/{id}")).json()["status"] == "ABORTED"

    async def test_only_admins_use_uploads_that_were_started_without_a_key(
        self, app: FastAPI, ann: httpx.AsyncClient, people: People
    ) -> None:
        view, _ = await app.state.services["uploads"].start(NewUpload(name="a", size=5))
        path = f"{ROOT}/{view.upload.upload_id}"
        assert (await ann.get(path)).status_code == 404
        assert ids((await ann.get(ROOT)).json()) == []
        assert (await (await people.client("admin")).get(path)).status_code == 200
        given, _ = await app.state.services["uploads"].start(
            NewUpload(name="a", size=5), owner="ann"
        )
        assert (await ann.get(f"{ROOT}/{given.upload.upload_id}")).status_code == 200


class TestSharedUploads:
    @pytest.fixture
    async def app(
        self, server: EmbeddedServer, prepared_file_url: str, tmp_path: Path
    ) -> AsyncIterator[FastAPI]:
        async with uploads_app(server, prepared_file_url, tmp_path, shared=True) as app:
            yield app

    async def test_may_be_used_by_every_key_with_the_scope(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient
    ) -> None:
        path = await create(ann, len(DATA))
        id = path.rpartition("/")[2]
        assert (await patch(eve, path, 0, DATA)).status_code == 204
        assert (await finished(eve, {"upload_id": id}))["status"] == "COMPLETED"
        assert (await eve.get(f"{ROOT}/{id}/content")).content == DATA
        assert ids((await eve.get(ROOT)).json()) == [id]
        pieces = [await whole_piece(ann, DATA[:5]), await whole_piece(eve, DATA[5:])]
        joined = await eve.post("/files", headers={"Upload-Concat": f"final;{' '.join(pieces)}"})
        assert joined.status_code == 201


class TestTheCheck:
    def test_every_path_of_an_upload_checks_its_owner(self) -> None:
        def calls(route: APIRoute) -> set[Any]:
            return {dependant.call for dependant in route.dependant.dependencies}

        routes: Sequence[Any] = [route for router in ROUTES.routers for route in router.routes]
        unguarded = {
            f"{sorted(route.methods)} {route.path}"
            for route in routes
            if "{id}" in route.path
            and not calls(route) & {require_own_to_send, require_own_to_read}
        }
        assert unguarded == {"['OPTIONS'] /files/{id}"}

    async def test_the_check_of_the_owner_reads_no_row_for_a_chunk(
        self, uploads: UploadServices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server caches the owner together with the plan."""
        view, _ = await uploads.service.start(NewUpload(name="a", size=5), owner="k")
        reads: list[object] = []
        read = uploads.service.lifecycle.ledger.read

        async def counted(do: Any) -> Any:
            reads.append(do)
            return await read(do)

        monkeypatch.setattr(uploads.service.lifecycle.ledger, "read", counted)
        assert (await uploads.service.known(view.upload.upload_id)).owner == "k"
        await uploads.service.plan_of(view.upload.upload_id)
        assert reads == []


class TestOnPostgresql:
    async def test_the_migrations_make_the_declared_tables(self, server_url: str) -> None:
        assert await drift(TABLES, url=server_url) == []

    async def test_an_owner_may_have_the_longest_name(
        self, server: EmbeddedServer, prepared_server_url: str, tmp_path: Path
    ) -> None:
        async with uploads_app(server, prepared_server_url, tmp_path) as app:
            long = await People(app).client("submit", "read", owner="o" * 100)
            upload = await uploaded(long, DATA)
            assert ids((await long.get(ROOT)).json()) == [upload["upload_id"]]


class TestAWatcher:
    async def test_a_watcher_of_another_owner_sees_no_events(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient
    ) -> None:
        upload = await uploaded(ann, DATA)
        path = f"{ROOT}/{upload['upload_id']}/events"
        assert (await eve.get(path)).status_code == 404
        assert "event: completed" in (await ann.get(path)).text
