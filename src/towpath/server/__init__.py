"""The HTTP server: the engine and the applications for every language, protected by API keys."""
