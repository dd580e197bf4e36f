"""The table of uploads, and of the documents that they became."""

import sqlalchemy as sa
from alembic import op

revision = "0001"

_COLUMNS = (
    ("upload_id", sa.String(64)),
    ("node_id", sa.String(64)),
    ("owner", sa.String(64)),
    ("idempotency_key", sa.String(255)),
    ("request", sa.LargeBinary(32)),
    ("status", sa.String(12)),
    ("generation", sa.Integer()),
    ("name", sa.String(1024)),
    ("size", sa.BigInteger()),
    ("chunk_size", sa.Integer()),
    ("part_size", sa.BigInteger()),
    ("mime_type", sa.String(512)),
    ("drive", sa.String(64)),
    ("connector_id", sa.String(128)),
    ("parent_id", sa.String(1024)),
    ("path", sa.Text()),
    ("custom_metadata", sa.Text()),
    ("client_node_id", sa.String(1024)),
    ("checksum_algorithm", sa.String(12)),
    ("checksum_value", sa.String(64)),
    ("bucket", sa.String(255)),
    ("s3_key", sa.String(512)),
    ("s3_upload_id", sa.String(1024)),
    ("etag", sa.String(255)),
    ("final_size", sa.BigInteger()),
    ("error", sa.Text()),
    ("created_at", sa.BigInteger()),
    ("updated_at", sa.BigInteger()),
    ("deadline", sa.BigInteger()),
    ("removed_at", sa.BigInteger()),
    ("concat", sa.Text()),
)
_MAY_BE_NONE = {
    "idempotency_key",
    "size",
    "parent_id",
    "client_node_id",
    "checksum_algorithm",
    "checksum_value",
    "s3_upload_id",
    "etag",
    "final_size",
    "error",
    "removed_at",
    "concat",
}


def upgrade() -> None:
    op.create_table(
        "towpath_uploads_documents",
        *(sa.Column(name, kind, nullable=name in _MAY_BE_NONE) for name, kind in _COLUMNS),
        sa.PrimaryKeyConstraint("upload_id", name="pk_towpath_uploads_documents"),
        sa.UniqueConstraint("node_id", name="uq_towpath_uploads_documents_node_id"),
        sa.UniqueConstraint(
            "owner",
            "idempotency_key",
            name="uq_towpath_uploads_documents_owner_idempotency_key",
        ),
    )
    op.create_index(
        "ix_towpath_uploads_documents_status_deadline",
        "towpath_uploads_documents",
        ["status", "deadline"],
    )
    op.create_index(
        "ix_towpath_uploads_documents_owner_status",
        "towpath_uploads_documents",
        ["owner", "status"],
    )
