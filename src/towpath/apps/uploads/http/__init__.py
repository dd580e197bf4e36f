"""Uploads over HTTP: start, send chunks, look, complete, resume, abort, and read the file."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from towpath.apps.uploads.credentials import PREFIX as CREDENTIAL
from towpath.apps.uploads.digests import ContentDigest
from towpath.apps.uploads.errors import ChunkCut, RangeInvalid
from towpath.apps.uploads.http import tus
from towpath.apps.uploads.http.granting import CredentialIn, CredentialOut, check_credential
from towpath.apps.uploads.http.locations import location_of
from towpath.apps.uploads.http.owning import (
    CanRead,
    CanSubmit,
    MayRead,
    MaySend,
    TheUploads,
    listed_owner,
)
from towpath.apps.uploads.http.shapes import (
    ChunkOut,
    ChunkWish,
    LookWish,
    MissingOut,
    StartedOut,
    StartIn,
    SummaryOut,
    UploadOut,
    UploadQuery,
    UploadsOut,
)
from towpath.apps.uploads.lifecycle import progress_of
from towpath.apps.uploads.model import Range
from towpath.apps.uploads.service import Content, UploadService
from towpath.clock import seconds
from towpath.errors import InvalidOption
from towpath.web.application_routes import ApplicationRoutes
from towpath.web.audit import audited, not_audited
from towpath.web.bodies import BodyRoute, announced_length, pieces
from towpath.web.dependencies import ThePoll
from towpath.web.fields import Id
from towpath.web.limits import DEFAULTS
from towpath.web.problems import Refused, documented
from towpath.web.streams import Chunk, stream

PREFIX = "/api/v1/uploads"
router = APIRouter(prefix=PREFIX, tags=["uploads"], route_class=BodyRoute)
chunks = APIRouter(prefix=PREFIX, tags=["uploads"], route_class=BodyRoute)
Number = Annotated[int, Path(ge=0, le=2**31 - 1, examples=[0], description="From 0.")]
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


# ── starting and sending ─────────────────────────────────────────────────────────────────


@router.post(
    "",
    status_code=201,
    response_model=StartedOut,
    responses={
        200: {"model": StartedOut, "description": "The upload of the same `Idempotency-Key`."},
        **documented(409),
    },
)
@audited("name", "size", answer=("upload_id",), only_people=True)
async def start(
    body: StartIn,
    request: Request,
    response: Response,
    uploads: TheUploads,
    *,
    key: CanSubmit,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> StartedOut:
    """Start an upload. Then PUT its chunks, in any order and in parallel.

    With an `Idempotency-Key`, repeating the request returns the same upload. With `credential`, a
    web page can send the file without an API key.
    """
    terms = body.credential.terms(uploads) if body.credential else None
    if terms and body.size is None:
        raise InvalidOption("size", None, rule="must be given if a credential is asked for")
    view, existed = await uploads.start(
        body.new(), owner=key.owner, idempotency_key=idempotency_key
    )
    if existed:
        response.status_code = 200
    path = f"{PREFIX}/{view.upload.upload_id}"
    response.headers["Location"] = location_of(request, uploads.options, path)
    started = StartedOut.of(view)
    if terms:
        response.headers["Cache-Control"] = "no-store"
        issued = uploads.credentials.issue(view.upload, key, terms)
        started.credential = CredentialOut.of(issued)
    return started


@router.post(
    "/{id}/credential",
    status_code=201,
    response_model=CredentialOut,
    responses=documented(404, 409),
)
@audited("origin", "ttl")
async def issue_credential(
    id: Id, body: CredentialIn, response: Response, uploads: TheUploads, key: MaySend
) -> CredentialOut:
    """Issue a credential for one upload, for a web page that sends the file.

    Its holder can send the file, complete or abort the upload, and follow its progress; nothing
    else. It ends with the key that issued it, and after an hour at the latest. Send it as
    `Authorization: Bearer …`, never in a URL.
    """
    terms = body.terms(uploads)
    view = await uploads.status(id)
    response.headers["Cache-Control"] = "no-store"
    return CredentialOut.of(uploads.credentials.issue(view.upload, key, terms))


_RAW: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"$ref": "#/components/schemas/ChunkIn"}}
        },
    }
}
_CHUNK = {
    "type": "string",
    "format": "binary",
    "description": "The bytes of a chunk, as they are; of any content type.",
    "examples": ["%PDF-1.7 …"],
}


@chunks.put(
    "/{id}/chunks/{number}",
    response_model=ChunkOut,
    responses=documented(404, 409, 410),
    openapi_extra=_RAW,
)
@not_audited("the content of a file")
async def put_chunk(
    id: Id,
    number: Number,
    request: Request,
    uploads: TheUploads,
    *,
    key: MaySend,
    wish: Annotated[ChunkWish, Query()],
    content_digest: Annotated[str | None, Header(max_length=1000)] = None,
) -> ChunkOut:
    """Send a chunk: raw bytes of any content type. A success means that it is stored.

    With `count`, the body has several small chunks. If the connection breaks, the chunks that have
    arrived still count.

    Sending the same bytes again is safe; other bytes under the same number are refused with 409.
    `Content-Digest` (sha-256, sha-512) is checked. 503 and 429 are sent before the body is read,
    and list the chunks to send first.
    """
    cut: list[Refused] = []
    body = pieces(request, silence=DEFAULTS.body_within)
    try:
        receipt = await uploads.put_chunk(
            id,
            number,
            tus.until_cut(body, cut) if wish.count > 1 else body,
            holder=key.owner,
            count=wish.count,
            length=announced_length(request),
            digest=ContentDigest.parse(content_digest) if content_digest else None,
            is_last=wish.is_last,
            safety=wish.safety,
        )
    except ChunkCut:
        if cut:
            raise cut[0] from None
        raise
    return ChunkOut.model_validate(receipt)


@router.post("/{id}/complete", response_model=UploadOut, responses=documented(404, 409, 410))
@audited(only_people=True)
async def complete(id: Id, uploads: TheUploads, _: MaySend) -> UploadOut:
    """Declare that all chunks were sent. Needed only without a size and without `is_last`."""
    return UploadOut.of(await uploads.complete(id))


@router.post("/{id}/resume", response_model=UploadOut, responses=documented(404, 409, 410))
@audited()
async def resume(id: Id, uploads: TheUploads, _: MaySend) -> UploadOut:
    """Resume a FAILED upload. `missing` lists the chunks to send again."""
    return UploadOut.of(await uploads.resume(id))


@router.delete("/{id}", response_model=UploadOut, responses=documented(404, 409))
@audited()
async def abort(id: Id, uploads: TheUploads, _: MaySend) -> UploadOut:
    """Abort an upload that is not completed; all its bytes are deleted."""
    return UploadOut.of(await uploads.abort(id))


# ── looking ──────────────────────────────────────────────────────────────────────────────


@router.get("", response_model=UploadsOut, responses=documented())
async def list_uploads(
    uploads: TheUploads, key: CanRead, wish: Annotated[UploadQuery, Query()]
) -> UploadsOut:
    """List uploads, newest first: your own, or all for an admin."""
    owner = listed_owner(uploads, key)
    page = await uploads.list(status=wish.status, owner=owner, after=wish.after, size=wish.size)
    after = page[-1].upload_id if len(page) == wish.size else None
    return UploadsOut(uploads=[SummaryOut.of(summary) for summary in page], after=after)


@router.get("/{id}", response_model=UploadOut, responses=documented(404))
async def look(
    id: Id, uploads: TheUploads, poll: ThePoll, _: MayRead, wish: Annotated[LookWish, Query()]
) -> UploadOut:
    """Read an upload. With `wait`, the request waits until the upload has ended."""
    if wish.wait:
        await poll.while_connected(uploads.ended(id, within=seconds(wish.wait)))
    return UploadOut.of(await uploads.status(id))


@router.get("/{id}/missing", response_model=MissingOut, responses=documented(404, 410))
async def missing(id: Id, uploads: TheUploads, _: MayRead) -> MissingOut:
    """List the missing chunks, expired ones included."""
    return MissingOut(missing=_pairs(await uploads.missing(id)))


def _pairs(ranges: list[Range]) -> list[list[int]]:
    return [[span.first, span.last] for span in ranges]


@router.get(
    "/{id}/events",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Server-sent events: `progress` on each change, then `completed`, "
            "`failed`, `aborted` or `expired`; then the stream ends.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **documented(404),
    },
)
async def events(id: Id, request: Request, uploads: TheUploads, _: MayRead) -> EventSourceResponse:
    """Follow the upload until it ends. If it has ended, the end is sent at once."""
    await uploads.status(id)
    return await stream(_progress_events(uploads, id), request)


async def _progress_events(uploads: UploadService, id: str) -> AsyncGenerator[Chunk]:
    async for view in uploads.watch(id):
        name = "progress" if view.status.open else view.status.lower()
        data = msgspec.json.encode(progress_of(view.fields)).decode()
        yield ServerSentEvent(event=name, data=data)


# ── content ──────────────────────────────────────────────────────────────────────────────


@router.get(
    "/{id}/content",
    response_class=Response,
    responses={
        200: {
            "description": "The file; 206 for a range.",
            "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
        },
        206: {"description": "The range that was asked for."},
        **documented(404, 409, 410, 416),
    },
)
async def content(
    id: Id,
    uploads: TheUploads,
    _: MayRead,
    range: Annotated[
        str | None, Header(max_length=200, description="A byte range, such as `bytes=0-1023`.")
    ] = None,
) -> Response:
    """Download the finished file, always as an attachment. `Range` requests a part of it."""
    start, end = _parse_range(range)
    stack = AsyncExitStack()
    try:
        found = await stack.enter_async_context(uploads.content(id, start=start, end=end))
    except RangeInvalid as error:
        raise Refused(
            416,
            error.code,
            str(error),
            remedy=error.remedy,
            headers={"Content-Range": f"bytes */{error.size}"},
        ) from error
    return _Attachment(found, stack, partial=start is not None or end is not None)


def _parse_range(header: str | None) -> tuple[int | None, int | None]:
    """First and last byte of a single range; other headers are ignored (RFC 9110)."""
    match = _RANGE.fullmatch(header) if header else None
    if match is None or not (match[1] or match[2]):
        return None, None
    first, last = (int(text) if text else None for text in match.groups())
    if first is not None and last is not None and first > last:
        return None, None
    return first, last


class _Attachment(StreamingResponse):
    """A user's file: browsers save it and never show or run it, whatever its media type."""

    def __init__(self, content: Content, stack: AsyncExitStack, *, partial: bool) -> None:
        name = quote(content.upload.name.rpartition("/")[2] or "file", safe="")
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cache-Control": "private, no-store",
            "Accept-Ranges": "bytes",
            "Content-Length": str(content.length),
            "ETag": f'"{content.etag}"',
            # As a header, not as `media_type`: Starlette adds a charset to text/* there.
            "Content-Type": content.upload.mime_type,
        }
        if partial:
            last = content.start + content.length - 1
            headers["Content-Range"] = f"bytes {content.start}-{last}/{content.size}"
        super().__init__(content.pieces, 206 if partial else 200, headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


ROUTES = ApplicationRoutes(
    routers=(chunks, tus.sending, router, tus.router),
    tags={"uploads": "Large files in chunks: start, send, resume, complete, read."},
    schemas={"ChunkIn": _CHUNK},
    open=(f"OPTIONS {tus.PREFIX}",),
    origins={PREFIX: "origins", tus.PREFIX: "origins"},
    exposed=tus.RESPONSE_HEADERS,
    credentials={CREDENTIAL: check_credential},
)
