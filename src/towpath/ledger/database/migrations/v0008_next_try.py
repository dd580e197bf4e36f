"""The time of a record's next try, so that a retry no longer replaces its due time."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
additive = True


def upgrade() -> None:
    op.add_column("towpath_jobs", sa.Column("next_try_at", sa.BigInteger()))
