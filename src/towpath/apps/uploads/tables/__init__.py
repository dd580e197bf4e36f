"""The rows of uploads, and all SQL statements about them.

A row is written before the first chunk is received, and is the truth: the state in Redis can be
rebuilt from it and the object store's list of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.exc import IntegrityError

from towpath.apps.uploads.errors import QuotaReached, UploadDiffers
from towpath.apps.uploads.model import FINAL, PARTIAL, Status, Upload
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.clock import instant, wall_ms
from towpath.ledger.database.tables import Tables
from towpath.ledger.database.writing import Decide, Overtaken, Write

TABLES = Tables("uploads", version="0002", steps=__name__)
NONE: Mapping[str, Any] = MappingProxyType({})
_ACTIVE = "ACTIVE"
"""The status in the row of a completed upload: the document can be used."""

documents = Table(
    "towpath_uploads_documents",
    TABLES.metadata,
    Column("upload_id", String(64), primary_key=True, doc="The id of the upload."),
    Column("node_id", String(64), nullable=False, unique=True, doc="The id of the document."),
    Column("owner", String(100), nullable=False, doc="The owner of the API key that started it."),
    Column("idempotency_key", String(255), doc="Idempotency-Key of the request that started it."),
    Column("request", LargeBinary(32), nullable=False, doc="SHA-256 of that request."),
    Column("status", String(12), nullable=False, doc="Its status; a completed upload is ACTIVE."),
    Column("generation", Integer, nullable=False, doc="Grows when it is resumed or rebuilt."),
    Column("name", String(1024), nullable=False, doc="The file's name."),
    Column("size", BigInteger, doc="Size in bytes; null = not known yet."),
    Column("chunk_size", Integer, nullable=False, doc="Size of a chunk in bytes."),
    Column("part_size", BigInteger, nullable=False, doc="Size of a part of the object in bytes."),
    Column("mime_type", String(512), nullable=False, doc="The media type that the client gave."),
    Column("drive", String(64), nullable=False, doc="The drive that the client gave."),
    Column("connector_id", String(128), nullable=False, doc="The connector: part of s3_key."),
    Column("parent_id", String(1024), doc="The id of the folder."),
    Column("path", Text, nullable=False, doc="The path of the folder."),
    Column("custom_metadata", Text, nullable=False, doc="Metadata that the client gave, as JSON."),
    Column("client_node_id", String(1024), doc="The client's id for the document."),
    Column("checksum_algorithm", String(12), doc="How the checksum of the file is computed."),
    Column("checksum_value", String(64), doc="The expected checksum, in base64."),
    Column("bucket", String(255), nullable=False, doc="The bucket of the object."),
    Column("s3_key", String(512), nullable=False, doc="The key of the object."),
    Column("s3_upload_id", String(1024), doc="The store's id for the multipart upload."),
    Column("etag", String(255), doc="ETag of the finished object."),
    Column("final_size", BigInteger, doc="Size of the finished object in bytes."),
    Column("error", Text, doc="Why the upload failed."),
    Column("created_at", BigInteger, nullable=False, doc="When the upload was started."),
    Column("updated_at", BigInteger, nullable=False, doc="When the row was last changed."),
    Column("deadline", BigInteger, nullable=False, doc="When it expires; chunks extend it."),
    Column("removed_at", BigInteger, doc="When an aborted or expired upload's data was deleted."),
    Column("concat", Text, doc="`partial`: a piece of another upload. `final;` ids: its pieces."),
    UniqueConstraint("owner", "idempotency_key"),
    info={"about": "Uploads, and the documents that they became."},
)
Index(None, documents.c.status, documents.c.deadline)
Index(None, documents.c.owner, documents.c.status)
Index(None, documents.c.owner, documents.c.upload_id)

_OPEN = [str(status) for status in Status if status.open]
_GIVEN_UP = [str(Status.ABORTED), str(Status.EXPIRED)]
_d = documents.c


def _row_status(status: Status) -> str:
    return _ACTIVE if status is Status.COMPLETED else status


def _upload(row: RowMapping) -> Upload:
    algorithm = row["checksum_algorithm"]
    plain = {
        name: row[name]
        for name in Upload.__struct_fields__
        if name not in {"status", "checksum", "created_at", "updated_at", "deadline"}
    }
    return Upload(
        **plain,
        status=Status.COMPLETED if row["status"] == _ACTIVE else Status(row["status"]),
        checksum=Checksum(Algorithm(algorithm), row["checksum_value"]) if algorithm else None,
        created_at=instant(row["created_at"]),
        updated_at=instant(row["updated_at"]),
        deadline=instant(row["deadline"]),
    )


# ── starting ─────────────────────────────────────────────────────────────────────────────


def insert_upload(
    row: dict[str, Any], *, most_open: int, most_bytes: int
) -> Decide[tuple[Upload, bool]]:
    """Insert *row*, or find the upload of its Idempotency-Key; returns it, and whether it existed.

    Raises UploadDiffers, QuotaReached.
    """

    def decide(connection: Connection) -> Write[tuple[Upload, bool]]:
        if (found := _find_earlier(connection, row)) is not None:
            return lambda _: (found, True)
        _require_quota(connection, row, most_open=most_open, most_bytes=most_bytes)

        def write(connection: Connection) -> tuple[Upload, bool]:
            try:
                connection.execute(insert(documents), row)
            except IntegrityError as error:  # another request with the same key was first
                raise Overtaken from error
            found = _find(connection, row["upload_id"])
            if found is None:
                raise Overtaken
            return found, False

        return write

    return decide


def _find_earlier(connection: Connection, row: dict[str, Any]) -> Upload | None:
    if row["idempotency_key"] is None:
        return None
    same = _d.owner == row["owner"], _d.idempotency_key == row["idempotency_key"]
    found = connection.execute(select(documents).where(*same)).mappings().first()
    if found is None:
        return None
    if found["request"] != row["request"]:
        raise UploadDiffers(found["upload_id"])
    return _upload(found)


def _require_quota(
    connection: Connection, row: dict[str, Any], *, most_open: int, most_bytes: int
) -> None:
    own = _d.owner == row["owner"], _d.status.in_(_OPEN)
    sums = select(func.count(), func.coalesce(func.sum(_d.size), 0)).where(*own)
    count, size = connection.execute(sums).one()
    if count >= most_open:
        raise QuotaReached(f"the owner of the key has {count} unfinished uploads")
    if most_bytes and int(size) + (row["size"] or 0) > most_bytes:
        raise QuotaReached(
            f"the unfinished uploads of the key's owner would exceed {most_bytes} bytes"
        )


# ── looking ──────────────────────────────────────────────────────────────────────────────


def _find(connection: Connection, upload_id: str) -> Upload | None:
    query = select(documents).where(_d.upload_id == upload_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _upload(row)


def read_upload(upload_id: str) -> Callable[[Connection], Upload | None]:
    """The upload, if there is one."""
    return lambda connection: _find(connection, upload_id)


def read_by_key(owner: str, idempotency_key: str) -> Callable[[Connection], Upload | None]:
    """The upload that *owner* has started with this Idempotency-Key, if there is one."""
    same = _d.owner == owner, _d.idempotency_key == idempotency_key
    query = select(documents).where(*same)

    def read(connection: Connection) -> Upload | None:
        row = connection.execute(query).mappings().first()
        return None if row is None else _upload(row)

    return read


def read_joined_from(piece: str) -> Callable[[Connection], Upload | None]:
    """Read the upload under way that *piece* is a piece of; None if there is none."""
    names = _d.concat.startswith(f"{FINAL};"), _d.concat.contains(piece, autoescape=True)
    query = select(documents).where(_d.status.in_(_OPEN), *names)

    def read(connection: Connection) -> Upload | None:
        uploads = map(_upload, connection.execute(query).mappings())
        return next((upload for upload in uploads if piece in upload.sources), None)

    return read


def page(
    *, status: Status | None, owner: str | None, after: str | None, size: int
) -> Callable[[Connection], Sequence[Upload]]:
    """Uploads, newest first: ids grow with time."""
    query = select(documents).order_by(_d.upload_id.desc()).limit(size)
    if status is not None:
        query = query.where(_d.status == _row_status(status))
    if owner is not None:
        query = query.where(_d.owner == owner)
    if after is not None:
        query = query.where(_d.upload_id < after)
    return lambda connection: [_upload(row) for row in connection.execute(query).mappings()]


def overdue(now: int, size: int) -> Callable[[Connection], Sequence[Upload]]:
    """Uploads past their deadline: under way, failed, or completed pieces of other uploads."""
    left = (_d.status == _ACTIVE) & (_d.concat == PARTIAL)
    late = _d.status.in_([*_OPEN, str(Status.FAILED)]) | left, _d.deadline <= now
    query = select(documents).where(*late).order_by(_d.deadline).limit(size)
    return lambda connection: [_upload(row) for row in connection.execute(query).mappings()]


def under_way(after: str, size: int) -> Callable[[Connection], Sequence[Upload]]:
    """Uploads under way, oldest first, whose ids come after *after*."""
    query = select(documents).where(_d.status.in_(_OPEN), _d.upload_id > after)
    query = query.order_by(_d.upload_id).limit(size)
    return lambda connection: [_upload(row) for row in connection.execute(query).mappings()]


def left_behind(before: int, size: int) -> Callable[[Connection], Sequence[Upload]]:
    """Uploads that were aborted or expired by *before*, and whose bytes may not all be deleted."""
    query = select(documents).where(_d.status.in_(_GIVEN_UP), _d.removed_at.is_(None))
    query = query.where(_d.updated_at <= before).order_by(_d.updated_at).limit(size)
    return lambda connection: [_upload(row) for row in connection.execute(query).mappings()]


def of_nodes(nodes: Sequence[str]) -> Callable[[Connection], Mapping[str, Upload]]:
    """Uploads by their documents' ids."""
    query = select(documents).where(_d.node_id.in_(nodes))
    return lambda connection: {
        row["node_id"]: _upload(row) for row in connection.execute(query).mappings()
    }


