"""The HTTP server: what the engine and the applications offer, to every language, behind a key."""
