"""The dashboard: over HTTP, and in a real browser."""
