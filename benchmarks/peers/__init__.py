"""Other job queues for Python and BullMQ for Node beside Towpath, on one server in one run.

Imports nothing: rows and `side` run in the peers' own environments, where Towpath is not.
"""
