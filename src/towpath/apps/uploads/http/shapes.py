"""The requests and responses of uploads.

Only the answer to a chunk is a struct as it is. The others are not made from `Upload` or
`NewUpload`: an upload is shown by the fields of its state hash, which are published texts, and a
request has limits and descriptions of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from towpath.apps.uploads.http.granting import CredentialIn, CredentialOut
from towpath.apps.uploads.ingest import ChunkReceipt, Safety
from towpath.apps.uploads.model import MOST_AT_ONCE, NewUpload, Status, Upload
from towpath.apps.uploads.service import LARGEST_PAGE, View
from towpath.apps.uploads.stores.checksums import Checksum
from towpath.web.fields import Answer, Body, Json, answer_from, example

Words = Annotated[str, Field(max_length=4096)]


class ChecksumIn(Body):
    """The expected checksum of the whole file."""

    algorithm: Annotated[str, Field(max_length=20)]
    """The algorithm: `crc32c`, `crc64nvme` or `sha256`."""
    value: Annotated[str, Field(max_length=128)]
    """The checksum, in base64 or hex."""


class StartIn(Body):
    """A file to upload."""

    model_config = example(name="report.pdf", size=73_400_320, mime_type="application/pdf")

    name: Words
    """Name of the file: 1 to 1,024 bytes. It is never part of a path or of an object's key."""
    size: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Size of the file in bytes; without it, the last chunk ends the file."""
    chunk_size: Annotated[int, Field(strict=True)] | None = None
    """Size of every chunk but the last in bytes: 65,536 to 67,108,864."""
    mime_type: Words = "application/octet-stream"
    drive: Words = "default"
    connector_id: Words = "default"
    """1 to 128 of A-Z, a-z, 0-9, `_`, `-`; it is part of the object's key."""
    parent_id: Words | None = None
    """Id of the folder, for your own use."""
    path: Annotated[str, Field(max_length=4096)] = ""
    """Path of the folder, for your own use."""
    custom_metadata: dict[str, Json] | None = None
    """Your own metadata, up to 16 KiB as JSON."""
    client_node_id: Words | None = None
    """Your own id for the document."""
    checksum: ChecksumIn | None = None
    """The expected checksum; it is compared before the upload is completed."""
    credential: CredentialIn | None = None
    """Issue a credential with which a web page can send this file; it needs a `size`."""

    def new(self) -> NewUpload:
        """Raises InvalidInput."""
        fields = self.model_dump(exclude={"checksum", "custom_metadata", "credential"})
        expected = self.checksum
        return NewUpload(
            **fields,
            custom_metadata=self.custom_metadata or {},
            checksum=Checksum.parse(expected.algorithm, expected.value) if expected else None,
        )


class UploadOut(Answer):
    """An upload: its state, its metadata and its plan."""

    upload_id: str
    node_id: str
    """The id of the document."""
    status: Status
    chunk_size: int
    """Size of every chunk but the last, in bytes."""
    part_size: int
    """Size of a part of the object, in bytes."""
    expires_at: datetime
    """When the upload expires, unless a chunk comes first."""
    s3_upload_id: str
    """The store's id for the multipart upload."""
    s3_key: str
    """The key of the object."""
    drive: str
    expected_size: int
    """Size of the file in bytes; 0 = empty, or not known yet."""
    received_chunks: int
    """Number of chunks received."""
    uploaded_chunks: int
    """Number of chunks that are in the object store."""
    total_chunks: int
    """Number of all chunks; 0 = none, or not known yet."""
    is_last_received: bool
    """Whether the last chunk has been received."""
    created_at: int
    """Milliseconds since 1970."""
    updated_at: int
    """Milliseconds since 1970."""
    mime_type: str
    final_etag: str
    """ETag of the finished object; empty before."""
    final_size: int | None
    """Size of the finished object in bytes."""
    error_message: str
    """Why the upload failed; empty if it did not."""
    name: str
    connector_id: str
    parent_id: str | None
    path: str
    custom_metadata: dict[str, Json]
    client_node_id: str | None

    @classmethod
    def of(cls, view: View) -> Self:
        upload, fields = view.upload, view.fields
        same = (
            "node_id", "s3_key", "drive", "mime_type", "s3_upload_id", "final_etag",
            "error_message", "expected_size", "received_chunks", "uploaded_chunks",
            "total_chunks", "created_at", "updated_at", "is_last_received",
        )  # fmt: skip
        return cls(
            **{name: fields[name] for name in same},  # pyright: ignore[reportArgumentType] -- pydantic reads the texts
            upload_id=upload.upload_id,
            status=view.status,
            chunk_size=upload.chunk_size,
            part_size=upload.part_size,
            expires_at=upload.deadline,
            final_size=int(fields["final_size"]) if fields["final_size"] else None,
            name=upload.name,
            connector_id=upload.connector_id,
            parent_id=upload.parent_id,
            path=upload.path,
            custom_metadata=msgspec.json.decode(upload.custom_metadata),
            client_node_id=upload.client_node_id,
        )


class StartedOut(UploadOut):
    """An upload that was started."""

    credential: CredentialOut | None = None
    """The credential, if one was asked for."""


class ChunkOut(answer_from(ChunkReceipt)):
    """A chunk that was received."""


class MissingOut(Answer):
    """The chunks that are missing."""

    model_config = example(missing=[[0, 3], [7, 7]])

    missing: list[list[int]]
    """Ranges of chunk numbers, both ends included; at most 100 ranges."""


class SummaryOut(Answer):
    """An upload in a list."""

    upload_id: str
    node_id: str
    """The id of the document."""
    name: str
    status: Status
    size: int | None
    """Size in bytes; null = not known yet."""
    created_at: datetime
    updated_at: datetime
    error: str | None
    """Why the upload failed."""

    @classmethod
    def of(cls, upload: Upload) -> SummaryOut:
        return cls(**{name: getattr(upload, name) for name in cls.model_fields})


class UploadsOut(Answer):
    """A page of uploads, newest first."""

    uploads: list[SummaryOut]
    after: str | None
    """Pass it as `after` to get the next page; null on the last page."""


class UploadQuery(Body):
    """Which uploads."""

    status: Status | None = None
    """Only uploads with this status."""
    after: Annotated[str, Field(max_length=64)] | None = None
    """The `after` value returned with the previous page."""
    size: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = 50


class LookWish(Body):
    """How to read an upload."""

    wait: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0
    """Seconds to wait for the end of the upload."""


class ChunkWish(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    is_last: bool = False
    """Whether this is the last chunk of the file."""
    count: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = 1
    """How many chunks the body has, from this number on. Several chunks must be of at most 1 MiB
    each and belong to one part, and the size of the upload must be known."""
    safety: Safety | None = None
    """How safe the chunk must be before this is answered; refused if that is impossible. `stored`
    waits up to 30 s, and only for the chunk that completes its part."""
