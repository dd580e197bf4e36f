"""The revision of a record's subject and the revision before it, which order two records."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("towpath_jobs", sa.Column("revision", sa.String(128)))
    op.add_column("towpath_jobs", sa.Column("follows", sa.String(128)))
