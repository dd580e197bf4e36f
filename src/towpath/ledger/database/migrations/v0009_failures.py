"""The last failed attempts of a record, with their tracebacks."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
additive = True


def upgrade() -> None:
    op.add_column("towpath_jobs", sa.Column("failures", sa.Text()))
