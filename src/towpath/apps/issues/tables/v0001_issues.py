"""Adds issues, their repositories, and the selectors of their tasks."""

import sqlalchemy as sa
from alembic import op

revision = "0001"

_ISSUES = (
    ("id", sa.String(300)),
    ("repository", sa.String(255)),
    ("place", sa.String(255)),
    ("number", sa.Integer()),
    ("title", sa.Text()),
    ("body", sa.Text()),
    ("url", sa.Text()),
    ("labels", sa.Text()),
    ("assignees", sa.Text()),
    ("state", sa.String(12)),
    ("reopened", sa.Boolean()),
    ("source", sa.String(12)),
    ("version", sa.BigInteger()),
    ("read", sa.Boolean()),
    ("pr_number", sa.Integer()),
    ("policy", sa.String(16)),
    ("task_type", sa.String(16)),
    ("role", sa.String(64)),
    ("priority", sa.Integer()),
    ("withheld", sa.String(16)),
    ("why", sa.Text()),
    ("task_id", sa.String(400)),
    ("generation", sa.Integer()),
    ("done", sa.Text()),
    ("not_before", sa.BigInteger()),
    ("applied", sa.Text()),
    ("settled", sa.Boolean()),
    ("agent", sa.String(64)),
    ("token", sa.BigInteger()),
    ("held_since", sa.BigInteger()),
    ("expires", sa.BigInteger()),
    ("outcome", sa.Text()),
    ("found", sa.BigInteger()),
    ("found_until", sa.BigInteger()),
    ("review_due", sa.BigInteger()),
    ("restarted", sa.BigInteger()),
    ("ready_told", sa.Boolean()),
    ("shown", sa.Text()),
    ("branch", sa.String(255)),
    ("created", sa.BigInteger()),
    ("updated", sa.BigInteger()),
    ("revision", sa.BigInteger()),
)
_INDEXED = (
    ("place", "number"),
    ("agent", "expires"),
    ("settled",),
    ("task_id",),
    ("withheld", "priority"),
    ("policy",),
    ("ready_told", "found"),
)


def upgrade() -> None:
    op.create_table(
        "towpath_issues_issues",
        *(sa.Column(name, kind, nullable=name == "pr_number") for name, kind in _ISSUES),
        sa.PrimaryKeyConstraint("id", name="pk_towpath_issues_issues"),
    )
    for names in _INDEXED:
        called = f"ix_towpath_issues_issues_{'_'.join(names)}"
        op.create_index(called, "towpath_issues_issues", list(names))
    op.create_table(
        "towpath_issues_repositories",
        sa.Column("place", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("source", sa.String(12), nullable=False),
        sa.Column("default_branch", sa.String(255), nullable=False),
        sa.Column("synced", sa.BigInteger(), nullable=False),
        sa.Column("trouble", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("place", name="pk_towpath_issues_repositories"),
    )
    op.create_table(
        "towpath_issues_selectors",
        sa.Column("selector", sa.String(330), nullable=False),
        sa.Column("place", sa.String(255), nullable=False),
        sa.Column("role", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("selector", name="pk_towpath_issues_selectors"),
    )
