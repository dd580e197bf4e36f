"""Errors of uploads.

TowpathError
├── InvalidInput
│   ├── ChunkInvalid         a number or a length that the chunk can't have
│   │   └── ChunkCut         the body ended before its announced length
│   ├── DigestMismatch       the bytes do not match Content-Digest
│   ├── BodyDiffers          the bytes do not match Upload-Checksum
│   └── RangeInvalid         a range that the content does not have
└── UploadError
    ├── UploadNotFound       there is no upload of that id
    ├── UploadGone           it was aborted, or has expired
    ├── UploadConflict       its state does not allow it
    │   ├── UploadDiffers    the Idempotency-Key was used for another upload
    │   ├── UploadEnded      it is completed, or about to be
    │   ├── UploadFailed     it has failed, and waits to be resumed
    │   │   └── UploadResumable  a tus client resumes it with its next HEAD
    │   ├── UploadIncomplete chunks are missing
    │   ├── PieceInUse       an upload under way is joined from it
    │   ├── ChunkDiffers     the chunk was already received with different bytes
    │   ├── OffsetDiffers    the received bytes end at another offset
    │   ├── LastChunkDiffers another chunk is the last one
    │   └── ChecksumMismatch the whole file does not match its checksum
    ├── UploadJoined         it was joined from other uploads, and takes no bytes
    ├── UploadUnsized        it has no size yet, so no credential can be bound to it
    ├── UploadTooLarge       more than an object can have
    ├── PartTooLarge         a part would take too much of the budget
    ├── BudgetFull           the budget has no room for another part now
    │   ├── ShareFull        the owner uses its share of it
    │   └── BodyGaveWay      the body arrived too slowly, and others needed its room
    ├── QuotaReached         the owner has the maximum of unfinished uploads
    ├── ChunkLost            Redis lost the bytes of the chunk
    ├── StoreAway            the object store does not answer
    ├── CredentialsOff       the server has no secret to sign credentials with
    └── UploadsOff           no bucket and no directory is configured
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from towpath.apps.application import ErrorCodes
from towpath.apps.uploads.stores.errors import StoreError
from towpath.errors import InvalidInput, RetryAdvice, TowpathError

if TYPE_CHECKING:
    from towpath.apps.uploads.model import Range


class ChunkInvalid(InvalidInput):
    """A chunk number or length that is not possible; that chunk was not stored."""

    code = "chunk_invalid"
    remedy = "Split the file into chunks of the upload's `chunk_size`."


class ChunkCut(ChunkInvalid):
    """The body was shorter than announced; the chunk that was cut was not stored."""

    code = "chunk_cut"
    remedy = "Send the chunk again."


class DigestMismatch(InvalidInput):
    """The bytes do not match Content-Digest; nothing was stored."""

    code = "digest_mismatch"
    remedy = "Send the chunk again; if it fails again, check how the digest is computed."

    def __init__(self, number: int, algorithm: str) -> None:
        super().__init__(f"chunk {number}: its {algorithm} does not match Content-Digest")


class BodyDiffers(InvalidInput):
    """The bytes do not match Upload-Checksum; nothing was stored."""

    code = "body_differs"
    remedy = "Send the same bytes again; if it fails again, check how the checksum is computed."

    def __init__(self, upload: str, algorithm: str) -> None:
        super().__init__(f"upload {upload}: the body's {algorithm} does not match Upload-Checksum")


class RangeInvalid(InvalidInput):
    """A range that the content does not have."""

    code = "range_invalid"
    remedy = "Request a range within the size that Content-Range states."

    def __init__(self, size: int) -> None:
        super().__init__(f"the content has {size} bytes")
        self.size = size


class UploadError(TowpathError):
    """The upload can't do what was asked."""

    code = "upload_error"

    def __init__(self, upload: str, what: str) -> None:
        super().__init__(f"upload {upload}: {what}")
        self.upload = upload


class UploadNotFound(UploadError):
    """There is no upload of that id."""

    code = "upload_not_found"
    remedy = "Use the `upload_id` returned when the upload was started."

    def __init__(self, upload: str) -> None:
        super().__init__(upload, "not found")


class UploadGone(UploadError):
    """The upload was aborted, or has expired; its chunks are gone."""

    code = "upload_gone"
    remedy = "Start another upload."

    def __init__(self, upload: str, status: str) -> None:
        super().__init__(upload, f"is {status}")
        self.status = status

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"state": self.status}


