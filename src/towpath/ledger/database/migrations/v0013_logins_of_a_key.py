"""An index of the logins of a key, because a new login may end the key's oldest one."""

from alembic import op

revision = "0013"
down_revision = "0012"
additive = True


def upgrade() -> None:
    op.create_index("ix_towpath_logins_key", "towpath_logins", ["key_id", "kind", "created_at"])
