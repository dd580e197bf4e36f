"""`towpath uploads`, beside a database, a Redis and a directory of objects."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.apps.uploads.uploading import UploadServices
from tests.cli.command import Command
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.service import View
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.tables import TABLES
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger

C = 4 * MIB
T = TypeVar("T")
Do = Callable[[Callable[[UploadServices], Awaitable[T]]], T]


@pytest.fixture
def uploads(towpath: Command, prepared_file_url: str) -> Command:
    """The command, with a database and a Redis of its own."""
    towpath.env["DATABASE_URL"] = prepared_file_url
    towpath.env["TOWPATH_UPLOADS__DIRECTORY"] = str(towpath.directory / "objects")
    return towpath


@pytest.fixture
def with_services(uploads: Command) -> Do[object]:
    """Runs something as a client, a server and a worker."""
    options = UploadsOptions(directory=Path(uploads.env["TOWPATH_UPLOADS__DIRECTORY"]))

    def do(what: Callable[[UploadServices], Awaitable[T]]) -> T:
        async def run() -> T:
            ledger = Ledger(uploads.env["DATABASE_URL"], tables=[TABLES], sinks=("redis",))
            async with (
                ledger,
                Engine(uploads.env["TOWPATH_URL"]) as engine,
                DirectoryStore(options) as store,
            ):
                await ledger.migrate()
                return await what(UploadServices(engine, ledger, store, options))

        return asyncio.run(run())

    return do


async def half_sent(services: UploadServices) -> View:
    view = await services.start(name="report.pdf", size=3 * C)
    await services.put(view, 1, bytes(C))
    return view


class TestUploads:
    def test_are_listed_and_shown(self, uploads: Command, with_services: Do[View]) -> None:
        view = with_services(half_sent)
        upload = view.upload.upload_id
        listed = uploads("uploads", "list")
        assert "report.pdf" in listed.out
        [line] = uploads("uploads", "list", "--status", "pending", "--json").out.splitlines()
        assert json.loads(line)["upload_id"] == upload
        shown = uploads("uploads", "show", upload)
        assert "1 of 3 received, 0 in the store" in shown.out
        assert "0-0, 2-2" in shown.out
        told = json.loads(uploads("uploads", "show", upload, "--json").out)
        assert (told["status"], told["missing"]) == ("UPLOADING", [[0, 0], [2, 2]])
        assert uploads("uploads", "show", "nobody").code == 5
        assert uploads("uploads", "list", "--status", "nonsense").code == 2
        assert "no such uploads" in uploads("uploads", "list", "--status", "FAILED").err

    def test_are_aborted_one_by_one(self, uploads: Command, with_services: Do[View]) -> None:
        upload = with_services(half_sent).upload.upload_id
        ended = uploads("uploads", "abort", "nobody", upload)
        assert ended.code == 5
        assert f"{upload}  ABORTED" in ended.out
        assert uploads("uploads", "resume", upload).code == 4

    def test_that_failed_are_resumed(self, uploads: Command, with_services: Do[View]) -> None:
        async def failed(services: UploadServices) -> View:
            view = await half_sent(services)
            await services.lifecycle.fail(view.upload.upload_id, 1, "no luck")
            return view

        upload = with_services(failed).upload.upload_id
        assert "no luck" in uploads("uploads", "list", "--status", "FAILED").out
        resumed = uploads("uploads", "resume", upload, "--json")
        assert json.loads(resumed.out)["status"] == "UPLOADING"

    def test_are_swept(self, uploads: Command, with_services: Do[View]) -> None:
        async def orphaned(services: UploadServices) -> View:
            view = await half_sent(services)
            await services.store.begin_multipart(view.upload.s3_key, upload="x")
            return view

        with_services(orphaned)
        told = json.loads(uploads("uploads", "sweep", "--json").out)
        assert (told["looked_at"], told["chunks_queued"], told["orphans"]) == (1, 1, 0)
        swept = uploads("uploads", "sweep", "--older", "0s")
        assert swept.code == 0
        assert "orphans" in swept.out
        assert (
            json.loads(uploads("uploads", "sweep", "--older", "0s", "--json").out)["orphans"] == 0
        )
