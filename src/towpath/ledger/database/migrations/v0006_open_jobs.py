"""Indexes of open records: those that a relay looks for, and the heads of lanes."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_UNSEEN = "relay_at IS NOT NULL"
_OPEN_IN_LANE = "lane IS NOT NULL AND state IN ('pending', 'running', 'failed')"


def upgrade() -> None:
    op.drop_index("ix_towpath_jobs_relay_at", "towpath_jobs")
    op.create_index(
        "ix_towpath_jobs_unseen",
        "towpath_jobs",
        ["queue", "relay_at"],
        sqlite_where=sa.text(_UNSEEN),
        postgresql_where=sa.text(_UNSEEN),
    )
    op.create_index(
        "ix_towpath_jobs_lane",
        "towpath_jobs",
        ["queue", "lane", "seq"],
        sqlite_where=sa.text(_OPEN_IN_LANE),
        postgresql_where=sa.text(_OPEN_IN_LANE),
    )
