"""Adds pages of GitHub's lists, when Towpath changed labels, and repositories' former names."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
additive = True


def upgrade() -> None:
    op.add_column("towpath_issues_issues", sa.Column("touched", sa.BigInteger()))
    op.add_column("towpath_issues_repositories", sa.Column("formerly", sa.String(255)))
    op.create_table(
        "towpath_issues_pages",
        sa.Column("path", sa.String(500), nullable=False),
        sa.Column("place", sa.String(255), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("numbers", sa.Text(), nullable=False),
        sa.Column("following", sa.Text()),
        sa.PrimaryKeyConstraint("path", name="pk_towpath_issues_pages"),
    )
    op.create_index("ix_towpath_issues_pages_place", "towpath_issues_pages", ["place"])
