"""How the schema came to be, one step per file in `versions/`, shipped with the package.

A new step: the next number as `revision`, the last one as `down_revision`, `SCHEMA` in
`schema.py` set to it. Steps only go up: to go back, restore a backup. A step that has been
released never changes. All steps that are missing run in one transaction.
"""
