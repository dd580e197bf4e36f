"""Reviewers, behind one interface: a Python function, a command, or an HTTP endpoint."""
