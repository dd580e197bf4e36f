"""Errors of object stores.

TowpathError
└── StoreError
    ├── StoreUnreachable     no answer, or a temporary failure
    │   ├── StoreBusy        it asks to slow down; `after` = for how long, if it says so
    │   └── StoreFull        no space is left
    ├── StoreRefused         a permanent failure: wrong credentials, no permission
    │   └── BucketNotFound
    ├── StoreDamaged         a file in the directory can't be decoded
    ├── StoreNotInstalled    a library that the store needs is missing
    ├── ObjectNotFound       there is no object of that key
    ├── MultipartNotFound    completed, aborted, or never begun
    ├── RangeBeyondEnd       the range begins after the object's end
    ├── PartTooSmall         only the last part may have less than 5 MiB
    ├── PartsDiffer          the store has other parts than those that were named
    └── ChecksumDiffers      the bytes do not match the checksum
"""

from __future__ import annotations

from collections.abc import Sequence

from towpath.clock import Duration
from towpath.errors import RetryAdvice, TowpathError


class StoreError(TowpathError):
    """The object store did not do what was asked."""

    code = "store_error"


class StoreUnreachable(StoreError):
    """The store gave no answer, or failed for now. A change may or may not have been made."""

    code = "store_unreachable"
    external = True
    remedy = "Check that the store runs and that its address is right; then try again."
    retry = RetryAdvice.SAFE

    def __init__(self, reason: str, *, after: Duration | None = None) -> None:
        super().__init__(f"the store of uploads: {reason}")
        self.reason, self.after = reason, after


class StoreBusy(StoreUnreachable):
    """The store asks to slow down; nothing was changed."""

    code = "store_busy"
    remedy = "Try again later, with fewer parallel calls."
    retry = RetryAdvice.LATER


class StoreFull(StoreUnreachable):
    """The store has no room left; nothing was changed."""

    code = "store_full"
    remedy = "Free space in the store; unfinished uploads then continue."
    retry = RetryAdvice.LATER


class StoreRefused(StoreError):
    """The store refused; trying again would not help."""

    code = "store_refused"
    external = True
    remedy = (
        "Check the credentials and their permissions: s3:PutObject, GetObject, DeleteObject,"
        " AbortMultipartUpload, ListMultipartUploadParts, ListBucketMultipartUploads, ListBucket."
    )

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store of uploads: {reason}")
        self.reason = reason


class BucketNotFound(StoreRefused):
    """There is no bucket of that name."""

    code = "bucket_not_found"
    remedy = "Create the bucket, or correct uploads.bucket, uploads.region or uploads.endpoint."

    def __init__(self, bucket: str) -> None:
        super().__init__(f"there is no bucket {bucket}")
        self.bucket = bucket


class StoreDamaged(StoreError):
    """A file in the directory is damaged; it was left as it is."""

    code = "store_damaged"
    external = True
    remedy = "Restore the file from a backup, or delete the object and upload it again."

    def __init__(self, path: object) -> None:
        super().__init__(f"{path} is empty or damaged")
        self.path = path


class StoreNotInstalled(StoreError):
    """A library that the store needs is missing."""

    code = "store_not_installed"
    remedy = (
        "Install Towpath with the extra `s3`: pip install '/path/to/towpath[s3]', with the path of"
        " your clone."
    )


class ObjectNotFound(StoreError):
    """There is no object of that key."""

    code = "object_not_found"
    remedy = "Check the key. An object exists once its upload is completed."

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key}: not found")
        self.key = key


class MultipartNotFound(StoreError):
    """The multipart upload was completed, aborted, or never begun."""

    code = "multipart_not_found"
    remedy = "Start a new multipart upload, unless the object exists."

    def __init__(self, key: str, id: str) -> None:
        super().__init__(f"multipart upload {id} of {key}: not found")
        self.key, self.id = key, id


class RangeBeyondEnd(StoreError):
    """The range begins after the end of the object."""

    code = "range_beyond_end"
    remedy = "Ask for a range that begins within the object."

    def __init__(self, key: str, start: int) -> None:
        super().__init__(f"object {key}: has no byte {start}")
        self.key, self.start = key, start


class PartTooSmall(StoreError):
    """A part before the last one has less than 5 MiB; nothing was completed."""

    code = "part_too_small"
    remedy = "Send parts of at least 5 MiB; only the last one may be smaller."


class PartsDiffer(StoreError):
    """The store does not have the parts that were named; nothing was completed."""

    code = "parts_differ"
    remedy = "Send those parts again, then complete with the values that the store returned."

    def __init__(self, key: str, numbers: Sequence[int]) -> None:
        shown = ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
        super().__init__(f"object {key}: the store has no such parts, or different ones: {shown}")
        self.key, self.numbers = key, tuple(numbers)


class ChecksumDiffers(StoreError):
    """The bytes that arrived do not match the checksum; nothing was stored."""

    code = "checksum_differs"
    remedy = "Send the bytes again. If this fails again, something changes the data on the way."

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key}: the bytes do not match the checksum")
        self.key = key
