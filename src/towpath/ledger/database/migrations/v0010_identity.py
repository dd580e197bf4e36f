"""The id of the database, so that processes can tell whether they use the same one."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
additive = True


def upgrade() -> None:
    identity = op.create_table(
        "towpath_identity",
        sa.Column("id", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_towpath_identity"),
    )
    op.bulk_insert(identity, [{"id": secrets.token_hex(16)}])
