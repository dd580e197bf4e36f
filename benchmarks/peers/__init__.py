"""Other job queues for Python, and BullMQ for Node, beside Towpath on one Redis in one run.

Imports nothing: rows and `side` run in the peers' own environments, which do not have Towpath.
"""