class UploadConflict(UploadError):
    """The state of the upload does not allow this; nothing was changed."""

    code = "upload_conflict"
    remedy = "Check the upload's `status`."


class UploadDiffers(UploadConflict):
    """The Idempotency-Key was used for another upload; nothing was started."""

    code = "upload_differs"
    remedy = "Use a new Idempotency-Key for a new upload, or send the same request unchanged."

    def __init__(self, upload: str) -> None:
        super().__init__(upload, "another request has used this Idempotency-Key")


class UploadEnded(UploadConflict):
    """The upload is completed, or about to be; it takes no more chunks."""

    code = "upload_ended"
    remedy = "Start another upload for other content."

    def __init__(self, upload: str, status: str) -> None:
        super().__init__(upload, f"is {status}")
        self.status = status

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"state": self.status}


class UploadFailed(UploadEnded):
    """The upload has failed; it takes chunks again once it is resumed."""

    code = "upload_failed"
    remedy = "Read its `error_message`, then POST …/resume and send the missing chunks."


class UploadResumable(UploadFailed):
    """The upload has failed; a client of tus resumes it by asking for its offset."""

    code = "upload_resumable"
    remedy = "Ask for the offset with HEAD, which resumes the upload; then continue from there."
    retry = RetryAdvice.LATER


class UploadNotFailed(UploadConflict):
    """Only an upload that has failed can be resumed."""

    code = "upload_not_failed"
    remedy = "Send the missing chunks; only a FAILED upload needs a resume."

    def __init__(self, upload: str, status: str) -> None:
        super().__init__(upload, f"is {status}, not FAILED")


class UploadIncomplete(UploadConflict):
    """Chunks are missing; nothing was changed."""

    code = "upload_incomplete"
    remedy = "Send the chunks in `missing`, then complete the upload again."

    def __init__(self, upload: str, missing: Sequence[Range]) -> None:
        super().__init__(upload, "has missing chunks")
        self.missing = tuple(missing)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"missing": [[gap.first, gap.last] for gap in self.missing]}


class PieceInUse(UploadConflict):
    """Another upload is joined from this one, and is not completed yet; nothing was changed."""

    code = "piece_in_use"
    remedy = "Wait until the upload that is joined of it has ended, or abort that one first."

    def __init__(self, upload: str, final: str) -> None:
        super().__init__(upload, f"is a piece of upload {final}, which is not completed yet")
        self.final = final


class ChunkDiffers(UploadConflict):
    """The chunk was already received with different bytes; that chunk was not changed."""

    code = "chunk_differs"
    remedy = "Send the file's own bytes, or start another upload for another file."

    def __init__(self, upload: str, number: int) -> None:
        super().__init__(upload, f"chunk {number} was already received with different bytes")


class OffsetDiffers(UploadConflict):
    """The server has fewer or more bytes than this offset; nothing was stored."""

    code = "offset_differs"
    remedy = "Get the offset with HEAD, then continue from there."

    def __init__(self, upload: str, offset: int, *, given: int) -> None:
        super().__init__(upload, f"continues at {offset}, not at {given}")
        self.offset = offset

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"offset": self.offset}


class LastChunkDiffers(UploadConflict):
    """Another chunk is the last one, or later chunks exist."""

    code = "last_chunk_differs"
    remedy = "Only the file's last chunk may be shorter, or be sent with is_last."

    def __init__(self, upload: str, number: int, last: int) -> None:
        super().__init__(
            upload,
            f"chunk {number} conflicts with chunk {last}: no chunk can come after the last one",
        )


class ChecksumMismatch(UploadConflict):
    """The file does not match its checksum; the object was not kept."""

    code = "checksum_mismatch"
    remedy = "Compute the file's checksum again, then resume and send all of it, or start over."

    def __init__(self, upload: str, wanted: object, found: object) -> None:
        super().__init__(upload, f"its checksum is {found}, not {wanted}")


class UploadJoined(UploadError):
    """The upload was joined from other uploads; it takes no bytes of its own."""

    code = "upload_joined"
    remedy = "Send the bytes to the partial uploads before they are joined."

    def __init__(self, upload: str) -> None:
        super().__init__(upload, "was joined from other uploads")


class UploadTooLarge(UploadError):
    """The file is larger than an object can be; nothing was stored."""

    code = "upload_too_large"
    remedy = "Use larger chunks, or give the size when the upload is started."

    def __init__(self, what: str, upload: str = "new") -> None:
        super().__init__(upload, what)


