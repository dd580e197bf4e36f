"""Tests that this release reads and uses data that an older release has left in Redis and a
database.
"""
