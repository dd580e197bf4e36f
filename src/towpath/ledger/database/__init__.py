"""The database: SQLite or PostgreSQL, schema, migrations, changes that share a transaction."""
