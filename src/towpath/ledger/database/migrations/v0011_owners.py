"""The owner of a key: a name that several keys can share."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
additive = True


def upgrade() -> None:
    op.add_column("towpath_api_keys", sa.Column("owner", sa.String(100)))
