"""What Alembic runs: the steps, in the transaction of whoever calls."""

from alembic import context

from towpath.ledger.database.schema import metadata, schema_version

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=schema_version.name,
)
context.run_migrations()
