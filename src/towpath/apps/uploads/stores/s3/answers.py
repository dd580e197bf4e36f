"""The StoreError for each error answer of an S3 server, and for no answer."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from aiohttp import ClientError as ConnectionTrouble
from botocore import exceptions as boto  # pyright: ignore[reportMissingTypeStubs] -- it has none

from towpath.apps.uploads.stores.errors import (
    BucketNotFound,
    ChecksumDiffers,
    MultipartNotFound,
    ObjectNotFound,
    PartsDiffer,
    PartTooSmall,
    RangeBeyondEnd,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnreachable,
)
from towpath.clock import Duration, seconds

_SHOWN = 300
_DIFFERS = frozenset(
    {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)
_BUSY = frozenset({"SlowDown", "ServiceUnavailable", "TooManyRequests", "RequestLimitExceeded",
                   "Throttling", "ThrottlingException", "Busy"})  # fmt: skip
_FULL = frozenset({"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"})
_PASSES = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.ProfileNotFound,
)


class About(NamedTuple):
    """The subject of a call, for its errors: an answer does not always name it."""

    bucket: str
    key: str = ""
    multipart: str = ""
    start: int = 0


@contextmanager
def translated(about: About) -> Generator[None]:
    """Raises the StoreError for an error of the client in the block."""
    try:
        yield
    except boto.ClientError as error:
        raise _store_error(cast("dict[str, Any]", error.response), about) from error
    except _CREDENTIALS as error:
        raise StoreRefused(f"no credentials: {error}") from error
    except boto.SSLError as error:
        raise StoreRefused(f"no trusted TLS connection: {error}"[:_SHOWN]) from error
    except boto.ParamValidationError:
        raise  # a bug in this package
    except TimeoutError as error:
        raise StoreUnreachable("no answer within the time limit") from error
    except (boto.BotoCoreError, ConnectionTrouble, OSError) as error:
        reason = str(error) or type(error).__name__
        raise StoreUnreachable(reason[:_SHOWN]) from error


def _store_error(response: dict[str, Any], about: About) -> StoreError:
    """The StoreError for an error answer."""
    error, about_it = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, status = str(error.get("Code", "")), int(about_it.get("HTTPStatusCode", 0))
    found = _object_error(code, status, about)
    if found is not None:
        return found
    reason = f"{code or status}: {error.get('Message', 'no reason')}"[:_SHOWN]
    after = _retry_after(about_it.get("HTTPHeaders", {}))
    if code in _BUSY or status in (429, 503):
        return StoreBusy(reason, after=after)
    if code in _FULL or status == 507:
        return StoreFull(reason, after=after)
    if code in _PASSES or status >= 500:
        return StoreUnreachable(reason, after=after)
    return StoreRefused(reason)


def _object_error(code: str, status: int, about: About) -> StoreError | None:
    """The error if the answer is about the object, its parts or the bucket; else None."""
    if code == "NoSuchBucket" or (status == 404 and not about.key):
        return BucketNotFound(about.bucket)
    if code == "NoSuchUpload":
        return MultipartNotFound(about.key, about.multipart)
    if code in ("NoSuchKey", "NotFound", "404"):
        return ObjectNotFound(about.key)
    if code == "InvalidRange" or status == 416:
        return RangeBeyondEnd(about.key, about.start)
    return _bytes_error(code, about)


def _bytes_error(code: str, about: About) -> StoreError | None:
    if code in ("InvalidPart", "InvalidPartOrder"):
        return PartsDiffer(about.key, ())
    if code == "EntityTooSmall":
        return PartTooSmall(f"object {about.key}: a part before the last has less than 5 MiB")
    return ChecksumDiffers(about.key) if code in _DIFFERS else None


def _retry_after(headers: dict[str, str]) -> Duration | None:
    """How long the server asks to wait, if it says so in seconds."""
    value = headers.get("retry-after", "")
    return seconds(int(value)) if value.isdecimal() and len(value) < 6 else None
