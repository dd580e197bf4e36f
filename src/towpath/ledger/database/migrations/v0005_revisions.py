"""What of its subject a record is about, and what came before: that tells the order of two."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("towpath_jobs", sa.Column("revision", sa.String(128)))
    op.add_column("towpath_jobs", sa.Column("follows", sa.String(128)))
