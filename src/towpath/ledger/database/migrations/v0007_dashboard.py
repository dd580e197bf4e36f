"""Login sessions of the dashboard, and the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
additive = True

_counting = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "towpath_logins",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_towpath_logins"),
    )
    op.create_index("ix_towpath_logins_expires_at", "towpath_logins", ["expires_at"])
    op.create_table(
        "towpath_audit",
        sa.Column("seq", _counting, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("key_name", sa.String(100), nullable=False),
        sa.Column("method", sa.String(8), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.PrimaryKeyConstraint("seq", name="pk_towpath_audit"),
        sqlite_autoincrement=True,
    )
