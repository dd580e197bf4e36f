"""Uploads for tests: rows without a database, small enough to be counted by hand."""

from datetime import UTC, datetime
from hashlib import sha256

from towpath.apps.uploads.model import Status, Upload
from towpath.apps.uploads.records import DIGEST

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def new_row(
    upload_id: str = "u1",
    *,
    size: int | None = 50,
    chunk_size: int = 4,
    part_size: int = 12,
    generation: int = 1,
) -> Upload:
    """An upload in chunks of four bytes and parts of three chunks."""
    return Upload(
        upload_id=upload_id,
        node_id=f"node-{upload_id}",
        owner="key",
        status=Status.PENDING,
        generation=generation,
        name="a.bin",
        size=size,
        chunk_size=chunk_size,
        part_size=part_size,
        mime_type="text/plain",
        drive="default",
        connector_id="c",
        parent_id=None,
        path="",
        custom_metadata="{}",
        client_node_id=None,
        checksum=None,
        bucket="",
        s3_key=f"connectors/c/node-{upload_id}",
        s3_upload_id=None,
        etag=None,
        final_size=None,
        error=None,
        created_at=THEN,
        updated_at=THEN,
        deadline=THEN,
    )


def digest_of(data: bytes) -> bytes:
    return sha256(data).digest()[:DIGEST]
