"""The owner of an upload is the owner of its key, whose name may be longer than a key's id."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
additive = True


def upgrade() -> None:
    with op.batch_alter_table("towpath_uploads_documents") as table:  # SQLite copies the table
        table.alter_column(
            "owner",
            existing_type=sa.String(64),
            type_=sa.String(100),
            existing_nullable=False,
        )
    op.create_index(
        "ix_towpath_uploads_documents_owner_upload_id",
        "towpath_uploads_documents",
        ["owner", "upload_id"],
    )
