"""tus 1.0 at `/files`: resumable uploads for clients of that protocol.

Core, creation, creation-with-upload, creation-defer-length, checksum, termination, expiration and
concatenation, for the same uploads as the chunk API. The protocol is specified elsewhere, so its
routes are not in OpenAPI.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.errors import (
    BudgetFull,
    OffsetDiffers,
    ShareFull,
    UploadFailed,
    UploadResumable,
    UploadTooLarge,
)
from towpath.apps.uploads.http.locations import location_of
from towpath.apps.uploads.http.owning import CanSubmit, MaySend, TheUploads, require_own
from towpath.apps.uploads.http.tus_headers import (
    ALGORITHMS,
    BODY_TYPE,
    Creation,
    checksum_of,
    length_of,
    metadata_header,
)
from towpath.apps.uploads.model import FINAL, LARGEST_SIZE
from towpath.apps.uploads.service import UploadService
from towpath.apps.uploads.stores.port import MOST_PARTS
from towpath.clock import instant, wall_ms
from towpath.errors import TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.web.audit import audited, not_audited
from towpath.web.bodies import announced_length, pieces
from towpath.web.fields import Id
from towpath.web.limits import DEFAULTS
from towpath.web.problems import Refused, of_error

PREFIX = "/files"
VERSION = "1.0.0"
RESPONSE_HEADERS = (
    "Upload-Offset", "Upload-Length", "Upload-Defer-Length", "Upload-Metadata", "Upload-Expires",
    "Upload-Concat", "Tus-Resumable", "Tus-Version", "Tus-Extension", "Tus-Max-Size",
    "Tus-Checksum-Algorithm",
)  # fmt: skip
EXTENSIONS = (
    "creation,creation-with-upload,creation-defer-length,checksum,termination,expiration,"
    "concatenation"
)


class TusRoute(APIRoute):
    """A route of tus: requests must name the version, and every response does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                if request.method != "OPTIONS":
                    _require_version(request)
                response = await handle(request)
            except UploadFailed as error:  # 503: at 409, some tus clients give up
                response = of_error(UploadResumable(error.upload, error.status))
            except (TowpathError, Refused) as error:
                response = of_error(error)
                if isinstance(error, OffsetDiffers):
                    response.headers["Upload-Offset"] = str(error.offset)
            response.headers["Tus-Resumable"] = VERSION
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return answered


def _require_version(request: Request) -> None:
    if request.headers.get("Tus-Resumable") != VERSION:
        raise Refused(
            412,
            "tus_version",
            "this is not a tus 1.0.0 request",
            remedy=f"Use a tus client, or send `Tus-Resumable: {VERSION}`.",
            headers={"Tus-Version": VERSION},
        )


router = APIRouter(prefix=PREFIX, tags=["uploads"], route_class=TusRoute, include_in_schema=False)
sending = APIRouter(prefix=PREFIX, tags=["uploads"], route_class=TusRoute, include_in_schema=False)


@router.options("/{id}")
async def discover(uploads: TheUploads, _: CanSubmit) -> Response:
    """Describe the version and extensions of tus that this server supports."""
    return await describe(uploads)


@router.options("")
async def describe(uploads: TheUploads) -> Response:
    """Describe the same without a key, as clients ask for it first. It shows no upload."""
    headers = {
        "Tus-Version": VERSION,
        "Tus-Extension": EXTENSIONS,
        "Tus-Max-Size": str(_largest(uploads)),
        "Tus-Checksum-Algorithm": ",".join(ALGORITHMS),
    }
    return Response(status_code=204, headers=headers)


def _largest(uploads: UploadService) -> int:
    return min(LARGEST_SIZE, uploads.options.largest_part * MOST_PARTS)


# ── creating ─────────────────────────────────────────────────────────────────────────────


@router.post("")
@audited(only_people=True)
async def create(request: Request, uploads: TheUploads, key: CanSubmit) -> Response:
    """Create an upload; the body has its first bytes, if there is one."""
    asked = Creation.of(request.headers)
    if asked.length is not None and asked.length > _largest(uploads):
        raise UploadTooLarge(f"{asked.length} bytes: at most {_largest(uploads)}")
    named = request.headers.get("Idempotency-Key")
    if asked.pieces:
        sources = [_id_of(piece) for piece in asked.pieces]
        for piece in sources:
            await require_own(uploads, piece, key)
        view, _ = await Appending(uploads).join(
            asked.new(), sources, owner=key.owner, idempotency_key=named
        )
        return _creation_response(request, uploads, view.upload.upload_id)
    view, _ = await uploads.start(asked.new(), owner=key.owner, idempotency_key=named)
    upload_id = view.upload.upload_id
    headers = {"Upload-Expires": _expires(uploads, wall_ms())}
    if request.headers.get("Content-Type") == BODY_TYPE:
        offset = 0
        with suppress(BudgetFull):  # the upload exists: the client continues with PATCH
            offset = await _append_body(request, Appending(uploads), upload_id, 0, key)
        headers = {"Upload-Offset": str(offset), "Upload-Expires": _expires(uploads, wall_ms())}
    return _creation_response(request, uploads, upload_id, headers)


