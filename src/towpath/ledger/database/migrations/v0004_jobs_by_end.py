"""An index for finding records that ended long ago."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_index("ix_towpath_jobs_finished_at", "towpath_jobs", ["finished_at"])
