"""The ledger: what Towpath keeps in a database. No other code talks to a database.

SQLite is for one host, PostgreSQL for several. `Ledger` is in `towpath.ledger.ledger`; nothing is
imported here, so that the errors can be imported without a database library.
"""
