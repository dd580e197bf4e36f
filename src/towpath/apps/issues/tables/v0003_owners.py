"""Adds the owner of the API key that requested a held task."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
additive = True


def upgrade() -> None:
    op.add_column("towpath_issues_issues", sa.Column("owner", sa.String(100)))
