"""The ledger: what Towpath keeps in a database. The only code that talks to one.

SQLite for one host, PostgreSQL for several. `Ledger` is in `towpath.ledger.ledger`; nothing is
imported here, so that the errors can be had without a database library.
"""
