"""API keys: made, listed, revoked, checked."""
