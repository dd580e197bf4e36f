"""The migrations of the ledger's schema, one step per file, shipped with the package.

For a new step, use the next number in the file's name and as `revision`, set `SCHEMA` in
`schema.py` to it, and say `additive = True` if code written for the previous step still works.
There are no downgrades: to go back, restore a backup. Never change a step that has been released.
All missing steps run in one transaction.
"""
