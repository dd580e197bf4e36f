"""Records: jobs whose row in the database is the truth."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_counting = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "towpath_jobs",
        sa.Column("seq", _counting, nullable=False),
        sa.Column("queue", sa.String(64), nullable=False),
        sa.Column("id", sa.String(512), nullable=False),
        sa.Column("job", sa.String(512), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("options", sa.Text()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("lane", sa.String(512)),
        sa.Column("subject", sa.String(512)),
        sa.Column("version", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer()),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("last_error", sa.Text()),
        sa.Column("result", sa.LargeBinary()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("finished_at", sa.BigInteger()),
        sa.Column("relay_at", sa.BigInteger()),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_towpath_jobs"),
        sa.UniqueConstraint("queue", "id", name="uq_towpath_jobs_queue_id"),
        sa.UniqueConstraint("queue", "job", name="uq_towpath_jobs_queue_job"),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'completed', 'failed', 'dead', 'cancelled', "
            "'superseded')",
            name="ck_towpath_jobs_state",
        ),
    )
    op.create_index("ix_towpath_jobs_relay_at", "towpath_jobs", ["relay_at"])
    op.create_index("ix_towpath_jobs_queue_state_seq", "towpath_jobs", ["queue", "state", "seq"])
    op.create_index(
        "ix_towpath_jobs_queue_subject_version", "towpath_jobs", ["queue", "subject", "version"]
    )
