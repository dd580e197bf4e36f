"""How the ledger's schema came to be, one step per file, shipped with the package.

A new step: the next number in the file's name and as `revision`, `SCHEMA` in `schema.py` set to
it, and `additive = True` if code that works with the step before goes on working. Steps only go
up: to go back, restore a backup. A step that has been released never changes. All steps that are
missing run in one transaction.
"""