def _creation_response(
    request: Request,
    uploads: UploadService,
    upload_id: str,
    headers: dict[str, str] | None = None,
) -> Response:
    location = location_of(request, uploads.options, f"{PREFIX}/{upload_id}")
    return Response(status_code=201, headers={"Location": location, **(headers or {})})


def _id_of(url: str) -> str:
    """The id in an absolute or relative URL of an upload. Raises Refused with 400."""
    path, _, found = url.partition("?")[0].rpartition("/")
    if not found or not path.endswith(PREFIX):
        remedy = "Name the partial uploads by the URLs returned when they were created."
        raise Refused(
            400,
            "concat_invalid",
            "Upload-Concat names an upload that is not on this server",
            remedy=remedy,
        )
    return found


# ── sending ──────────────────────────────────────────────────────────────────────────────


@sending.patch("/{id}")
@not_audited("the content of a file")
async def send(id: Id, request: Request, uploads: TheUploads, key: MaySend) -> Response:
    """Append bytes. If the body is cut, what arrived counts."""
    offset = length_of(request.headers, "Upload-Offset")
    if offset is None:
        remedy = "Send the header Upload-Offset."
        raise Refused(400, "offset_missing", "Upload-Offset is missing", remedy=remedy)
    if request.headers.get("Content-Type") != BODY_TYPE:
        remedy = f"Send `Content-Type: {BODY_TYPE}`."
        raise Refused(
            415,
            "unsupported_media_type",
            "the body is not of the type that tus requires",
            remedy=remedy,
        )
    appending = Appending(uploads)
    size = length_of(request.headers, "Upload-Length")
    if size is not None:
        await appending.set_size(id, size)
    after = await _append_body(request, appending, id, offset, key)
    headers = {"Upload-Offset": str(after), "Upload-Expires": _expires(uploads, wall_ms())}
    return Response(status_code=204, headers=headers)


async def _append_body(
    request: Request, appending: Appending, upload_id: str, offset: int, key: KeyInfo
) -> int:
    wanted = checksum_of(request.headers)
    cut: list[Refused] = []
    come = pieces(request, silence=DEFAULTS.body_within)
    try:
        after = await appending.append(
            upload_id,
            offset,
            come if wanted else until_cut(come, cut),
            holder=key.owner,
            length=announced_length(request),
            wanted=wanted,
        )
    except ShareFull as error:  # 503: at 429, tus clients give up
        raise BudgetFull(upload_id, (), after=error.after, what=error.what) from error
    # A stalled body ends with success, and the client continues with another request: at 408, tus
    # clients give up.
    if cut and cut[0].code != "body_too_slow":
        raise cut[0]
    return after


async def until_cut(body: AsyncGenerator[bytes], cut: list[Refused]) -> AsyncGenerator[bytes]:
    """*body* as far as it arrives; an error that cuts it is added to *cut* and not raised."""
    try:
        async for data in body:
            yield data
    except Refused as error:
        cut.append(error)


@router.head("/{id}")
async def look(id: Id, uploads: TheUploads, _: MaySend) -> Response:
    """Return the offset, the length and the metadata of an upload."""
    position = await Appending(uploads).look(id)
    upload = position.upload
    headers = {"Cache-Control": "no-store"}
    if position.offset is not None:
        headers["Upload-Offset"] = str(position.offset)
    if position.size is None:
        headers["Upload-Defer-Length"] = "1"
    else:
        headers["Upload-Length"] = str(position.size)
    if metadata := metadata_header(upload):
        headers["Upload-Metadata"] = metadata
    if upload.sources:
        urls = " ".join(f"{PREFIX}/{source}" for source in upload.sources)
        headers["Upload-Concat"] = f"{FINAL};{urls}"
    elif upload.concat:
        headers["Upload-Concat"] = upload.concat
    if position.status.open:
        headers["Upload-Expires"] = _expires(uploads, position.heard_of)
    return Response(status_code=200, headers=headers)


@router.delete("/{id}")
@audited()
async def terminate(id: Id, uploads: TheUploads, _: MaySend) -> Response:
    """Abort an upload and delete its bytes. A completed file is refused with 409."""
    await Appending(uploads).terminate(id)
    return Response(status_code=204)


@router.post("/{id}")
@not_audited("the function of the verb that it stands for declares it")
async def overridden(id: Id, request: Request, uploads: TheUploads, key: MaySend) -> Response:
    """For clients that can't send PATCH or DELETE: `X-HTTP-Method-Override` names the method."""
    match request.headers.get("X-HTTP-Method-Override", "").upper():
        case "PATCH":
            return await send(id, request, uploads, key)
        case "DELETE":
            return await terminate(id, uploads, key)
        case "HEAD":
            return await look(id, uploads, key)
        case _:
            raise Refused(
                405,
                "method_not_allowed",
                "POST only creates uploads",
                remedy="Send PATCH, HEAD or DELETE, or name the method in X-HTTP-Method-Override.",
                headers={"Allow": "OPTIONS, HEAD, PATCH, DELETE"},
            )


def _expires(uploads: UploadService, heard_of: int) -> str:
    at = heard_of + round(uploads.options.expiry.total_seconds() * 1000)
    expires: datetime = instant(at)
    return format_datetime(expires, usegmt=True)