# ── changing ─────────────────────────────────────────────────────────────────────────────


def change_status(
    upload: Upload,
    status: Status,
    values: Mapping[str, Any] = NONE,
    *,
    also: Callable[[Connection], None] | None = None,
) -> Write[bool]:
    """Change the status and *values* of *upload*, if its row has not changed since it was read.

    *also* writes in the same transaction. Returns False if the row has changed; from PENDING to
    UPLOADING is no change.
    """
    before = _OPEN if upload.status.open else [_row_status(upload.status)]
    same = _d.upload_id == upload.upload_id, _d.status.in_(before)
    current = _d.generation == upload.generation
    changed = {**values, "status": _row_status(status), "updated_at": wall_ms()}
    change = update(documents).where(*same, current).values(changed)

    def write(connection: Connection) -> bool:
        if not connection.execute(change).rowcount:
            return False
        if also is not None:
            also(connection)
        return True

    return write


def save_multipart(upload: Upload, s3_upload_id: str) -> Write[str | None]:
    """Save the id of the multipart upload, unless the row has one; returns the id in the row.

    Returns None if the upload is no longer under way.
    """
    own = _d.upload_id == upload.upload_id, _d.generation == upload.generation
    free = _d.s3_upload_id.is_(None), _d.status.in_(_OPEN)
    status = str(Status.UPLOADING)
    values = {"s3_upload_id": s3_upload_id, "status": status, "updated_at": wall_ms()}
    change = update(documents).where(*own, *free).values(values)
    query = select(_d.s3_upload_id).where(*own, _d.status.in_(_OPEN))

    def write(connection: Connection) -> str | None:
        connection.execute(change)
        return connection.scalar(query)

    return write


def set_deadline(upload: Upload, deadline: int) -> Write[bool]:
    """Set the deadline of *upload*, which was active."""
    return lambda connection: bool(
        connection.execute(
            update(documents)
            .where(_d.upload_id == upload.upload_id, _d.status == _row_status(upload.status))
            .values(deadline=deadline)
        ).rowcount
    )


def note_removal(upload: Upload) -> Write[bool]:
    """Note that the bytes of *upload*, which was aborted or expired, are deleted."""
    return lambda connection: bool(
        connection.execute(
            update(documents)
            .where(_d.upload_id == upload.upload_id, _d.status == _row_status(upload.status))
            .values(removed_at=wall_ms())
        ).rowcount
    )


def save_size(upload: Upload, size: int) -> Write[bool]:
    """Save the size of an upload that was started without one."""
    return lambda connection: bool(
        connection.execute(
            update(documents)
            .where(_d.upload_id == upload.upload_id, _d.size.is_(None))
            .values(size=size, updated_at=wall_ms())
        ).rowcount
    )
