"""Adds the fencing token of the last hold, so that a late claim can't replace a newer one."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
additive = True


def upgrade() -> None:
    op.add_column("towpath_issues_issues", sa.Column("last_token", sa.BigInteger()))
