"""When a record is tried again, beside its due time: a retry no longer replaces that."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
additive = True


def upgrade() -> None:
    op.add_column("towpath_jobs", sa.Column("next_try_at", sa.BigInteger()))
