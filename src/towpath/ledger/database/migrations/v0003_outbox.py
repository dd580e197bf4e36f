"""The outbox, and the leases of its couriers."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_counting = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "towpath_outbox",
        sa.Column("seq", _counting, nullable=False),
        sa.Column("sink", sa.String(64), nullable=False),
        sa.Column("id", sa.String(1024), nullable=False),
        sa.Column("type", sa.String(128), nullable=False),
        sa.Column("source", sa.String(512), nullable=False),
        sa.Column("key", sa.String(1024), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("refused_at", sa.BigInteger()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("seq", name="pk_towpath_outbox"),
        # Numbers are never reused: a courier with an old number must not delete a newer row.
        sqlite_autoincrement=True,
    )
    for name, which in (("pending", "refused_at IS NULL"), ("refused", "refused_at IS NOT NULL")):
        op.create_index(
            f"ix_towpath_outbox_{name}",
            "towpath_outbox",
            ["sink", "seq"],
            sqlite_where=sa.text(which),
            postgresql_where=sa.text(which),
        )
    op.create_table(
        "towpath_couriers",
        sa.Column("sink", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sink", name="pk_towpath_couriers"),
    )
