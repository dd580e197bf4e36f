"""API keys, and login sessions of the dashboard."""
