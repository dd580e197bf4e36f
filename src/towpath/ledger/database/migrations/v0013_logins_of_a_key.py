"""The logins of one key are found by an index: another login ends the oldest of them."""

from alembic import op

revision = "0013"
down_revision = "0012"
additive = True


def upgrade() -> None:
    op.create_index("ix_towpath_logins_key", "towpath_logins", ["key_id", "kind", "created_at"])
