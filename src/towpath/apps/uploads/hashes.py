"""The published hashes in Redis, made from an upload's row and its stored parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from towpath.apps.uploads.model import Status, Upload, UploadPlan
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.clock import wall_ms


class PartEntry(msgspec.Struct, frozen=True, array_like=True):
    """A stored part, as Redis keeps it."""

    etag: str
    size: int
    checksum: str = ""
    """From the object store, or computed here; empty = none."""


def fields_of(upload: Upload) -> dict[str, str]:
    """The state hash of an upload that has ended, or was just begun, from its row alone."""
    ended = upload.status is Status.COMPLETED
    plan = upload.plan
    parts = range(plan.total_parts or 0) if ended else ()
    entries = {part: PartEntry("", plan.part_length(part)) for part in parts}
    return {name: str(value) for name, value in state_hash(upload, entries).items()}


def state_hash(upload: Upload, parts: Mapping[int, PartEntry]) -> dict[str, str | int]:
    """The state hash: all published fields, then those of the plan."""
    plan = upload.plan
    chunks = sum(len(plan.chunks_of(part)) for part in parts)
    highest = max((plan.chunks_of(part)[-1] for part in parts), default=-1)
    begun = Status.UPLOADING if parts else Status.PENDING
    return {
        "node_id": upload.node_id,
        "s3_upload_id": upload.s3_upload_id or "",
        "s3_key": upload.s3_key,
        "drive": upload.drive,
        "status": str(begun if upload.status.open else upload.status),
        "expected_size": upload.size or 0,
        "received_chunks": chunks,
        "uploaded_chunks": chunks,
        "total_chunks": plan.total_chunks or 0,
        "is_last_received": str(upload.status is Status.COMPLETED).lower(),
        "created_at": _ms(upload.created_at),
        "updated_at": wall_ms() if upload.status.open else _ms(upload.updated_at),
        "mime_type": upload.mime_type,
        "final_etag": upload.etag or "",
        "final_size": "" if upload.final_size is None else upload.final_size,
        "error_message": upload.error or "",
        "upload_id": upload.upload_id,
        "generation": upload.generation,
        "chunk_size": upload.chunk_size,
        "part_size": upload.part_size,
        "per_part": plan.chunks_per_part,
        "sized": int(upload.size is not None),
        "total_parts": plan.total_parts or 0,
        "parts": len(parts),
        "bytes_uploaded": sum(entry.size for entry in parts.values()),
        "highest": highest,
    }


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def bits_of(plan: UploadPlan, parts: Iterable[int]) -> bytes:
    """A bit per chunk of *parts*."""
    numbers = [number for part in parts for number in plan.chunks_of(part)]
    bits = bytearray((max(numbers, default=-1) >> 3) + 1)
    for number in numbers:
        bits[number >> 3] |= 0x80 >> (number & 7)
    return bytes(bits)


def digests_of(plan: UploadPlan, parts: Mapping[int, PartEntry]) -> dict[int, bytes]:
    """The digests of chunks that are a whole part each, if the object store has them."""
    if plan.chunks_per_part != 1:
        return {}
    kind = f"{Algorithm.CRC64NVME}:"
    return {
        part: Checksum(Algorithm.CRC64NVME, entry.checksum.removeprefix(kind)).raw
        for part, entry in parts.items()
        if entry.checksum.startswith(kind)
    }


def metadata_hash(upload: Upload) -> dict[str, str]:
    """The metadata hash."""
    return {
        "name": upload.name,
        "connector_id": upload.connector_id,
        "parent_id": upload.parent_id or "",
        "path": upload.path,
        "custom_metadata": upload.custom_metadata,
        "client_node_id": upload.client_node_id or "",
    }
