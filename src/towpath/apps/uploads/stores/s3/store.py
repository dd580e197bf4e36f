"""An object store that speaks S3: Amazon's, or any other.

aiobotocore supports all sources of credentials and all signatures. These features are off: its
retries, which would hide a time-out behind a second call (jobs are retried with growing pauses);
and proxies and endpoints from the environment, as only the options decide where traffic goes. The
configured store may be on a private network, so its address is not checked by the guard of `calls`.
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

from towpath.apps.uploads.stores.checksums import Algorithm, Checksum, combined
from towpath.apps.uploads.stores.errors import (
    BucketNotFound,
    ChecksumDiffers,
    MultipartNotFound,
    RangeBeyondEnd,
    StoreError,
    StoreUnreachable,
)
from towpath.apps.uploads.stores.options import BUCKET, BUCKET_RULE, StoreOptions
from towpath.apps.uploads.stores.port import (
    BINARY,
    NONE,
    UPLOAD,
    Body,
    Multipart,
    Object,
    Part,
    check_parts,
    combining,
    content_type_of,
    object_key,
    part_number,
    read_back,
    size_of,
    spelled,
)
from towpath.apps.uploads.stores.s3.answers import About
from towpath.apps.uploads.stores.s3.client import Client
from towpath.errors import InvalidName

_PAGE = 1000
_FIRST_REGION = "us-east-1"
"""Amazon makes buckets there by default, and refuses it as an explicit location."""


class S3Store:
    """Objects in a bucket. Implements `ObjectStore`.

    Its client is entered with the store and closed with it.
    """

    def __init__(
        self, options: StoreOptions, *, bucket: str | None = None, client: Client | None = None
    ) -> None:
        self._bucket = bucket or options.bucket or ""
        if not BUCKET.fullmatch(self._bucket):
            raise InvalidName("bucket", self._bucket, rule=BUCKET_RULE)
        self._options, self._prefix = options, options.prefix
        self._client = Client(options) if client is None else client

    async def __aenter__(self) -> Self:
        await self._client.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.leave()

    def at(self, bucket: str) -> S3Store:
        return S3Store(self._options, bucket=bucket, client=self._client) if bucket else self

    async def check(self) -> None:
        about, given = About(self._bucket), dict[str, Any](Bucket=self._bucket)
        try:
            await self._client.call("head_bucket", about, **given)
        except BucketNotFound:
            if not self._options.make_bucket:
                raise
            if self._options.region not in {None, "", _FIRST_REGION}:
                place = {"LocationConstraint": self._options.region}
                given["CreateBucketConfiguration"] = place
            await self._client.call("create_bucket", about, **given)

    # ── objects ──────────────────────────────────────────────────────────────────────────

    async def put(
        self,
        key: str,
        body: Body,
        *,
        checksum: Checksum | None = None,
        metadata: Mapping[str, str] = NONE,
        content_type: str = BINARY,
    ) -> Object:
        given = {**self._location(key), "ContentType": content_type_of(content_type)}
        given["Metadata"] = written = spelled(metadata)
        if checksum is None:
            checksum = Checksum.of(Algorithm.CRC64NVME, body)
        elif not (self._options.checksums or await _matches(checksum, body)):
            raise ChecksumDiffers(key)
        given |= await self._checksum_header(body, checksum)
        answer = await self._call("put_object", key, **given, Body=body)
        kept = checksum if self._options.checksums else None
        return Object(key, size_of(body), _etag(answer), kept, read_back(written), content_type)

    async def head(self, key: str) -> Object:
        mode = {"ChecksumMode": "ENABLED"} if self._options.checksums else {}
        answer = await self._call("head_object", key, **self._location(key), **mode)
        metadata = read_back(answer.get("Metadata", {}))
        kind, size = answer.get("ContentType", BINARY), answer["ContentLength"]
        return Object(key, size, _etag(answer), _whole_checksum(answer), metadata, kind)

    @asynccontextmanager
    async def get(
        self, key: str, *, start: int = 0, length: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        if start < 0 or (length is not None and length < 1):
            raise RangeBeyondEnd(key, start)
        place = self._location(key)
        if start or length is not None:
            end = "" if length is None else start + length - 1
            place["Range"] = f"bytes={start}-{end}"
        about = About(self._bucket, key=key, start=start)
        answer = await self._client.call("get_object", about, **place)
        async with answer["Body"] as stream:
            yield self._client.pieces(stream, about)

    async def delete(self, key: str) -> None:
        await self._call("delete_object", key, **self._location(key))

    # ── parts ────────────────────────────────────────────────────────────────────────────

    async def begin_multipart(
        self,
        key: str,
        *,
        upload: str,
        algorithm: Algorithm = Algorithm.CRC64NVME,
        metadata: Mapping[str, str] = NONE,
        content_type: str = BINARY,
    ) -> Multipart:
        given = {**self._location(key), "ContentType": content_type_of(content_type)}
        given["Metadata"] = spelled(metadata, upload=upload)
        if self._options.checksums:
            given["ChecksumAlgorithm"] = combining(algorithm).upper()
            given["ChecksumType"] = "FULL_OBJECT"
        combining(algorithm)
        answer = await self._call("create_multipart_upload", key, **given)
        return Multipart(key, answer["UploadId"], upload, algorithm)

    async def put_part(self, multipart: Multipart, number: int, body: Body) -> Part:
        given: dict[str, Any] = self._multipart_location(multipart)
        given["PartNumber"] = part_number(number)
        checksum = Checksum.of(multipart.algorithm, body)
        given |= await self._checksum_header(body, checksum)
        answer = await self._call_for(multipart, "upload_part", **given, Body=body)
        return Part(number, size_of(body), _etag(answer), checksum)

    async def copy_part(
        self, multipart: Multipart, number: int, source: str, *, start: int, length: int
    ) -> Part:
        given = {**self._multipart_location(multipart), "PartNumber": part_number(number)}
        found = await self.head(source)
        if length < 1 or not 0 <= start <= found.size - length:
            raise RangeBeyondEnd(source, start + length)
        given["CopySource"] = self._location(source)
        given["CopySourceIfMatch"] = found.etag
        given["CopySourceRange"] = f"bytes={start}-{start + length - 1}"
        answer = await self._call_for(multipart, "upload_part_copy", longer=True, **given)
        result = answer["CopyPartResult"]
        return Part(number, length, _etag(result), _checksum(result, multipart.algorithm))

    async def list_parts(self, multipart: Multipart) -> list[Part]:
        found = await self._versions(multipart)
        # SeaweedFS lists all versions of a part, and which one is last is not known.
        return [
            next(iter(found[number].values()))
            for number in sorted(found)
            if len(found[number]) == 1
        ]

    async def complete(
        self, multipart: Multipart, parts: Sequence[Part], *, checksum: Checksum | None = None
    ) -> Object:
        place = self._multipart_location(multipart)
        try:
            versions = await self._versions(multipart)
            check_parts(
                multipart, parts, {number: set(found) for number, found in versions.items()}
            )
            await self._send_complete(multipart, place, parts, checksum)
        except (MultipartNotFound, StoreUnreachable):
            # The object may be complete, by an earlier call or by one whose answer was lost.
            with suppress(StoreError):
                return await self._find_completed(multipart, parts, checksum)
            raise
        return await self._find_completed(multipart, parts, checksum)

    async def abort(self, multipart: Multipart) -> None:
        with suppress(MultipartNotFound):
            await self._call_for(
                multipart, "abort_multipart_upload", **self._multipart_location(multipart)
            )

    async def list_multiparts(self, key: str | None = None) -> AsyncIterator[Multipart]:
        marker: dict[str, Any] = {}
        about = About(self._bucket)
        given = {"Bucket": self._bucket, "Prefix": self._prefix + (key or "")}
        while True:
            page = await self._client.call("list_multipart_uploads", about, **given, **marker)
            for found in page.get("Uploads", []):
                its_key = found["Key"].removeprefix(self._prefix)
                if key in (None, its_key):
                    yield Multipart(its_key, found["UploadId"], begun=found.get("Initiated"))
            if not page.get("IsTruncated"):
                return
            marker = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    # ── steps ────────────────────────────────────────────────────────────────────────────

    async def _versions(self, multipart: Multipart) -> dict[int, dict[tuple[str, int], Part]]:
        """The listed parts by number; several versions of one if the server keeps replaced ones."""
        found: dict[int, dict[tuple[str, int], Part]] = {}
        given, marker = self._multipart_location(multipart), 0
        while True:
            page = await self._call_for(
                multipart, "list_parts", **given, PartNumberMarker=marker, MaxParts=_PAGE
            )
            for listed in page.get("Parts", []):
                checksum = _checksum(listed, multipart.algorithm)
                part = Part(listed["PartNumber"], listed["Size"], _etag(listed), checksum)
                found.setdefault(part.number, {})[part.etag, part.size] = part
            if not page.get("IsTruncated"):
                return found
            # List the last number again: a page may end between two versions of a part.
            last = max(found)
            marker = last - 1 if last - 1 > marker else last

    async def _send_complete(
        self,
        multipart: Multipart,
        place: Mapping[str, Any],
        parts: Sequence[Part],
        checksum: Checksum | None,
    ) -> None:
        listed = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]
        given = {**place, "MultipartUpload": {"Parts": listed}}
        if checksum and checksum.algorithm is multipart.algorithm and self._options.checksums:
            given |= {_header(checksum.algorithm): checksum.value, "ChecksumType": "FULL_OBJECT"}
        await self._call_for(multipart, "complete_multipart_upload", longer=True, **given)

    async def _find_completed(
        self, multipart: Multipart, parts: Sequence[Part], checksum: Checksum | None
    ) -> Object:
        """Returns the object of this upload and these parts. Raises MultipartNotFound.

        Of the ETag only the number of parts is compared: the ETag of an encrypted object can't be
        computed here.
        """
        made = await self.head(multipart.key)
        meant = checksum if checksum is not None else _combined(parts)
        differs = (
            made.metadata.get(UPLOAD) != multipart.upload
            or made.size != sum(part.size for part in parts)
            or not made.etag.endswith(f"-{len(parts)}")
        )
        if made.checksum and meant and made.checksum.algorithm is meant.algorithm:
            differs = differs or made.checksum != meant
        if differs:
            raise MultipartNotFound(multipart.key, multipart.id)
        return made

    async def _checksum_header(self, body: Body, checksum: Checksum) -> dict[str, str]:
        """The header that the server compares *body* with."""
        if self._options.checksums:
            return {_header(checksum.algorithm): checksum.value}
        return {"ContentMD5": await asyncio.to_thread(_md5, body)}

    def _location(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": object_key(self._prefix + object_key(key))}

    def _multipart_location(self, multipart: Multipart) -> dict[str, Any]:
        return {**self._location(multipart.key), "UploadId": multipart.id}

    async def _call(self, verb: str, key: str, **given: Any) -> dict[str, Any]:
        return await self._client.call(verb, About(self._bucket, key=key), **given)

    async def _call_for(
        self, multipart: Multipart, verb: str, *, longer: bool = False, **given: Any
    ) -> dict[str, Any]:
        about = About(self._bucket, key=multipart.key, multipart=multipart.id)
        return await self._client.call(verb, about, longer=longer, **given)


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')


def _header(algorithm: Algorithm) -> str:
    return f"Checksum{algorithm.upper()}"


def _checksum(answer: Mapping[str, Any], algorithm: Algorithm) -> Checksum | None:
    value = answer.get(_header(algorithm))
    return Checksum(algorithm, value) if value else None


def _whole_checksum(answer: Mapping[str, Any]) -> Checksum | None:
    """The checksum of the whole object. A checksum of checksums, which ends in `-N`, is none."""
    found = (_checksum(answer, algorithm) for algorithm in Algorithm)
    return next((one for one in found if one is not None and "-" not in one.value), None)


def _combined(parts: Sequence[Part]) -> Checksum | None:
    known = [(part.checksum, part.size) for part in parts if part.checksum is not None]
    return combined(known) if known and len(known) == len(parts) else None


async def _matches(checksum: Checksum, body: Body) -> bool:
    return await asyncio.to_thread(Checksum.of, checksum.algorithm, body) == checksum


def _md5(body: Body) -> str:
    found = hashlib.md5(usedforsecurity=False)
    for piece in body:
        found.update(piece)
    return b64encode(found.digest()).decode()
