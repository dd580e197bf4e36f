"""A small shop: its jobs, its HTTP endpoints, and their tests."""
