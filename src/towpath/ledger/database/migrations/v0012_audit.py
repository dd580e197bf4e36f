"""The audit log also has changes through the API, and what they changed."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
additive = True


def upgrade() -> None:
    op.add_column("towpath_audit", sa.Column("owner", sa.String(100)))
    op.add_column("towpath_audit", sa.Column("via", sa.String(9)))
    op.add_column("towpath_audit", sa.Column("action", sa.String(64)))
    op.add_column("towpath_audit", sa.Column("target", sa.Text()))
    op.add_column("towpath_audit", sa.Column("changed", sa.Text()))
    op.create_index("ix_towpath_audit_key", "towpath_audit", ["key_id", "seq"])
