"""A small shop: its jobs, its HTTP endpoints, and tests of both."""
