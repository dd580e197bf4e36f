"""The Python interface: an app, its handlers and jobs, and the engine and ledger they share."""
