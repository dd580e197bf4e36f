"""`towpath uploads`: list, show, abort, resume, sweep."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from towpath.console.arguments import After, Limit, duration
from towpath.console.verb import DatabaseOption, Session, each, file_in, open_ledger, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.apps.uploads.model import Range, Status, Upload
    from towpath.apps.uploads.options import UploadsOptions
    from towpath.apps.uploads.service import UploadService, View

app = typer.Typer(no_args_is_help=True, help="Uploads: list, show, abort, resume, sweep.")

COLUMNS = ("UPLOAD", "STATUS", "NAME", ">SIZE", "CREATED", "ERROR")
_REASON_MOST = 100
_COUNTS = ("received_chunks", "uploaded_chunks", "total_chunks", "bytes_uploaded")

UploadArgument = Annotated[str, typer.Argument(metavar="UPLOAD", help="The upload's id.")]
UploadsArgument = Annotated[list[str], typer.Argument(metavar="UPLOAD…", help="The uploads' ids.")]
StatusOption = Annotated[
    str | None, typer.Option("--status", "-s", metavar="STATUS", help="Only with this status.")
]
Older = Annotated[
    str | None,
    typer.Option(
        "--older",
        metavar="TIME",
        help="Delete leftovers of at least this age; use 0s only if nobody uploads.  [default: 1h]",
    ),
]


@verb(
    app,
    "list",
    examples="""
        towpath uploads list --status FAILED
        towpath uploads list --limit 200 --json
    """,
)
async def list_(
    session: Session,
    *,
    status: StatusOption = None,
    limit: Limit = 50,
    after: After = None,
    database: DatabaseOption = None,
) -> None:
    """List uploads, newest first, page by page.

    \b
    Statuses: PENDING, UPLOADING, COMPLETING, COMPLETED, FAILED, EXPIRED, ABORTED
    """
    wanted = _status(status)
    async with _uploads(session, database) as uploads:
        page = await uploads.list(status=wanted, after=after, size=limit)
    none = "no such uploads"
    session.out.answers(COLUMNS, page, _row, _summary, none=none)
    if len(page) == limit:
        words = f" --status {status}" if status else ""
        command = f"towpath uploads list{words} --limit {limit}"
        session.out.more(page[-1].upload_id, command)


@verb(
    app,
    "show",
    examples="""
        towpath uploads show 01JQ3W8Z5T6V7X8Y9Z0A1B2C3D
        towpath uploads show 01JQ3W8Z5T6V7X8Y9Z0A1B2C3D --json
    """,
)
async def show(
    session: Session, *, upload: UploadArgument, database: DatabaseOption = None
) -> None:
    """Show one upload: its status and its missing chunks."""
    async with _uploads(session, database) as uploads:
        view = await uploads.status(upload)
        missing = await uploads.missing(upload) if view.status.open else None
    if session.out.as_json:
        session.out.object(_describe(view, missing))
    else:
        session.out.facts(_facts(view, missing))


@verb(app, "abort", examples="towpath uploads abort 01JQ3W8Z5T6V7X8Y9Z0A1B2C3D")
async def abort(session: Session, *, ids: UploadsArgument, database: DatabaseOption = None) -> None:
    """Abort uploads that are not completed.

    All their bytes are deleted, in Redis and in the store.
    """
    await _each(session, database, ids, lambda uploads, id: uploads.abort(id))


@verb(app, "resume", examples="towpath uploads resume 01JQ3W8Z5T6V7X8Y9Z0A1B2C3D")
async def resume(
    session: Session, *, ids: UploadsArgument, database: DatabaseOption = None
) -> None:
    """Resume FAILED uploads.

    Bytes that are in the store or in Redis need not be sent again; `show` lists the missing
    chunks.
    """
    await _each(session, database, ids, lambda uploads, id: uploads.resume(id))


@verb(
    app,
    "sweep",
    examples="""
        towpath uploads sweep
        towpath uploads sweep --older 10m --json
    """,
)
async def sweep(session: Session, *, older: Older = None, database: DatabaseOption = None) -> None:
    """Clean up all uploads now, as servers do by themselves.

    Stalled uploads continue, and uploads that were silent for too long expire. Leftovers of crashes
    are deleted from the store: parts of uploads that ended, and parts of unknown uploads. Exit code
    75 if the store could not delete something.
    """
    from towpath.console import exits  # noqa: PLC0415 -- a help text needs none

    age = duration("older", older)
    async with _uploads(session, database) as uploads:
        swept = await uploads.sweeping.once(older=age)
    facts: dict[str, Any] = msgspec.to_builtins(swept)
    session.out.answer(facts, {name.replace("_", " "): value for name, value in facts.items()})
    if swept.troubles:
        session.out.note("some uploads could not be swept now; sweep again later")
        raise typer.Exit(exits.LATER)


# ── how it is done ───────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _uploads(session: Session, database: str | None) -> AsyncGenerator[UploadService]:
    from towpath.apps.uploads.options import UploadsOptions  # noqa: PLC0415 -- slow to import
    from towpath.apps.uploads.serving import open_uploads  # noqa: PLC0415 -- the same

    def tables() -> Any:
        from towpath.apps.uploads.tables import TABLES  # noqa: PLC0415 -- needs an extra

        return (TABLES,)

    options = session.settings.of(UploadsOptions)
    if database is None and session.settings.database is None:
        options = _with_own(session, options)
    async with (
        session.engine() as engine,
        open_ledger(session, database, tables) as ledger,
        open_uploads(engine, ledger, options) as uploads,
    ):
        yield uploads


def _with_own(session: Session, options: UploadsOptions) -> UploadsOptions:
    """The options with the object store of `towpath up`, if there is data of it."""
    from towpath.apps.application import BundledObjectStore, BundledServices  # noqa: PLC0415 -- slow to import
    from towpath.apps.uploads.stores.options import with_bundled  # noqa: PLC0415

    data = session.settings.data.expanduser().absolute()
    if not file_in(data).exists():
        return options
    there = session.own_objects()
    return with_bundled(
        options, BundledServices(data, BundledObjectStore(*there) if there else None)
    )


async def _each(
    session: Session,
    database: str | None,
    ids: list[str],
    do: Callable[[UploadService, str], Awaitable[View]],
) -> None:
    """Call *do* for each upload; print its new status, or why it was refused."""
    async with _uploads(session, database) as uploads:

        async def see_to(id: str) -> None:
            view = await do(uploads, id)
            session.out.answer(_describe(view, None), f"{id}  {view.status}")

        await each(session, ids, see_to)


def _status(text: str | None) -> Status | None:
    from towpath.apps.uploads.model import Status  # noqa: PLC0415 -- slow to import

    if text is None:
        return None
    if text.upper() not in set(Status):
        raise InvalidOption("status", text, rule=f"must be one of {', '.join(Status)}")
    return Status(text.upper())


# ── for people and for programs ──────────────────────────────────────────────────────────


def _row(upload: Upload) -> list[object]:
    error = upload.error and upload.error[:_REASON_MOST]
    return [upload.upload_id, upload.status, upload.name, upload.size, upload.created_at, error]


def _summary(upload: Upload) -> dict[str, Any]:
    names = ("upload_id", "node_id", "name", "status", "size", "created_at", "updated_at", "error")
    return {name: getattr(upload, name) for name in names if getattr(upload, name) is not None}


def _describe(view: View, missing: list[Range] | None) -> dict[str, Any]:
    """An upload for programs: its row, the fields of its state, and what is missing."""
    row: dict[str, Any] = msgspec.to_builtins(view.upload)
    counts = {name: int(view.fields[name]) for name in _COUNTS}
    described = {**row, **counts, "status": view.status.value}
    if missing is not None:
        described["missing"] = [[gap.first, gap.last] for gap in missing]
    return {name: value for name, value in described.items() if value not in (None, "")}


def _facts(view: View, missing: list[Range] | None) -> dict[str, object]:
    upload, fields = view.upload, view.fields
    return {
        "upload": upload.upload_id,
        "status": view.status,
        "name": upload.name,
        "document": upload.node_id,
        "owner": upload.owner or None,
        "size": upload.size,
        "chunks": f"{fields['received_chunks']} of {fields['total_chunks']} received, "
        f"{fields['uploaded_chunks']} in the store",
        "chunk size": upload.chunk_size,
        "missing": ", ".join(f"{gap.first}-{gap.last}" for gap in missing) if missing else None,
        "object": upload.s3_key,
        "etag": upload.etag,
        "error": upload.error,
        "created": upload.created_at,
        "changed": upload.updated_at,
        "expires at": upload.deadline if view.status.open else None,
    }