class PartTooLarge(UploadTooLarge):
    """One part of the object would take more than a quarter of the budget, or than a share."""

    code = "part_too_large"
    remedy = "Use smaller chunks, or raise the setting uploads.budget or uploads.owner_share."

    def __init__(self, part: int, most: int) -> None:
        super().__init__(
            f"it needs parts of {part} bytes, which is more than one part may take of the budget "
            f"for chunks ({most})"
        )


class BudgetFull(UploadError):
    """The budget has no room for another part now; parts that have begun come first."""

    code = "budget_full"
    remedy = (
        "If `missing` lists chunks, send them first: parts that have begun come first. "
        "Otherwise try again after the time in Retry-After."
    )
    retry = RetryAdvice.LATER

    def __init__(self, upload: str, missing: Sequence[Range], *, after: int, what: str) -> None:
        super().__init__(upload, what)
        self.missing, self.after, self.what = tuple(missing), after, what

    @property
    def after_s(self) -> int:
        return self.after

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"missing": [[gap.first, gap.last] for gap in self.missing]}


class ShareFull(BudgetFull):
    """The owner of this key uses its share of the budget (uploads.owner_share)."""

    code = "share_full"
    remedy = (
        "If `missing` lists chunks, send them first. Otherwise finish or abort other uploads of "
        "this owner, or try again after the time in Retry-After."
    )


class BodyGaveWay(BudgetFull):
    """The body arrived too slowly, and others needed its room."""

    code = "body_gave_way"
    remedy = "Send it again, faster than the setting uploads.slowest, or in smaller chunks."


class QuotaReached(UploadError):
    """The owner of this key has the maximum of unfinished uploads; nothing was started."""

    code = "quota_reached"
    remedy = "Finish or abort uploads of the owner, or raise uploads.open_per_key or bytes_per_key."
    retry = RetryAdvice.LATER

    def __init__(self, what: str) -> None:
        super().__init__("new", what)

    @property
    def after_s(self) -> int:
        return 10


class ChunkLost(UploadError):
    """Redis lost the bytes of the chunk; it has to be sent again."""

    code = "chunk_lost"
    remedy = "Send this chunk again, and the chunks in `missing`."
    retry = RetryAdvice.SAFE

    def __init__(self, upload: str, what: str) -> None:
        super().__init__(upload, f"{what}: its bytes were lost")

    @property
    def after_s(self) -> int:
        return 1


class StoreAway(UploadError):
    """The object store does not answer, or can't do this now."""

    code = "store_away"
    external = True
    remedy = "Try again later. If this goes on, check the store and the settings of `uploads`."
    retry = RetryAdvice.SAFE


class UploadUnsized(UploadConflict):
    """The upload was started without a size, so no credential can be issued for it."""

    code = "upload_unsized"
    remedy = "Start the upload with its `size`."

    def __init__(self, upload: str) -> None:
        super().__init__(upload, "has no size yet")


class CredentialsOff(UploadError):
    """The server has no secret to sign credentials with; no credential was issued."""

    code = "credentials_off"
    remedy = "Set calls.secrets."

    def __init__(self) -> None:
        super().__init__("new", "the server has no secret to sign credentials with")


class UploadsOff(UploadError):
    """Uploads are off: no bucket and no directory is configured."""

    code = "uploads_off"
    remedy = "Set uploads.bucket, or uploads.directory."

    def __init__(self) -> None:
        super().__init__("new", "neither a bucket nor a directory is configured")


ANSWERS: Mapping[type[TowpathError], ErrorCodes] = {
    UploadNotFound: ErrorCodes(404, 5),
    UploadGone: ErrorCodes(410, 4),
    UploadConflict: ErrorCodes(409, 4),
    UploadResumable: ErrorCodes(503, 75),
    UploadJoined: ErrorCodes(403, 4),
    BodyDiffers: ErrorCodes(460, 2),
    UploadTooLarge: ErrorCodes(413, 2),
    RangeInvalid: ErrorCodes(416, 2),
    BudgetFull: ErrorCodes(503, 75),
    ShareFull: ErrorCodes(429, 75),
    QuotaReached: ErrorCodes(429, 75),
    ChunkLost: ErrorCodes(503, 75),
    StoreAway: ErrorCodes(503, 75),
    UploadsOff: ErrorCodes(503, 75),
    CredentialsOff: ErrorCodes(503, 75),
    StoreError: ErrorCodes(503, 75),
}
"""HTTP status and exit code of each error; others have those of their base class."""
